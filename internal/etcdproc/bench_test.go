package etcdproc

import (
	"testing"

	"twok/internal/member/locktest"
)

// What a poll costs with etcd known, and a search of all processes.
func BenchmarkProcess(b *testing.B) {
	s := locktest.NewSite(b, "3.6")
	s.Start(b)
	s.Ready(b, s.Dial(b))
	e, err := NewSignal(Config{DataDir: s.Dir})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("known", func(b *testing.B) {
		for b.Loop() {
			if !e.Process().Running {
				b.Fatal("not found")
			}
		}
	})
	b.Run("search", func(b *testing.B) {
		for b.Loop() {
			if ps, err := e.(*signalled).find.scan(); err != nil || len(ps) != 1 {
				b.Fatal(ps, err)
			}
		}
	})
}
