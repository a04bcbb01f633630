package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"twok/internal/lab"
	"twok/internal/member"
)

// TestCutBeforeToken: the link is cut after the promotion and before the token. The
// member that returned is a voter that may not claim; only the survivor can lead.
//
// Rules: P4, P14.
func TestCutBeforeToken(t *testing.T) {
	t.Parallel()
	p := start(t, "3.6")
	survivor := p.leader()
	back := p.Site(lab.Other(survivor))
	p.must(back.Kill())
	p.written("a write by the survivor")
	p.until("the confirmation", p.confirmed)
	gate := filepath.Join(p.dir, "token")
	p.restart(survivor, "agent/write-token/before=pause:"+gate)
	p.must(back.Start())
	p.until("the survivor's agent stands before the token", func(context.Context) error {
		_, err := os.Stat(gate + ".reached")
		return err
	})
	p.reason(back.Name, "token-pending")
	p.written("a write in a pair without its token")
	p.CutLink()
	// The survivor's agent is held. The other one could claim now, if it might.
	p.silent("a cut before the token", 5*time.Second)
	if rec := p.record(); rec.Generation != 2 || rec.Survivor.Name != survivor {
		t.Fatalf("generation %d, survivor %q", rec.Generation, rec.Survivor.Name)
	}
	p.must(os.WriteFile(gate, nil, 0o600))
	p.written("a write by the survivor")
	p.HealLink()
	if rec := p.wholeAndAudited(); rec.Survivor.Name != survivor {
		t.Errorf("%s survives", rec.Survivor.Name)
	}
}

// TestTokenIsRenewed: while clients write, the leader's agent writes the token again, the pair stays armed, and a survivor
// whose data hold a renewed token claims. Without writes the token stays.
//
// Rules: P5, P14; F31.
func TestTokenIsRenewed(t *testing.T) {
	t.Parallel()
	p := start(t, "3.7", func(c *lab.Config) {
		c.AgentFlags = append(c.AgentFlags, "--token-interval", "1s")
	})
	revision := func() int64 {
		get, err := p.client(p.leader()).Get(p.within(), member.TokenKey)
		p.must(err)
		if len(get.Kvs) != 1 {
			t.Fatalf("%d values of the token's key", len(get.Kvs))
		}
		return get.Kvs[0].ModRevision
	}
	for range 2 {
		before := revision()
		p.until("the token to be written again", func(context.Context) error {
			if revision() == before {
				return errors.New("it is still the old one")
			}
			return nil
		})
	}
	for _, s := range lab.Sites {
		if st, err := p.Site(s).Health(p.within()); err != nil || !st.Armed {
			t.Errorf("%s is not armed: %+v %v", s, st, err)
		}
	}
	p.CutLink()
	p.written("a write by the survivor")
	p.HealLink()
	p.wholeAndAudited()
	p.w.Stop()
	last := revision()
	p.until("the token to stay", func(context.Context) error { // a renewal for what was written may come late
		time.Sleep(3 * time.Second) // longer than it stays while clients write
		was := last
		if last = revision(); last != was {
			return fmt.Errorf("it was written again, at revision %d, although nothing else was", last)
		}
		return nil
	})
}
