package fault

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"twok/testing/cluster"
	"twok/testing/history"
)

func stage() *Stage {
	return &Stage{Rec: history.NewRecorder(), Rand: rand.New(rand.NewPCG(1, 1)), Note: func(string, ...any) {}}
}

// call begins a write, and returns what ends it.
func call(s *Stage, site string) (answered func(history.Outcome)) {
	id := s.Rec.Call(history.Op{Site: site, Kind: history.Unique, Writes: []history.Write{{Key: "u", Value: "v"}}})
	return func(out history.Outcome) {
		s.Rec.Return(id, func(o *history.Op) { o.Outcome, o.Applied, o.Revision = out, true, 2 })
	}
}

// Silence is broken by a write that began in it and was acknowledged, and by nothing else.
//
// Rules: none (the harness).
func TestSilence(t *testing.T) {
	for _, c := range []struct {
		name  string
		prior bool // the write began before
		out   history.Outcome
		bad   bool
	}{
		{"a write that began before", true, history.OK, false},
		{"a write that is acknowledged", false, history.OK, true},
		{"a write of unknown outcome", false, history.Unknown, false},
		{"a write that fails", false, history.Failed, false},
	} {
		s := stage()
		var end func(history.Outcome)
		if c.prior {
			end = call(s, "a")
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			time.Sleep(20 * time.Millisecond)
			if end == nil {
				end = call(s, "a")
			}
			end(c.out)
			for range tries {
				call(s, "b")(history.Unknown)
			}
		}()
		err := s.silence(t.Context(), c.name, 200*time.Millisecond)
		<-done
		if (err != nil) != c.bad {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// A silence is longer than claim-after and the head start, with etcd's own timing too: else it would show nothing.
//
// Rules: none (the harness).
func TestLonger(t *testing.T) {
	var fast, own cluster.Cluster
	own.Options.Real = true
	if d := longer(3*time.Second, fast.ClaimAfter()); d != 3*time.Second {
		t.Errorf("%s, and claim-after is %s", d, fast.ClaimAfter())
	}
	if d := longer(3*time.Second, own.ClaimAfter()); d != 30*time.Second {
		t.Errorf("%s, and claim-after is %s", d, own.ClaimAfter())
	}
}

// A key may be missing when its lease may have expired, not before.
//
// Rules: none (the harness).
func TestEarly(t *testing.T) {
	at := time.Now()
	keys := map[string]time.Time{"a": at, "b": at.Add(time.Second)}
	for _, c := range []struct {
		there map[string]bool
		by    time.Time
		left  int
		bad   bool
	}{
		{map[string]bool{"a": true, "b": true}, at.Add(-time.Hour), 2, false},
		{map[string]bool{"b": true}, at, 1, false},
		{map[string]bool{"b": true}, at.Add(-time.Millisecond), 0, true},
		{map[string]bool{"a": true}, at, 0, true},
		{nil, at.Add(time.Second), 0, false},
	} {
		if left, err := early(keys, c.there, c.by); (err != nil) != c.bad || !c.bad && left != c.left {
			t.Errorf("%v at %s: %d are left, %v", c.there, c.by.Sub(at), left, err)
		}
	}
}

// In a silence in which nobody tries to write, nothing is silent: it goes on.
//
// Rules: none (the harness).
func TestSilenceOfNobody(t *testing.T) {
	s := stage()
	call(s, "a") // without an answer
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.silence(ctx, "nobody", time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody tried: %v", err)
	}
	result := make(chan error, 1)
	go func() { result <- s.silence(t.Context(), "late", time.Millisecond) }()
	time.Sleep(50 * time.Millisecond)
	for range tries {
		call(s, "a")(history.Unknown)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
	go func() { result <- s.silence(t.Context(), "late", time.Millisecond) }()
	time.Sleep(50 * time.Millisecond)
	call(s, "a")(history.OK)
	if err := <-result; err == nil {
		t.Error("a write that was acknowledged while the silence went on")
	}
}

// Writes waits for acknowledged writes that began after the call, at the site that it was asked for.
//
// Rules: none (the harness).
func TestWrites(t *testing.T) {
	s := stage()
	old := call(s, "a")
	result := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { result <- s.WritesAt(ctx, "a", 1) }()
	time.Sleep(50 * time.Millisecond)
	old(history.OK)
	call(s, "a")(history.Unknown)
	call(s, "b")(history.OK)
	select {
	case err := <-result:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	call(s, "a")(history.OK)
	if err := <-result; err != nil {
		t.Error(err)
	}
	go func() { result <- s.WritesAt(ctx, "b", 1) }()
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("a context that ended: %v", err)
	}
}
