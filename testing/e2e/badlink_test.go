package e2e

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"twok/internal/lab"
)

// badLink passes connections to a store, late or cut. Every call of a register has a
// connection of its own, so that what happens to a connection happens to a call.
type badLink struct {
	l      net.Listener
	target string
	wg     sync.WaitGroup
	// A connection is cut before so many bytes of it have passed.
	request, answer int64

	mu    sync.Mutex
	delay time.Duration // before anything of a new connection passes
	cut   bool          // every second connection, on average, is cut somewhere
	cuts  int
}

func newBadLink(t *testing.T, target string) *badLink {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &badLink{l: l, target: target, request: 1200, answer: 600}
	b.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.wg.Go(func() { b.carry(c) })
		}
	})
	t.Cleanup(func() { l.Close(); b.wg.Wait() })
	return b
}

func (b *badLink) set(delay time.Duration, cut bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.delay, b.cut = delay, cut
}

// count is how many connections were cut.
func (b *badLink) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cuts
}

func (b *badLink) carry(client net.Conn) {
	defer client.Close()
	b.mu.Lock()
	delay, cut := b.delay, b.cut && rand.IntN(2) == 0
	if cut {
		b.cuts++
	}
	b.mu.Unlock()
	time.Sleep(delay) // what the client has sent waits, and arrives also if the client has gone
	store, err := net.Dial("tcp", b.target)
	if err != nil {
		return
	}
	defer store.Close()
	const whole = int64(1 << 40)
	there, back := whole, whole
	if cut {
		if there = rand.Int64N(b.request); rand.IntN(2) == 0 {
			there, back = back, rand.Int64N(b.answer)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.CopyN(client, store, back)
		client.Close() // the answer is over, or cut
		if back < whole {
			store.Close()
		}
	}()
	io.CopyN(store, client, there)
	if there < whole {
		client.Close()
		store.Close()
	} else {
		store.(*net.TCPConn).CloseWrite() // the client has gone; the store has its request
	}
	<-done
}

// An arbiter that fails half its calls at any byte, over and over: what was sent may have arrived, and one
// survives, and the pair becomes whole.
//
// Rules: A1, P1, P3, P7, P8; F29, F30, F37.
func TestBadLinkToTheArbiter(t *testing.T) {
	t.Parallel()
	for i, kind := range backingKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			onBadLink(t, back(t, kind), lab.Minors[(i+1)%len(lab.Minors)])
		})
	}
}

func onBadLink(t *testing.T, b *backing, minor string) {
	t.Helper()
	p := b.under(t, minor)
	p.must(p.Start(p.within()))
	before := p.whole().Generation
	p.write()
	b.link.set(0, true)
	p.CutLink()
	p.written("a write by the survivor")
	p.HealLink()
	if rec := p.wholeAndAudited(); rec.Generation <= before {
		t.Errorf("generation %d, it was %d", rec.Generation, before)
	}
	if cuts := b.link.count(); cuts < 5 {
		t.Errorf("only %d connections were cut", cuts)
	}
}

// At the product's own timing: an arbiter that takes 2 s for each call, within a call's deadline of 5 s, costs time
// and nothing else; one of 10 s is none: nobody writes in a cut until the link is back, or the arbiter is near
// again. What was sent to it arrives all the same.
//
// Rules: A1, P1, P7, P8; F13, F37.
func TestSlowArbiter(t *testing.T) {
	if !full {
		t.Skip("takes some minutes: TWOK_E2E=full")
	}
	for _, kind := range backingKinds {
		t.Run(kind, func(t *testing.T) { onSlowLink(t, back(t, kind)) })
	}
}

func onSlowLink(t *testing.T, b *backing) {
	t.Helper()
	p := b.under(t, "3.7", func(c *lab.Config) { c.ClaimAfter, c.Timing, c.AgentFlags = 0, lab.Default, nil })
	p.must(p.Start(p.within()))
	before := p.whole().Generation
	p.write()
	lap := func(what string, begin time.Time) {
		t.Logf("%s: %s: %.1f s", b.kind, what, time.Since(begin).Seconds())
	}
	for _, delay := range []time.Duration{0, 2 * time.Second} {
		b.link.set(delay, false)
		begin := time.Now()
		p.CutLink()
		p.written("a write by the survivor")
		lap("an arbiter of "+delay.String()+", from the cut to the first write", begin)
		begin = time.Now()
		p.HealLink()
		rec := p.wholeAndAudited()
		lap("an arbiter of "+delay.String()+", from the heal to whole", begin)
		if rec.Generation <= before {
			t.Errorf("generation %d, it was %d", rec.Generation, before)
		}
		before = rec.Generation
	}

	b.link.set(10*time.Second, false)
	far := func() {
		t.Helper()
		p.CutLink()
		for _, name := range lab.Sites {
			p.role(name, "leaderless")
			p.reason(name, "arbiter-unavailable")
		}
		p.silent("a cut pair whose arbiter is far away", 40*time.Second)
	}
	far()
	begin := time.Now()
	p.HealLink()
	p.written("a write after the link came back, the arbiter far away")
	lap("an arbiter of 10s, from the heal to the first write, without a claim", begin)
	if rec := p.record(); rec.Generation != before {
		t.Errorf("generation %d, it was %d", rec.Generation, before)
	}
	far()
	begin = time.Now()
	b.link.set(0, false)
	p.written("a write after the arbiter came near")
	lap("an arbiter of 10s, from when it is near to the first write", begin)
	p.HealLink()
	if rec := p.wholeAndAudited(); rec.Generation <= before {
		t.Errorf("generation %d, it was %d", rec.Generation, before)
	}
}
