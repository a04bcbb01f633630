package e2e

import (
	"slices"
	"testing"

	"twok/arbiter"
	"twok/internal/lab"
)

// TestForcedKilled: the named member's agent is killed at each step of a forced claim. Started again it completes
// it, in one history, and the pair becomes whole.
//
// Rules: P1, P2, P7, P8, P9, P16, P18; F19.
func TestForcedKilled(t *testing.T) {
	t.Parallel()
	points := slices.Concat(
		beforeAndAfter("stop", "read-data", "swap*", "append", "release*", "sample"),
		steps("wal/staged/begin wal/staged/segment wal/append/begin wal/append/hardstate wal/append/entries* wal/append/commit wal/append/synced wal/staged/appended wal/staged/exchanged* wal/staged/aside"))
	p := forcing(t, "3.6")
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			q := *p
			q.T = t
			p := &q
			survivor := p.leader()
			loser := lab.Other(survivor)
			p.must(p.Site(loser).Kill())
			p.until("the confirmation", p.confirmed)
			p.must(p.Site(survivor).Kill())
			p.killedInClaim(survivor, loser, point)
		})
	}
}

// TestForcedRemovedKilled: the same where the member was removed, and its WAL gets a new ID in the same step.
//
// Rules: P7, P8, P9, P12, P16, P18; F19.
func TestForcedRemovedKilled(t *testing.T) {
	t.Parallel()
	points := slices.Concat(
		beforeAndAfter("stop", "read-data", "swap*", "append", "release"),
		steps("wal/staged/begin wal/staged/segment wal/append/begin wal/append/hardstate wal/append/entries* wal/append/commit wal/append/synced wal/staged/appended wal/staged/exchanged* wal/staged/aside"))
	p := forcing(t, "3.5")
	p.users = true
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			q := *p
			q.T = t
			p := &q
			survivor, loser := p.removedByHand()
			p.must(p.Site(survivor).Kill())
			p.killedInClaim(survivor, loser, point)
		})
	}
}

// killedInClaim: an order for the loser, whose agent dies at the point, comes back and leads; then the
// survivor returns to it.
func (p *pair) killedInClaim(survivor, loser, point string) {
	p.Helper()
	before := p.record()
	p.must(p.Site(loser).Kill())
	p.failpoints(loser, kill(point))
	p.must(p.Site(loser).Start())
	id := p.walID(loser)
	p.claim(0, arbiter.FormatID(id), "--yes", "--override-live-survivor", "--wait", "0")
	p.died(loser)
	p.restart(loser, "")
	p.role(loser, "alone")
	p.until("the confirmation", p.confirmed)
	p.loads = int(before.Generation) // of the copy: each round needs keys of its own
	p.writeAnew(loser)
	p.must(p.Site(survivor).Start())
	rec := p.whole()
	p.w.Stop()
	p.Log(p.audit())
	if rec.Survivor.Name != loser || rec.Generation < before.Generation+2 {
		p.Errorf("%q survives at generation %d after %d", rec.Survivor.Name, rec.Generation, before.Generation)
	}
	h := rec.History[rec.HistoryCount()-1]
	if !h.Forced || h.Survivor != rec.Survivor.ID || h.Fork.Term < (before.Generation+2)<<32 {
		p.Errorf("the history ends with %+v", h)
	}
}
