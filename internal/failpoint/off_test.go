//go:build !failpoints

package failpoint_test

import (
	"testing"

	"twok/internal/failpoint"
)

const offStep = "test/off"

var _ = failpoint.Declare(offStep)

// Without the tag the environment is not even read.
//
// Rules: none (test support).
func TestOff(t *testing.T) {
	t.Setenv(failpoint.Env, offStep+"=error;garbage")
	if err := failpoint.Hit(offStep); err != nil {
		t.Fatalf("Hit without the tag: %v", err)
	}
	if failpoint.Enabled || failpoint.List() != nil {
		t.Fatal("the build without the tag says it has failpoints")
	}
	if failpoint.Set(offStep+"=error") == nil {
		t.Fatal("Set accepted a specification that cannot act")
	}
	if n := testing.AllocsPerRun(100, func() { _ = failpoint.Hit(offStep) }); n != 0 {
		t.Fatalf("Hit allocates %v times", n)
	}
}
