package agent

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"twok/internal/failover"
	"twok/internal/member"
)

// What an agent leaves in a data directory belongs to the directory's owner, also when it ran as root: the
// next one may run as etcd's user.
//
// Rules: P16, P20; F9.
func TestMemoryBelongsToOwner(t *testing.T) {
	dir, uid := t.TempDir(), os.Geteuid()
	if uid == 0 {
		uid = 12345
		if err := os.Chown(dir, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	lock, err := member.AgentLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, _, err := loadMemory(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.setOwn(failover.Own{RecordID: "r", Generation: 2}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{MemoryName, member.AgentLockName} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, name), &st); err != nil || int(st.Uid) != uid {
			t.Errorf("%s: owner %d, want %d; %v", name, st.Uid, uid, err)
		}
	}
	if err := lock.Close(); err != nil {
		t.Error(err)
	}
}

// The name under which a store passed is kept when the member has another ID, and when the store fails; a store that
// passes under the new one replaces it.
//
// Rules: A1; F9.
func TestProbeAs(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		arbiter      string
		as           uint64 // of setProbed
		member, want uint64 // of probeAs, after a restart
	}{
		{"", 0, 7, 7}, // failed, and never passed
		{"one", 7, 7, 7},
		{"one", 7, 8, 7},
		{"", 0, 8, 7},
		{"two", 8, 8, 8},
		{"two", 8, 9, 8},
	} {
		m, _, err := loadMemory(dir)
		if err == nil {
			err = m.setProbed(c.arbiter, c.as)
		}
		if err != nil {
			t.Fatal(err)
		}
		if m, _, err = loadMemory(dir); err != nil {
			t.Fatal(err)
		}
		if got := m.probeAs(c.member); got != c.want || m.probed() != c.arbiter {
			t.Errorf("%+v: as %d, passed %q", c, got, m.probed())
		}
	}
}

// A generation that could not be written, since the disk was full or read-only, is written with the next read of the same: the
// core, and the next agent, must not take a lower one (P17).
//
// Rules: P17; F31.
func TestGenerationIsWrittenLater(t *testing.T) {
	dir := t.TempDir()
	m, _, err := loadMemory(dir)
	if err != nil {
		t.Fatal(err)
	}
	blocked := filepath.Join(dir, MemoryName+".tmp")
	if err := os.Mkdir(blocked, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // each attempt says so
		if _, err := m.see("r", 7); err == nil {
			t.Fatal("a write to a directory")
		}
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	if _, err := m.see("r", 7); err != nil {
		t.Fatal(err)
	}
	written, err := os.Stat(m.path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.see("r", 7); err != nil {
		t.Fatal(err)
	}
	if again, err := os.Stat(m.path); err != nil || !os.SameFile(written, again) {
		t.Errorf("written again, although nothing was due; %v", err)
	}
	if m, _, err = loadMemory(dir); err != nil {
		t.Fatal(err)
	}
	if before, err := m.see("r", 6); err != nil || before != 7 {
		t.Errorf("the next agent remembers generation %d, %v, want 7", before, err)
	}
}
