package lab

import (
	"syscall"
	"testing"
)

// TestSeen: what runs, is frozen, and is down.
//
// Rules: none (the laboratory itself).
func TestSeen(t *testing.T) {
	c := startPlain(t, Plain)
	s := c.Site("a")
	look := func(want ProcState) {
		t.Helper()
		etcd, agent, err := s.Seen()
		if err != nil || etcd != want || agent != Down {
			t.Errorf("etcd %s, agent %s, %v; etcd is %s", etcd, agent, err, want)
		}
	}
	look(Running)
	if err := s.SignalEtcd(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	look(Frozen)
	if err := s.SignalEtcd(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	look(Down)
}
