package agent

import (
	"context"
	"slices"
	"testing"
	"time"

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
