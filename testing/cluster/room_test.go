package cluster

import "testing"

// Rules: none (disk space of the harness).
func TestRoom(t *testing.T) {
	if err := Room(t.TempDir(), 1); err != nil {
		t.Error(err)
	}
	if err := Room(t.TempDir(), 1<<60); err == nil {
		t.Error("every disk has room for an exabyte")
	}
}
