package arbiter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A small strict reader of JSON: unlike encoding/json alone it refuses
// duplicate keys and invalid UTF-8, matches keys exactly, and keeps the text of
// numbers, so that an unknown field survives as it was.

type kind int

const (
	kindNull kind = iota
	kindBool
	kindNumber
	kindString
	kindArray
	kindObject
)

func (k kind) String() string {
	return [...]string{"null", "a boolean", "a number", "a string", "an array", "an object"}[k]
}

type node struct {
	kind   kind
	text   string  // of a string (unquoted), a number or a boolean (literal)
	items  []node  // of an array
	fields []field // of an object, in the order of the text
}

type field struct {
	name  string
	value node
}

// maxDepth bounds the nesting of a value that is kept in Extra.
const maxDepth = 32

func parseJSON(data []byte) (node, error) {
	if !utf8.Valid(data) {
		return node{}, errors.New("not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	n, err := parseValue(dec, 0)
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return node{}, errors.New("truncated JSON")
		}
		return node{}, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return node{}, errors.New("data after the JSON value")
	}
	// The token reader is laxer than the grammar in places; the grammar decides.
	if !json.Valid(data) {
		return node{}, errors.New("not JSON")
	}
	return n, nil
}

func parseValue(dec *json.Decoder, depth int) (node, error) {
	if depth > maxDepth {
		return node{}, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	tok, err := dec.Token()
	if err != nil {
		return node{}, err
	}
	switch t := tok.(type) {
	case nil:
		return node{kind: kindNull}, nil
	case bool:
		return node{kind: kindBool, text: strconv.FormatBool(t)}, nil
	case json.Number:
		return node{kind: kindNumber, text: t.String()}, nil
	case string:
		return node{kind: kindString, text: t}, nil
	case json.Delim:
		if t == '[' {
			n := node{kind: kindArray}
			for dec.More() {
				v, err := parseValue(dec, depth+1)
				if err != nil {
					return node{}, err
				}
				n.items = append(n.items, v)
			}
			_, err := dec.Token()
			return n, err
		}
		return parseObject(dec, depth)
	}
	return node{}, fmt.Errorf("unexpected token %v", tok)
}

func parseObject(dec *json.Decoder, depth int) (node, error) {
	n := node{kind: kindObject}
	seen := map[string]bool{}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return node{}, err
		}
		name, ok := tok.(string)
		if !ok {
			return node{}, fmt.Errorf("unexpected token %v in place of a field's name", tok)
		}
		if seen[name] {
			return node{}, fmt.Errorf("field %q occurs twice", name)
		}
		seen[name] = true
		v, err := parseValue(dec, depth+1)
		if err != nil {
			return node{}, err
		}
		n.fields = append(n.fields, field{name, v})
	}
	_, err := dec.Token()
	return n, err
}

// appendCanonical writes n without white space and with sorted keys.
func appendCanonical(b []byte, n node) []byte {
	switch n.kind {
	case kindNull:
		return append(b, "null"...)
	case kindBool, kindNumber:
		return append(b, n.text...)
	case kindString:
		return appendString(b, n.text)
	case kindArray:
		b = append(b, '[')
		for i, v := range n.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendCanonical(b, v)
		}
		return append(b, ']')
	default:
		b = append(b, '{')
		for i, f := range sortedFields(n.fields) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, f.name), ':')
			b = appendCanonical(b, f.value)
		}
		return append(b, '}')
	}
}

func sortedFields(fields []field) []field {
	s := slices.Clone(fields)
	slices.SortFunc(s, func(x, y field) int { return strings.Compare(x.name, y.name) })
	return s
}

// appendString quotes s without the escapes that HTML needs.
func appendString(b []byte, s string) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic(err) // a string always encodes
	}
	return append(b, bytes.TrimSuffix(buf.Bytes(), []byte("\n"))...)
}
