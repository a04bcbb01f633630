package arbiter

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Decode reads a record. The error is one of ErrEmpty, ErrWhitespace,
// ErrGarbage, ErrForeign and ErrFuture, with the place and the reason. White
// space and the order of fields do not matter; everything else does.
func Decode(data []byte) (Record, error) {
	switch {
	case len(data) == 0:
		return Record{}, fmt.Errorf("decode the record: %w", ErrEmpty)
	case len(bytes.TrimSpace(data)) == 0:
		return Record{}, fmt.Errorf("decode the record: %w: %d bytes", ErrWhitespace, len(data))
	case len(data) > maxForeign:
		return Record{}, fmt.Errorf("decode the record: %w: %d bytes, a record has at most %d", ErrGarbage, len(data), MaxSize)
	}
	n, err := parseJSON(data)
	if err != nil {
		return Record{}, fmt.Errorf("decode the record: %w: %w; it begins %.40q", ErrGarbage, err, data)
	}
	if err := checkFormat(n); err != nil {
		return Record{}, fmt.Errorf("decode the record: %w", err)
	}
	if len(data) > MaxSize {
		return Record{}, fmt.Errorf("decode the record: %w: %d bytes, a record has at most %d", ErrGarbage, len(data), MaxSize)
	}
	d := &decoder{}
	r := d.record(n)
	if d.err == nil {
		d.err = r.Validate()
	}
	if d.err != nil {
		return Record{}, fmt.Errorf("decode the record: %w: %w", ErrGarbage, d.err)
	}
	return r, nil
}

// checkFormat tells records of this version from newer ones and from no record.
func checkFormat(n node) error {
	if n.kind != kindObject {
		return fmt.Errorf("%w: it is %s", ErrForeign, n.kind)
	}
	var format, version *node
	for i, f := range n.fields {
		switch f.name {
		case "format":
			format = &n.fields[i].value
		case "version":
			version = &n.fields[i].value
		}
	}
	switch {
	case format == nil:
		return fmt.Errorf("%w: no field \"format\"", ErrForeign)
	case format.kind != kindString || format.text != Format:
		return fmt.Errorf("%w: format is %.40q", ErrForeign, format.text)
	case version == nil:
		return fmt.Errorf("%w: no field \"version\"", ErrGarbage)
	case version.kind != kindNumber || strings.Trim(version.text, "0123456789") != "" || version.text == "0":
		return fmt.Errorf("%w: version is %.40q, not a whole number above 0", ErrGarbage, version.text)
	case version.text != strconv.Itoa(FormatVersion):
		return fmt.Errorf("%w: version %.40s, this twok knows %d; upgrade it", ErrFuture, version.text, FormatVersion)
	}
	return nil
}

// decoder keeps the first error.
type decoder struct{ err error }

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
}

func (d *decoder) is(path string, n node, k kind) bool {
	if n.kind != k {
		d.fail("%s is %s, not %s", path, n.kind, k)
	}
	return n.kind == k
}

func (d *decoder) record(n node) Record {
	var r Record
	var extra []field
	for _, f := range n.fields {
		switch v := f.value; f.name {
		case "format", "version": // checked
		case "id":
			r.ID = d.str("id", v)
		case "cluster_id":
			r.ClusterID = d.id("cluster_id", v)
		case "generation":
			r.Generation = d.num("generation", v)
		case "survivor":
			d.closed("survivor", v, func(name string, v node) bool {
				switch name {
				case "id":
					r.Survivor.ID = d.id("survivor.id", v)
				case "name":
					r.Survivor.Name = d.str("survivor.name", v)
				default:
					return false
				}
				return true
			})
		case "nonce":
			r.Nonce = d.str("nonce", v)
		case "claim_nonce":
			r.ClaimNonce = d.str("claim_nonce", v)
		case "reason":
			r.Reason = d.str("reason", v)
		case "created_at":
			r.CreatedAt = d.time("created_at", v)
		case "claimed_at":
			r.ClaimedAt = d.time("claimed_at", v)
		case "written_at":
			r.WrittenAt = d.time("written_at", v)
		case "claim_end":
			r.ClaimEnd = d.position("claim_end", v)
		case "fork":
			r.Fork = d.position("fork", v)
		case "confirmed":
			r.Confirmed = d.position("confirmed", v)
		case "confirmed_at":
			r.ConfirmedAt = d.time("confirmed_at", v)
		case "whole":
			d.whole(&r, v)
		case "mark":
			d.closed("mark", v, func(name string, v node) bool {
				switch name {
				case "generation":
					r.MarkGeneration = d.num("mark.generation", v)
				case "index":
					r.MarkIndex = d.num("mark.index", v)
				default:
					return false
				}
				return true
			})
		case "drain":
			r.Drain = d.flag("drain", v)
		case "pause":
			r.Pause = d.flag("pause", v)
		case "forced":
			r.Forced = d.flag("forced", v)
		case "history":
			d.history(&r, v)
		default:
			extra = append(extra, f)
		}
	}
	r.Extra = extraOf(extra)
	return r
}

func extraOf(fields []field) string {
	if len(fields) == 0 {
		return ""
	}
	return string(appendCanonical(nil, node{kind: kindObject, fields: fields}))
}

// closed reads an object that newer writers of this version do not extend.
func (d *decoder) closed(path string, n node, set func(name string, v node) bool) {
	if !d.is(path, n, kindObject) {
		return
	}
	for _, f := range n.fields {
		if !set(f.name, f.value) {
			d.fail("%s has the unknown field %.80q", path, f.name)
		}
	}
}

func (d *decoder) str(path string, n node) string {
	d.is(path, n, kindString)
	return n.text
}

func (d *decoder) flag(path string, n node) bool {
	d.is(path, n, kindBool)
	return n.text == "true"
}

func (d *decoder) num(path string, n node) uint64 {
	if !d.is(path, n, kindNumber) {
		return 0
	}
	u, err := strconv.ParseUint(n.text, 10, 64)
	if err != nil {
		d.fail("%s is %.40s, not a whole number below 2^64", path, n.text)
	}
	return u
}

func (d *decoder) id(path string, n node) uint64 {
	if !d.is(path, n, kindString) {
		return 0
	}
	id, err := ParseID(n.text)
	if err != nil {
		d.fail("%s: %w", path, err)
	}
	return id
}

func (d *decoder) time(path string, n node) int64 {
	if !d.is(path, n, kindString) {
		return 0
	}
	t, err := time.Parse(timeLayout, n.text)
	if err != nil || formatTime(t.UnixMilli()) != n.text {
		d.fail("%s is %.40q, not a time like %q", path, n.text, formatTime(0))
		return 0
	}
	return t.UnixMilli()
}

func (d *decoder) position(path string, n node) (p Position) {
	d.closed(path, n, func(name string, v node) bool {
		switch name {
		case "index":
			p.Index = d.num(path+".index", v)
		case "term":
			p.Term = d.num(path+".term", v)
		default:
			return false
		}
		return true
	})
	return p
}

func (d *decoder) whole(r *Record, n node) {
	d.closed("whole", n, func(name string, v node) bool {
		switch name {
		case "generation":
			r.WholeGeneration = d.num("whole.generation", v)
		case "members":
			if !d.is("whole.members", v, kindArray) {
				return true
			}
			if len(v.items) != len(r.WholeMembers) {
				d.fail("whole.members has %d members, not %d", len(v.items), len(r.WholeMembers))
				return true
			}
			for i, m := range v.items {
				r.WholeMembers[i] = d.id(fmt.Sprintf("whole.members[%d]", i), m)
			}
		case "at":
			r.WholeAt = d.time("whole.at", v)
		default:
			return false
		}
		return true
	})
}

func (d *decoder) history(r *Record, n node) {
	if !d.is("history", n, kindArray) {
		return
	}
	if len(n.items) > HistoryLen {
		d.fail("history has %d entries, at most %d", len(n.items), HistoryLen)
		return
	}
	for i, v := range n.items {
		path := fmt.Sprintf("history[%d]", i)
		if !d.is(path, v, kindObject) {
			return
		}
		var e HistoryEntry
		var extra []field
		for _, f := range v.fields {
			switch f.name {
			case "first":
				e.First = d.num(path+".first", f.value)
			case "last":
				e.Last = d.num(path+".last", f.value)
			case "survivor":
				e.Survivor = d.id(path+".survivor", f.value)
			case "fork":
				e.Fork = d.position(path+".fork", f.value)
			case "forced":
				e.Forced = d.flag(path+".forced", f.value)
			case "by":
				e.By = d.str(path+".by", f.value)
			case "at":
				e.At = d.time(path+".at", f.value)
			default:
				extra = append(extra, f)
			}
		}
		e.Extra = extraOf(extra)
		if e == (HistoryEntry{}) {
			d.fail("%s is empty", path)
		}
		r.History[i] = e
	}
}
