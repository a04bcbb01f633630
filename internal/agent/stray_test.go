package agent

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"twok/arbiter/httpcas"
	"twok/internal/etcdproc"
)

// An agent that starts ends an etcd that has a replaced database open: its predecessor was killed
// between the exchange of the member directory and the end of the etcd that waited for the old lock.
//
// Rules: P12, P13.
func TestStrayEtcdIsEvicted(t *testing.T) {
	data := t.TempDir()
	snap := filepath.Join(data, "member.prepared-00000000000000aa", "snap")
	if err := os.MkdirAll(snap, 0o700); err != nil {
		t.Fatal(err)
	}
	stray := exec.Command("sleep", "60")
	db, err := os.Create(filepath.Join(snap, "db"))
	if err != nil {
		t.Fatal(err)
	}
	stray.ExtraFiles = []*os.File{db}
	if err := stray.Start(); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- stray.Wait() }()
	t.Cleanup(func() { _ = stray.Process.Kill() }) // it may have ended

	etcd, err := etcdproc.NewSignal(etcdproc.Config{DataDir: data})
	if err != nil {
		t.Fatal(err)
	}
	reg, err := httpcas.New(httpcas.Config{URL: "http://127.0.0.1:1/pair"})
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{DataDir: data, ClientURL: "http://127.0.0.1:1", PeerURL: "http://127.0.0.1:1", Arbiter: reg, Etcd: etcd})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	run := make(chan error, 1)
	go func() { run <- a.Run(ctx) }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the stray process goes on")
	}
	cancel()
	if err := <-run; err != nil {
		t.Error(err)
	}
}
