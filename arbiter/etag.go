package arbiter

import (
	"errors"
	"fmt"
	"strings"
)

// StrongETag accepts a quoted tag of at least one character (RFC 9110, 8.8.3): what a store over HTTP
// must send for a swap. Its error says what is wrong with the tag.
func StrongETag(tag string) error {
	switch {
	case strings.HasPrefix(tag, "W/"):
		return errors.New("it is weak")
	case len(tag) < 2 || tag[0] != '"' || tag[len(tag)-1] != '"':
		return errors.New("it is not quoted")
	case len(tag) == 2:
		return errors.New("it is empty")
	case len(tag) > 1024:
		return errors.New("it is longer than 1024 bytes")
	}
	for _, c := range []byte(tag[1 : len(tag)-1]) {
		if c <= ' ' || c == '"' || c == 0x7f {
			return fmt.Errorf("it contains %q", c)
		}
	}
	return nil
}
