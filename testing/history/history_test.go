package history

import (
	"strings"
	"testing"
)

// A value up to 8 kB is kept as it is; a longer one by its length and hash, so that two that differ in one byte differ.
//
// Rules: none (the harness).
func TestValue(t *testing.T) {
	long := strings.Repeat("x", brief)
	if Value([]byte(long)) != long {
		t.Error("it was not kept")
	}
	a, b := Value([]byte(long+"a")), Value([]byte(long+"b"))
	if a == b || len(a) > 100 || !strings.HasPrefix(a, "8193 bytes") {
		t.Errorf("%q, %q", a, b)
	}
}
