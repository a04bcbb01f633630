package agent

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"twok/internal/etcdproc"
	"twok/internal/failover"
	"twok/internal/member"
	"twok/walsurgery"
)

// sectionAgent is an agent in a section on a copy of a stored WAL, beside an empty database; nothing runs there.
func sectionAgent(t *testing.T) *Agent {
	t.Helper()
	data := t.TempDir()
	cfg := Config{DataDir: data, Logger: zap.NewNop()}.Default()
	if err := os.CopyFS(cfg.walDir(), os.DirFS(filepath.Join("..", "..", "walsurgery", "testdata", "wal-3.6"))); err != nil {
		t.Fatal(err)
	}
	if err := member.Touch(data); err != nil {
		t.Fatal(err)
	}
	etcd, err := etcdproc.NewSignal(etcdproc.Config{DataDir: data})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Etcd = &handsOff{Etcd: etcd}
	mem, _, err := loadMemory(data)
	if err != nil {
		t.Fatal(err)
	}
	a := &Agent{cfg: cfg, log: cfg.Logger, mem: mem}
	if err := a.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.unlock(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// reads reads the data, expects that there is room, and returns them. The WAL is locked then.
func reads(t *testing.T, a *Agent) failover.Data {
	t.Helper()
	e := failover.Event{}
	if err := a.readData(failover.Action{}, &e); err != nil || e.Outcome != failover.Done || e.Why != failover.None {
		t.Fatalf("%v, %s: %v", e.Outcome, e.Why, err)
	}
	if locked, err := walsurgery.Locked(a.cfg.walDir()); err != nil || !locked {
		t.Fatalf("the WAL is locked: %v, %v", locked, err)
	}
	return e.Data
}

// A fenced member keeps its locks for as long as it takes. Room that was made meanwhile counts when it is to claim, or to return.
//
// Rules: P7, P16, P18; F31.
func TestHeldSectionSeesRoom(t *testing.T) {
	a := sectionAgent(t)
	if err := a.sec.log.Close(); err != nil {
		t.Fatal(err)
	}
	a.sec.space = walsurgery.ErrNoSpace // as stop leaves it on a full disk
	if a.sec.log, a.sec.walErr = walsurgery.Inspect(a.log, a.cfg.walDir()); a.sec.walErr != nil {
		t.Fatal(a.sec.walErr)
	}
	if err := a.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	reads(t, a)
}

// An append that failed uses up the log. The next one, in the same section, is made when its cause is gone.
//
// Rules: P7, P16, P18.
func TestAppendAgainInHeldSection(t *testing.T) {
	a := sectionAgent(t)
	d := reads(t, a)
	mine := filepath.Join(a.cfg.walDir()+".append-500000000", "mine")
	if err := os.MkdirAll(filepath.Dir(mine), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mine, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	act := failover.Action{Kind: failover.Append, Term: 6 << 32}
	if err := a.append(act); err == nil || !strings.Contains(err.Error(), "move it away") {
		t.Fatalf("beside a foreign file: %v", err)
	}
	if err := os.Remove(mine); err != nil {
		t.Fatal(err)
	}
	if got := reads(t, a); got != d {
		t.Fatalf("\n got %+v\nwant %+v", got, d)
	}
	if err := a.append(act); err != nil {
		t.Fatal(err)
	}
	if got := reads(t, a); got.Term != act.Term || got.Last.Index != d.Last.Index+1 {
		t.Fatalf("appended to %+v: %+v", d, got)
	}
}

// Of what stands beside the WAL only the logs that this program set aside are let go of, all but the newest, and none with
// anything in it that etcd does not put into a log.
//
// Rules: P12, P18.
func TestTidyKeepsWhatIsNotOurs(t *testing.T) {
	a := sectionAgent(t)
	wal := a.cfg.walDir()
	id := strconv.FormatUint(a.sec.log.Summary().MemberID, 16)
	if err := a.sec.log.Close(); err != nil {
		t.Fatal(err)
	}
	segment := ""
	beside := func(name string, at int, files ...string) {
		t.Helper()
		dir := wal + name
		if err := os.CopyFS(dir, os.DirFS(wal)); err != nil {
			t.Fatal(err)
		}
		segs, err := filepath.Glob(filepath.Join(dir, "*.wal"))
		if err != nil || len(segs) == 0 {
			t.Fatal(segs, err)
		}
		segment = segs[0]
		for _, f := range files {
			if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		when := time.Unix(int64(1e9+at), 0)
		if err := os.Chtimes(dir, when, when); err != nil {
			t.Fatal(err)
		}
	}
	beside(".before-"+id, 1)
	beside(".before-"+id+".1", 2, "notes.txt")
	beside(".before-upgrade", 3)
	beside(".before-20261130", 4)
	beside(".before-"+id+".2", 5, filepath.Base(segment)+".broken", filepath.Base(segment)+".broken.1", "0.tmp")
	beside(".before-"+id+".3", 6)
	beside(".before-"+id+"-mine", 7)
	if err := a.tidy(); err != nil {
		t.Fatal(err)
	}
	for name, kept := range map[string]bool{
		id: false, id + ".1": true, "upgrade": true, "20261130": true, id + ".2": false, id + ".3": true, id + "-mine": true,
	} {
		if _, err := os.Stat(filepath.Join(wal+".before-"+name, filepath.Base(segment))); (err == nil) != kept {
			t.Errorf("%s: kept %v, should be %v: %v", name, err == nil, kept, err)
		}
	}
	if _, err := os.Stat(filepath.Join(wal+".before-"+id+".1", "notes.txt")); err != nil {
		t.Error(err)
	}
}

// A log that was replaced when the agent was killed gets its name when the pair is whole, as if nothing had happened: what is beside the
// WAL does not stay under a name that nobody looks at.
//
// Rules: P12; F20.
func TestTidyNamesReplacedLog(t *testing.T) {
	a := sectionAgent(t)
	if err := a.sec.log.Close(); err != nil {
		t.Fatal(err)
	}
	aside, err := walsurgery.RewriteID(a.log, a.cfg.walDir(), 0x77)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(aside, a.cfg.walDir()+".staging-77"); err != nil { // killed after the exchange
		t.Fatal(err)
	}
	if err := a.tidy(); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(a.cfg.walDir() + ".*")
	if err != nil || len(left) != 1 || left[0] != aside {
		t.Errorf("%q, %v; want %q", left, err, aside)
	}
}
