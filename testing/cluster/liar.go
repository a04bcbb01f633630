package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"twok/arbiter"
	"twok/internal/lab"
)

// Lie is what a store does wrong.
type Lie string

// The lies. Honest is none.
const (
	Honest Lie = ""
	// Ignores: conditions, for every register. The probe sees that.
	Ignores Lie = "ignores conditions"
	// TakesAll: every swap of the pair's own record is taken, whatever it expects. The first claim that comes is held until
	// another one comes from the same version, so that two are told that they won.
	TakesAll Lie = "takes every swap of the record"
	// Stale: one site reads the record as it was. Swaps are judged rightly.
	Stale Lie = "answers stale reads of the record"
	// Split: each site has a copy of the record of its own, as in a replicated store whose replication broke. The copy that
	// was written last stays.
	Split Lie = "kept a record for each site"
	// RolledBack: the record is what it once was, version included, as after a backup was restored (Liar.RollBack).
	RolledBack Lie = "rolled the record back"
)

// What is no lie, but keeps a site in the dark. Neither counts in Liar.Lies.
const (
	// Mute: one site's claim is not taken, its connection ends, and from then on the site gets no answer.
	Mute Lie = "took no claim of one site, and answered it no more"
	// Silent: one site's first claim is taken, and its connection ends without an answer.
	Silent Lie = "took a claim of one site and did not answer"
)

// held is how long TakesAll holds a claim at most: less than an agent waits for a swap at a claim-after of LiarClaimAfter.
const held = 700 * time.Millisecond

// LiarClaimAfter is a claim-after at which both members' claims come within what TakesAll holds one for.
const LiarClaimAfter = 4 * time.Second

// Liar is an HTTP store that keeps its promises until it is told not to. Its registers are in memory.
type Liar struct {
	pair string // the path of the pair's record
	site func(remote string) string

	mu     sync.Mutex
	lie    Lie
	to     string // of Stale, Mute and Silent: the site
	gone   bool   // of Mute: the site's claim has come
	regs   map[string]entry
	past   entry            // the record as it was when the lie began
	copies map[string]entry // of Split, by site
	tag    int
	second chan struct{} // of TakesAll: a claim is held; closed when the other site's is there
	first  string        // the site that made it
	told   map[Lie]int
	swaps  int // of the record, asked for
	denied map[string]int
}

type entry struct {
	tag   string // empty: there is no value
	value []byte
}

// liar starts the store where the arbiter's site is.
func (c *Cluster) liar(cfg *lab.Config) error {
	if c.net == nil {
		return fmt.Errorf("a store that lies to one site: %w", ErrNoNamespaces)
	}
	l, err := c.net.Listen(lab.ArbiterSite, net.JoinHostPort(c.net.Host(lab.ArbiterSite), "0"))
	if err != nil {
		return fmt.Errorf("listen for the store that lies: %w", err)
	}
	c.Liar = &Liar{
		pair: "/pair", regs: map[string]entry{}, told: map[Lie]int{}, denied: map[string]int{},
		site: func(remote string) string {
			host, _, _ := net.SplitHostPort(remote) // an address of net/http's
			for _, s := range lab.Sites {
				if host == c.net.Host(s) {
					return s
				}
			}
			return ""
		},
	}
	c.Liar.Tell(c.Options.Lie, "")
	srv := &http.Server{Handler: c.Liar, ReadHeaderTimeout: 10 * time.Second}
	go srv.Serve(l) // it ends with Close
	c.closers = append(c.closers, srv.Close)
	cfg.Arbiter, cfg.CutArbiter = "http://"+l.Addr().String()+c.Liar.pair, false
	return nil
}

// Tell lets the store lie from now on. Stale, Mute and Silent take the site that it lies to.
func (l *Liar) Tell(lie Lie, site string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lie, l.to, l.gone = lie, site, false
	l.past, l.copies = l.regs[l.pair], map[string]entry{}
}

// RollBack makes the record what it was when Tell was called with RolledBack.
func (l *Liar) RollBack() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lie != RolledBack || l.past.tag == "" || l.past.tag == l.regs[l.pair].tag {
		return errors.New("roll the record back: nothing was swapped since the store was told to")
	}
	l.regs[l.pair] = l.past
	l.told[RolledBack]++
	return nil
}

// Told is how often the store did what an honest one cannot do.
func (l *Liar) Told(lie Lie) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told[lie]
}

// Lies is how often it lied about the record in any way.
func (l *Liar) Lies() (n int, which Lie) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range []Lie{TakesAll, Split, Stale, RolledBack} {
		if n += l.told[k]; l.told[k] > 0 {
			which = k
		}
	}
	return n, which
}

// Swaps is how many swaps of the record were asked for.
func (l *Liar) Swaps() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.swaps
}

// Denied is how many swaps of the record by this site were refused.
func (l *Liar) Denied(site string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.denied[site]
}

// ServeHTTP is the store.
func (l *Liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		panic(http.ErrAbortHandler) // the client has gone
	}
	site := l.site(r.RemoteAddr)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lie == Mute && site == l.to && (l.gone || r.Method == http.MethodPut && r.URL.Path == l.pair && claims(l.regs[l.pair].value, body)) {
		if !l.gone {
			l.gone = true
			l.told[Mute]++
		}
		panic(http.ErrAbortHandler)
	}
	switch r.Method {
	case http.MethodGet:
		l.get(w, r.URL.Path, site)
	case http.MethodPut:
		l.put(w, r, site, body)
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

func (l *Liar) get(w http.ResponseWriter, path, site string) {
	e := l.at(path, site)
	if l.lie == Stale && path == l.pair && site == l.to && e.tag != l.past.tag {
		e = l.past
		l.told[Stale]++
	}
	if e.tag == "" {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("ETag", e.tag)
	w.Header().Set("Content-Length", strconv.Itoa(len(e.value)))
	w.Write(e.value) // an error is the client's to notice
}

// at is what a site finds in a register.
func (l *Liar) at(path, site string) entry {
	if l.lie == Split && path == l.pair && site != "" {
		if e, there := l.copies[site]; there {
			return e
		}
		return l.past
	}
	return l.regs[path]
}

func (l *Liar) put(w http.ResponseWriter, r *http.Request, site string, body []byte) {
	path, match := r.URL.Path, r.Header.Get("If-Match")
	own := path == l.pair
	if own {
		l.swaps++
		if l.lie == TakesAll && match == l.regs[path].tag && claims(l.regs[path].value, body) {
			l.hold(site)
		}
	}
	e := l.at(path, site)
	right := e.tag != "" && match == e.tag || e.tag == "" && r.Header.Get("If-None-Match") == "*"
	switch {
	case right:
	case l.lie == Ignores:
		l.told[Ignores]++
	case l.lie == TakesAll && own:
		l.told[TakesAll]++
	default:
		if own {
			l.denied[site]++
		}
		w.WriteHeader(http.StatusPreconditionFailed)
		return
	}
	l.tag++
	next := entry{strconv.Quote(strconv.Itoa(l.tag)), body}
	if l.lie == Split && own && site != "" {
		if other, there := l.copies[lab.Other(site)]; there && other.tag != e.tag {
			l.told[Split]++ // the other site's swap of an older version was taken before
		}
		l.copies[site] = next
	}
	l.regs[path] = next
	if l.lie == Silent && own && site == l.to && l.told[Silent] == 0 && claims(e.value, body) {
		l.told[Silent]++
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("ETag", next.tag)
	w.WriteHeader(http.StatusNoContent)
}

// hold waits for the other site's claim, if this is the first one. While it does the record does not change.
func (l *Liar) hold(site string) {
	if l.second != nil {
		if l.first != site {
			close(l.second)
			l.second = nil
		}
		return
	}
	c := make(chan struct{})
	l.second, l.first = c, site
	l.mu.Unlock()
	select {
	case <-c:
	case <-time.After(held):
	}
	l.mu.Lock()
	if l.second == c {
		l.second = nil
	}
}

// claims says whether the swap makes a new generation.
func claims(old, next []byte) bool {
	a, aerr := arbiter.Decode(old)
	b, berr := arbiter.Decode(next)
	return aerr == nil && berr == nil && b.Generation > a.Generation
}

// Reason waits until a site's agent gives this reason.
func (c *Cluster) Reason(ctx context.Context, site, reason string) error {
	for {
		h, err := c.Site(site).Health(ctx)
		if err == nil && h.Reason == reason {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("%s is %s, not %q", site, h, reason)
		}
		if werr := wait(ctx, err); werr != nil {
			return werr
		}
	}
}
