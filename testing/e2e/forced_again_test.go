package e2e

import "testing"

// TestForcedAppendFails: the append of a member that is fenced as rolled back fails, first before it takes the WAL's place, then after
// it has. The claim is made anew each time, from where it is, and nobody orders again.
//
// Rules: P7, P10, P16, P18; F19.
func TestForcedAppendFails(t *testing.T) {
	t.Parallel()
	p := forcing(t, "3.7")
	survivor, loser, old, lost := p.aloneAndRestored()
	p.failpoints(survivor, "wal/append/entries=error@1;wal/staged/exchanged=error@1")
	p.must(p.Site(survivor).Start())
	p.reason(survivor, "rolled-back")
	p.until("its etcd stops", p.ended(survivor))
	before := p.record().Generation
	p.claim(0, survivor, "--data-dir", p.Site(survivor).DataDir, "--yes", "--override-live-survivor", "--wait", "0s")
	p.role(survivor, "alone")
	if got, want := p.record().Generation, before+4; got != want {
		t.Errorf("generation %d, want %d: an order, two claims that failed and one that did not", got, want)
	}
	p.failpoints(survivor, "")
	p.HealLink()
	p.must(p.Site(loser).Start())
	p.whole()
	old.complete()
	if n := len(lost.held()); n != 0 {
		t.Errorf("%d writes from after the copy are there", n)
	}
	p.setAside(loser, "overridden")
	p.writeAnew("a", "b")
	p.wholeAndAudited()
}
