package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"twok/internal/lab"
)

// TestCutBeforeToken: the link is cut after the promotion and before the token. The
// member that returned is a voter that may not claim; only the survivor can lead.
//
// Rules: P4, P14.
func TestCutBeforeToken(t *testing.T) {
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
