package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"twok/arbiter/httpcas"
	"twok/internal/lab"
)

// One agent has a typo in its bucket's name, and there is such a bucket. Whoever leads first creates the record in its own;
// the other agent finds none, says so and never claims, whether the other site dies or the link is cut: at most one
// survives. With the right name the pair is whole again.
//
// Rules: P3, P4, P11; F11, F38.
func TestTwoStores(t *testing.T) {
	t.Parallel()
	b := back(t, "s3")
	if err := os.Mkdir(filepath.Join(b.dir, "store", "arbitre"), 0o700); err != nil { // a directory is a bucket
		t.Fatal(err)
	}
	p := b.under(t, "3.6", func(c *lab.Config) { c.CutArbiter = false })
	p.untraced = "the agents use two registers"
	typo := strings.Replace(b.url, "s3://arbiter/", "s3://arbitre/", 1)
	if typo == b.url {
		t.Fatalf("no bucket in %s", b.url)
	}
	p.Site("b").AgentFlags("--arbiter", typo)
	p.must(p.Start(p.within()))
	right, wrong := "", "" // whose store holds the record, and the other
	deadline := time.Now().Add(patience)
	for right == "" {
		for _, name := range lab.Sites {
			if h, err := p.Site(name).Health(p.within()); err == nil && h.Armed {
				right, wrong = name, lab.Other(name)
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("no agent is armed")
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Logf("the record is in the bucket of %s", right)
	p.reason(wrong, "record-absent")
	p.write()

	never := func(what string) {
		t.Helper()
		if n := p.did(wrong, "swap") + p.did(wrong, "append"); n != 0 {
			t.Errorf("%s: the agent without a record asked for %d swaps or appends", what, n)
		}
	}
	p.must(p.Site(right).Kill())
	p.role(wrong, "leaderless")
	p.silent("the site with the record is dead", 5*time.Second)
	never("the other site died")
	p.must(p.Site(right).Start())
	p.written("a write in the pair")
	p.health(right, "armed", func(h lab.Health) bool { return h.Armed })
	p.until(wrong+" leads", func(ctx context.Context) error {
		leader, err := p.Leader(ctx)
		if err != nil || leader == wrong {
			return err
		}
		st, err := p.Site(wrong).Status(ctx)
		if err == nil {
			_, err = p.client(right).MoveLeader(ctx, st.Header.MemberId)
		}
		return errors.Join(err, errors.New("it was asked to"))
	})
	p.steady("it creates no record of its own", 3*time.Second, func(ctx context.Context) error {
		if h, err := p.Site(wrong).Health(ctx); err != nil || h.Armed {
			return errors.Join(err, fmt.Errorf("it says %s", h))
		}
		return nil
	})
	never("it leads")

	p.CutLink()
	p.written("a write by the survivor")
	p.role(right, "alone")
	never("the link was cut")
	p.HealLink()
	if right == "a" {
		p.Site("b").AgentFlags()
	} else {
		p.Site("a").AgentFlags("--arbiter", typo)
	}
	p.Site(wrong).KillAgent()
	p.must(p.Site(wrong).StartAgent())
	p.health(wrong, "armed", func(h lab.Health) bool { return h.Armed && h.Whole })
	p.health(right, "armed", func(h lab.Health) bool { return h.Armed && h.Whole })
	p.written("a write in the whole pair")
	p.Log(p.audit())
}

// requests counts what a store is asked.
type requests struct {
	mu    sync.Mutex
	count map[string]int // by method; the scratch registers not
}

func (r *requests) take() (reads, writes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reads, writes = r.count[http.MethodGet], r.count[http.MethodPut]
	r.count = map[string]int{}
	return reads, writes
}

// What a store is asked at the product's own timing: at rest one read a minute of each agent and one write a minute of
// the pair; alone a read every five seconds and a write a minute; without a leader, as the loser in a cut, one read a
// second. With TWOK_E2E=full.
//
// Rules: P10, P15; F37.
func TestCosts(t *testing.T) {
	if !full {
		t.Skip("takes ten minutes: TWOK_E2E=full")
	}
	srv, err := httpcas.NewServer(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := &requests{count: map[string]int{}}
	hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if !strings.Contains(q.URL.Path, ".probe.") {
			r.mu.Lock()
			r.count[q.Method]++
			r.mu.Unlock()
		}
		srv.ServeHTTP(w, q)
	}))
	t.Cleanup(func() {
		hs.Close()
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	})
	// Nobody reads the record beside the agents: the pair's own way of seeing that it is whole does.
	p := prepare(t, "3.7", func(c *lab.Config) {
		c.Arbiter, c.CutArbiter, c.ClaimAfter, c.Timing, c.AgentFlags = hs.URL+"/pair", false, 0, lab.Default, nil
	})
	p.must(p.Start(p.within()))
	p.whole()
	p.write()
	measure := func(what string, minutes, maxReads, maxWrites int) {
		t.Helper()
		time.Sleep(10 * time.Second) // what the change itself costs
		r.take()
		time.Sleep(time.Duration(minutes) * time.Minute)
		reads, writes := r.take()
		t.Logf("%s: %d reads and %d writes in %d minutes", what, reads, writes, minutes)
		if reads > maxReads || writes > maxWrites {
			t.Errorf("%s: at most %d reads and %d writes were expected", what, maxReads, maxWrites)
		}
		if reads == 0 || writes == 0 {
			t.Errorf("%s: nothing was asked", what)
		}
	}
	measure("a whole pair at rest", 4, 2*4+2, 4+1)
	survivor := p.leader()
	p.must(p.Site(lab.Other(survivor)).Kill())
	p.role(survivor, "alone")
	p.until("the confirmation", p.confirmed)
	measure("a survivor alone", 2, 2*12+1, 2+1)
	p.must(p.Site(lab.Other(survivor)).Start())
	p.wholeAndAudited()
	p.CutLink()
	p.written("a write by the survivor")
	p.until("the confirmation", p.confirmed)
	measure("a survivor, and a loser without a leader", 2, 2*(12+60)+2, 2+1)
	p.HealLink()
	p.wholeAndAudited()
}
