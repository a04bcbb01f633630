package e2e

import (
	"context"
	"fmt"
	"testing"

	"twok/internal/lab"
)

// claim is an operator's forced claim for the member of a site.
func (p *pair) claim(want int, site string, more ...string) (stdout, stderr string) {
	p.Helper()
	args := []string{"arbiter", "claim", "--accept-data-loss", "--arbiter", p.Arbiter, "--member", site}
	code, stdout, stderr := p.run(append(args, more...)...)
	if code != want {
		p.Fatalf("claim %s %q: status %d, want %d; %s%s", site, more, code, want, stdout, stderr)
	}
	return stdout, stderr
}

// TestForcedSurvivorDead: the survivor is lost for good before the loser came back.
// Rules: P2, P7, P8, P13, P18; F13.
func TestForcedSurvivorDead(t *testing.T) {
	for _, minor := range []string{"3.5", "3.6", "3.7"} {
		t.Run(minor, func(t *testing.T) {
			p := start(t, minor)
			p.untraced = "the model has no forced claims"
			survivor := p.leader()
			loser := lab.Other(survivor)
			p.CutLink()
			p.written("the survivor leads alone")
			p.role(loser, "lost")
			p.w.Stop()
			p.must(p.Site(survivor).Kill())
			p.claim(0, loser, "--endpoints", p.Site(loser).ClientURL, "--data-dir", p.Site(loser).DataDir, "--yes", "--override-live-survivor")
			p.role(loser, "alone")
			p.write()
			p.HealLink()
			p.must(p.Site(survivor).Start())
			p.whole()
		})
	}
}

// TestForcedRemoved: the survivor of a removal by hand burns; the removed member becomes a new one.
// Rules: P8, P12, P18; F16.
func TestForcedRemoved(t *testing.T) {
	for _, minor := range []string{"3.5", "3.6", "3.7"} {
		t.Run(minor, func(t *testing.T) {
			p := start(t, minor)
			p.untraced = "the model has no forced claims"
			survivor := p.leader()
			loser := lab.Other(survivor)
			id := p.memberID(loser)
			p.until("the loser is removed by hand", func(ctx context.Context) error { // etcd waits for five quiet seconds
				_, err := p.client(survivor).MemberRemove(ctx, id)
				return err
			})
			p.reason(loser, "removed-by-hand")
			p.w.Stop()
			p.must(p.Site(survivor).Kill())
			p.claim(0, fmt.Sprintf("%016x", id), "--yes", "--override-live-survivor")
			p.role(loser, "alone")
			p.write()
			p.HealLink()
			p.must(p.Site(survivor).Start())
			p.whole()
		})
	}
}

func (p *pair) memberID(site string) uint64 {
	p.Helper()
	st, err := p.Site(site).Status(p.within())
	p.must(err)
	return st.Header.MemberId
}
