package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"twok/internal/etcdapi"
	"twok/internal/etcdproc"
)

// briefEtcd lives for a fifth of each second, and never when a whole one is full.
type briefEtcd struct {
	silentEtcd
	began time.Time
}

func (e briefEtcd) Flags(context.Context) (etcdproc.Flags, error) {
	if at := time.Since(e.began) % time.Second; at < 600*time.Millisecond || at > 800*time.Millisecond {
		return etcdproc.Flags{}, etcdproc.ErrNotRunning
	}
	return etcdproc.Flags{Name: "b", PeerURLs: []string{"http://b:2380"}, PreVote: true,
		Cluster: map[string][]string{"a": {"http://a:2380"}, "b": {"http://b:2380"}}}, nil
}

// On a replaced disk in signal mode an etcd that lives for a moment only, again and again, still tells who this member and
// the other one are.
//
// Rules: P12; F13.
func TestFlagsOfABriefEtcd(t *testing.T) {
	dir := t.TempDir()
	mem, _, err := loadMemory(dir)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{DataDir: dir, ClientURL: "http://127.0.0.1:1", PeerURL: "http://127.0.0.1:1", Etcd: briefEtcd{began: time.Now()}}.Default()
	w, err := newWatcher(cfg, &etcdapi.Dialer{}, mem)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() { defer close(done); w.run(ctx) }()
	for ctx.Err() == nil && len(mem.site().PeerURLs) == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	<-done
	if s := mem.site(); s.Name != "b" || !slices.Equal(s.PeerURLs, []string{"http://b:2380"}) || len(s.Other) != 1 || s.Other[0].Name != "a" {
		t.Errorf("learned %+v", s)
	}
}

// What lies on a directory that was mounted over the agent's since its start is not started: the agent's lock and memory are another
// directory's. The agent's own, put back, is.
//
// Rules: P12, P16, P20.
func TestDataMountedOver(t *testing.T) {
	data := t.TempDir()
	a := &Agent{cfg: Config{DataDir: data, Logger: zap.NewNop()}.Default(), log: zap.NewNop(), watch: &watcher{}}
	var err error
	if a.dir, err = os.Stat(data); err != nil {
		t.Fatal(err)
	}
	may := func(when string, want bool) {
		t.Helper()
		if got := a.mayStart(); got != want || a.watch.blank.Load() == want {
			t.Errorf("%s: may start %t, blank %t; want %t", when, got, a.watch.blank.Load(), want)
		}
	}
	wal := os.DirFS(filepath.Join("..", "..", "walsurgery", "testdata", "wal-3.6"))
	may("empty", false)
	if err := os.Rename(data, data+".below"); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(data, "member", "wal"), wal); err != nil {
		t.Fatal(err)
	}
	may("another directory", false)
	if err := errors.Join(os.Rename(data, data+".other"), os.Rename(data+".below", data)); err != nil {
		t.Fatal(err)
	}
	may("its own, empty", false)
	if err := os.CopyFS(a.cfg.walDir(), wal); err != nil {
		t.Fatal(err)
	}
	may("its own, with data", true)
	if err := os.RemoveAll(filepath.Join(data, "member")); err != nil {
		t.Fatal(err)
	}
	may("emptied again", false)
	a.unblank(true)
	may("let go by a section", false)
	a.unblank(false)
	if a.watch.blank.Load() || !a.mayStart() {
		t.Error("the core knows that there is no record: it may begin")
	}
}
