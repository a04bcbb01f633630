package walsurgery

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"twok/internal/failpoint"
)

// The operations are killed at each named step, in a process of their own.

var surgeon = sync.OnceValues(func() (string, error) {
	bin := filepath.Join(fixtureDir, "surgeon")
	out, err := exec.Command("go", "build", "-tags", "failpoints", "-o", bin, "./testdata/surgeon").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build surgeon: %v\n%s", err, out)
	}
	return bin, err
})

// cut runs the surgeon under a failpoint specification.
func cut(t testing.TB, spec string, args ...string) (*os.ProcessState, string) {
	t.Helper()
	return cutWith(t, []string{failpoint.Env + "=" + spec}, args...)
}

func cutWith(t testing.TB, env []string, args ...string) (*os.ProcessState, string) {
	t.Helper()
	bin, err := surgeon()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState, string(out)
}

func mustCut(t testing.TB, args ...string) string {
	t.Helper()
	st, out := cut(t, "", args...)
	if !st.Success() {
		t.Fatalf("surgeon %v: %v\n%s", args, st, out)
	}
	return strings.TrimSpace(out)
}

func mustDie(t testing.TB, step string, args ...string) {
	t.Helper()
	st, out := cut(t, step+"=kill", args...)
	if ws := st.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("surgeon %v did not reach %s: %v\n%s", args, step, st, out)
	}
}

// steps are the declared steps of one operation, from the program itself: a new
// step is covered without a change here.
func steps(t testing.TB, prefix string, atLeast int) []string {
	t.Helper()
	var out []string
	for _, s := range strings.Fields(mustCut(t, "list")) {
		if strings.HasPrefix(s, prefix) {
			out = append(out, s)
		}
	}
	if len(out) < atLeast {
		t.Fatalf("steps %s*: %v", prefix, out)
	}
	return out
}

// entriesOf reads all entries of a WAL.
func entriesOf(t testing.TB, dir string) []Entry {
	t.Helper()
	l, err := Inspect(nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return slices.Collect(l.Entries())
}

func sameEntry(a, b Entry) bool {
	return a.Index == b.Index && a.Term == b.Term && a.Kind == b.Kind && string(a.Data) == string(b.Data) && a.Err == nil && b.Err == nil &&
		a.Change.Type == b.Change.Type && a.Change.NodeID == b.Change.NodeID && string(a.Change.Context) == string(b.Change.Context)
}

// idles starts etcd on each member, whose peer is away, sees that it comes up and
// that it is alive half a second, several election timeouts, later. Then it kills them.
func idles(t testing.TB, members ...*member) {
	t.Helper()
	for _, m := range members {
		m.start()
	}
	for _, m := range members {
		m.eventually("peer port", m.peerUp)
	}
	time.Sleep(500 * time.Millisecond)
	for _, m := range members {
		select {
		case <-m.dead:
			t.Fatalf("etcd died on the result of a killed operation:\n%s", m.log())
		default:
		}
		if err := m.peerUp(context.Background()); err != nil {
			t.Fatal(err)
		}
		m.kill()
		if log := m.log(); strings.Contains(log, "panic") {
			t.Fatalf("etcd panicked:\n%s", log)
		}
	}
}

// The append is killed at each step. The log then still begins with every entry
// that was there, etcd starts on it, and the append done again lets etcd lead
// alone with every acknowledged write.
//
// Rules: P8, P9.
func TestAppendKilledAtEachStep(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		cr := crash(t, version)
		for n, step := range steps(t, "wal/append/", 5) {
			i := n % 2
			m, other := cr.restore(t, i), fmt.Sprintf("%x", cr.ids[1-i])
			before := entriesOf(t, m.wal())
			l, err := Inspect(nil, m.wal())
			if err != nil {
				t.Fatal(err)
			}
			old := l.Summary()
			p, err := l.Plan([]uint64{cr.ids[1-i]})
			if err != nil {
				t.Fatal(err)
			}
			l.Close()
			mustDie(t, step, "append", m.wal(), other)
			after := entriesOf(t, m.wal())
			if len(after) < len(before) || !slices.EqualFunc(after[:len(before)], before, sameEntry) {
				t.Fatalf("%s: %d entries before, %d after, or changed ones", step, len(before), len(after))
			}
			l, err = Inspect(nil, m.wal())
			if err != nil {
				t.Fatal(err)
			}
			l.Close()
			if got, want := l.Summary(), durableAt(step, old, p); got.HardState != want.HardState || got.Last != want.Last {
				t.Fatalf("%s: durable is %s, should be %+v at %s", step, got, want.HardState, want.Last)
			}
			idles(t, m)
			mustCut(t, "append", m.wal(), other)
			m.start()
			leadsAlone(t, m, cr.acked)
			m.kill()
		}
	})
}

// durableAt is what the disk must hold when the append was killed at a step (P8).
func durableAt(step string, old Summary, p Plan) Summary {
	out := Summary{HardState: old.HardState, Last: old.Last}
	voted := HardState{Term: p.Term, Vote: p.Owner.MemberID, Commit: old.Commit}
	switch step {
	case stepAppendHardState:
		out.HardState = voted
	case stepAppendEntries, stepAppendCommit: // the commit is not synced yet
		out.HardState, out.Last = voted, p.End
	case stepAppendSynced:
		out.HardState, out.Last = HardState{Term: p.Term, Vote: p.Owner.MemberID, Commit: p.End.Index}, p.End
	}
	return out
}

// A step that fails instead leaves what the kill leaves, and an error.
//
// Rules: P9.
func TestAppendFailsAtEachStep(t *testing.T) {
	cr := crash(t, "3.6")
	m, other := cr.restore(t, 0), fmt.Sprintf("%x", cr.ids[1])
	last := entriesOf(t, m.wal())
	for _, step := range steps(t, "wal/append/", 5) {
		st, out := cut(t, step+"=error", "append", m.wal(), other)
		if st.ExitCode() != 1 || !strings.Contains(out, failpoint.ErrInjected.Error()) {
			t.Fatalf("%s: %v %s", step, st, out)
		}
		got := entriesOf(t, m.wal())
		if len(got) < len(last) || !slices.EqualFunc(got[:len(last)], last, sameEntry) {
			t.Fatalf("%s: entries changed", step)
		}
		last = got
	}
	mustCut(t, "append", m.wal(), other)
	m.start()
	leadsAlone(t, m, cr.acked)
}

// The rewrite is killed at each step: at every one etcd's WAL directory holds
// either the old log or the new one, whole; done again it completes, keeps the
// old log, and leaves nothing else.
//
// Rules: P12.
func TestRewriteKilledAtEachStep(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		cr := crash(t, version)
		const newID = 0xbeef
		for _, step := range steps(t, "wal/rewrite/", 5) {
			m := cr.restore(t, 0)
			entries, hash := entriesOf(t, m.wal()), dirHash(t, m.wal())
			mustDie(t, step, "rewrite", m.wal(), "beef")
			switch id := m.id(); {
			case id != newID && dirHash(t, m.wal()) != hash:
				t.Fatalf("%s: the old log was changed", step)
			case id == newID && step != stepRewriteExchanged && step != stepRewriteAside:
				t.Fatalf("%s: already exchanged", step)
			}
			if !slices.EqualFunc(entriesOf(t, m.wal()), entries, sameEntry) {
				t.Fatalf("%s: the log holds other entries", step)
			}
			idles(t, m.at(t, copied(t, m.dir)))
			aside := m.wal() + fmt.Sprintf(".before-%x", cr.ids[0])
			if said := mustCut(t, "rewrite", m.wal(), "beef"); said != aside && step != stepRewriteAside {
				t.Fatalf("%s: done again: set aside as %q", step, said)
			}
			if m.id() != newID || dirHash(t, aside) != hash {
				t.Fatalf("%s: done again: %x, old log in %q", step, m.id(), aside)
			}
			if !slices.EqualFunc(entriesOf(t, m.wal()), entries, sameEntry) {
				t.Fatalf("%s: done again: other entries", step)
			}
			if left := namesIn(t, filepath.Dir(m.wal())); len(left) != 3 { // snap, wal, wal.before-…
				t.Fatalf("%s: left behind: %v", step, left)
			}
			mustCut(t, "rewrite", m.wal(), "beef") // and once more: nothing to do
		}
	})
}

// An empty WAL is there whole or not at all.
//
// Rules: P13.
func TestCreateKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "wal")
	mustDie(t, stepCreated, "create", dir, "a", "b")
	if md, err := ReadMetadata(dir); err != nil || md != (Metadata{0xa, 0xb}) {
		t.Fatalf("%v %v", md, err)
	}
	if st, out := cut(t, "", "create", dir, "a", "b"); st.Success() || !strings.Contains(out, ErrExists.Error()) {
		t.Fatalf("%v %s", st, out)
	}
}

// The repair of a torn tail is killed at each step; the segment as it was is
// kept, and the append done again completes.
//
// Rules: P9.
func TestRepairKilledAtEachStep(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		cr := crash(t, version)
		for _, step := range steps(t, "wal/repair/", 2) {
			m := cr.restore(t, 1)
			seg := tear(t, m.wal(), 300)
			before, err := os.ReadFile(seg)
			if err != nil {
				t.Fatal(err)
			}
			mustDie(t, step, "append", m.wal(), fmt.Sprintf("%x", cr.ids[0]))
			idles(t, m.at(t, copied(t, m.dir)))
			mustCut(t, "append", m.wal(), fmt.Sprintf("%x", cr.ids[0]))
			if kept, err := os.ReadFile(seg + ".broken"); err != nil || string(kept) != string(before) {
				t.Fatalf("%s: the torn segment was not kept: %v", step, err)
			}
			m.start()
			m.awaitLeader()
			m.kill()
		}
	})
}

// tear appends the first n bytes of a frame whose rest never reached the disk,
// and returns the segment.
func tear(t testing.TB, walDir string, n int) string {
	t.Helper()
	s, err := scanDir(walDir)
	if err != nil {
		t.Fatal(err)
	}
	s.close()
	name := filepath.Join(walDir, s.segs[len(s.segs)-1].name)
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	frame := appendFrame(nil, recEntry, 1, []byte(strings.Repeat("x", 4096)), true)
	if _, err := f.WriteAt(frame[:n], s.off); err != nil {
		t.Fatal(err)
	}
	return name
}

func copied(t testing.TB, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	copyDir(t, dir, to)
	return to
}

func namesIn(t testing.TB, dir string) []string {
	t.Helper()
	d, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range d {
		out = append(out, e.Name())
	}
	return out
}
