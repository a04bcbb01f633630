package e2e

import (
	"testing"
	"time"

	"twok/internal/lab"
)

// failover is one cut, with a survivor or without, its heal and the audit.
func (p *pair) failover(cut lab.CutKind) {
	p.Helper()
	before := p.record()
	leader := p.leader()
	p.must(p.Cut(cut, leader))
	if cut.Claims() {
		p.answered("a write by the survivor", p.w.NextAck())
	}
	p.must(p.Heal())
	if !cut.Claims() {
		p.answered("a write after both were started", p.w.NextAck())
	}
	rec := p.wholeAndAudited()
	switch {
	case !cut.Claims() && rec.Generation != before.Generation, rec.Generation <= before.Generation && cut.Claims():
		p.Errorf("generation %d became %d", before.Generation, rec.Generation)
	case rec.Generation > before.Generation+1:
		p.Logf("generation %d became %d: this machine is slow", before.Generation, rec.Generation)
		return
	}
	survivor := rec.Survivor.Name
	switch cut {
	case lab.CutKillLeader:
		if survivor == leader {
			p.Errorf("%s led and was killed, and survives by the record", leader)
		}
	case lab.CutKillFollower:
		if survivor != leader {
			p.Errorf("%s led and was not killed, the record names %q", leader, survivor)
		}
	case lab.CutRestartBoth:
		if rec.Survivor != before.Survivor {
			p.Errorf("the record names %q", survivor)
		}
	}
}

// TestCuts: each kind of cut, and the link on each release (full: all on all).
//
// Rules: P1, P2, P3, P4, P7, P8, P10, P12, P13, P14; F2, F6, F8, F24, F32, F34.
func TestCuts(t *testing.T) {
	t.Parallel()
	for i, cut := range lab.CutKinds {
		for j, minor := range lab.Minors {
			// The demo's tests take the others.
			if !full && j != (i+1)%len(lab.Minors) && cut != lab.CutLink {
				continue
			}
			t.Run(string(cut)+"/"+minor, func(t *testing.T) {
				t.Parallel()
				p := start(t, minor, func(c *lab.Config) {
					if !cut.Claims() {
						c.ClaimAfter = 8 * time.Second // both are down for a while, and nobody shall claim
					}
				})
				p.failover(cut)
			})
		}
	}
}

// TestExternal: somebody else runs and restarts etcd, the agent signals it (full: every cut).
//
// Rules: P1, P2, P4, P7, P8, P12, P14.
func TestExternal(t *testing.T) {
	t.Parallel()
	for i, cut := range lab.CutKinds {
		if !full && cut != lab.CutKillLeader && cut != lab.CutLink {
			continue
		}
		t.Run(string(cut), func(t *testing.T) {
			t.Parallel()
			p := start(t, lab.Minors[(i+2)%len(lab.Minors)], external, func(c *lab.Config) {
				if !cut.Claims() {
					c.ClaimAfter = 8 * time.Second
				}
			})
			p.failover(cut)
		})
	}
}

func external(c *lab.Config) { c.Mode = lab.External }
