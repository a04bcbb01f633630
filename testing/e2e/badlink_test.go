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
	b := &badLink{l: l, target: target}
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
		if there = rand.Int64N(1200); rand.IntN(2) == 0 {
			there, back = back, rand.Int64N(600)
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

// An arbiter that is slow but within a call's deadline (a quarter of claim-after), one that
// is slower (what was sent arrives all the same), and one that fails half its calls at
// any byte: nothing is lost, one survives, and the pair becomes whole. With the
// product's claim-after of 20 s these are arbiters of 2 s and 10 s. An ordinary run has the third
// alone.
//
// Rules: A1, P1, P3, P7, P8; F13, F29, F30, F37.
func TestBadLinkToTheArbiter(t *testing.T) {
	claimAfter := 4 * time.Second
	if !full {
		claimAfter = 800 * time.Millisecond // calls that fail need no deadline
	}
	slow, far := claimAfter/10, claimAfter/2
	for i, kind := range lab.StoreKinds {
		if !full && i > 0 {
			continue // the registers' own tests cut every kind at every byte
		}
		t.Run(kind, func(t *testing.T) {
			store, use := realStore(t, kind)
			var links []*badLink
			via, err := lab.ArbiterVia(store.URL, func(target string) (string, error) {
				b := newBadLink(t, target)
				links = append(links, b)
				return b.l.Addr().String(), nil
			})
			if err != nil {
				t.Fatal(err)
			}
			link := links[0]
			p := start(t, "3.6", use, func(c *lab.Config) { c.Arbiter, c.ClaimAfter = via, claimAfter })
			before := p.whole().Generation
			for _, c := range []struct {
				what  string
				delay time.Duration
				cut   bool
			}{{"a slow arbiter", slow, false}, {"half the calls fail", 0, true}} {
				if !full && !c.cut {
					continue
				}
				link.set(c.delay, c.cut)
				p.CutLink()
				p.written("a write by the survivor: " + c.what)
				p.HealLink()
				rec := p.wholeAndAudited()
				if rec.Generation <= before {
					t.Errorf("%s: generation %d, it was %d", c.what, rec.Generation, before)
				}
				before = rec.Generation
			}
			link.mu.Lock()
			cuts := link.cuts
			link.mu.Unlock()
			if cuts < 5 {
				t.Errorf("only %d connections were cut", cuts)
			}

			link.set(0, false)
			if !full {
				return
			}

			link.set(far, false)
			for _, name := range lab.Sites {
				p.reason(name, "arbiter-unavailable")
			}
			p.written("a write in the pair, the arbiter far away")
			p.CutLink()
			for _, name := range lab.Sites {
				p.role(name, "leaderless")
			}
			p.silent("a cut pair whose arbiter is far away", 2*claimAfter)
			link.set(0, false)
			p.written("a write after the arbiter came near")
			p.HealLink()
			if rec := p.wholeAndAudited(); rec.Generation <= before {
				t.Errorf("generation %d, it was %d", rec.Generation, before)
			}
		})
	}
}
