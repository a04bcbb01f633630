package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"twok/arbiter"
	"twok/internal/lab"
)

// TestForcedLearner: a learner is no member to go on with. The command refuses where it can see it, the member's agent where
// it cannot; then nobody leads until a person names the survivor after all.
//
// Rules: P11, P16, P18.
func TestForcedLearner(t *testing.T) {
	t.Parallel()
	on(t, "3.6", func(t *testing.T, minor string) {
		p := forcing(t, minor)
		survivor, loser := p.aloneByCut()
		p.restart(loser, "agent/promote/before=error")
		p.role(loser, "lost")
		p.HealLink()
		p.role(loser, "promoting")
		learner := arbiter.FormatID(p.walID(loser))
		before := p.record()
		for _, name := range []string{loser, learner} {
			if _, stderr := p.claim(41, name, "--endpoints", p.Site(survivor).ClientURL, "--endpoints", p.Site(loser).ClientURL, "--yes", "--override-live-survivor"); !strings.Contains(stderr, "is a learner") {
				t.Errorf("naming the learner %s: %s", name, stderr)
			}
		}
		if p.record().ClaimNonce != before.ClaimNonce {
			t.Fatal("a refusal changed the record")
		}
		p.must(p.Site(survivor).Kill())
		if _, stderr := p.claim(43, learner, "--yes", "--override-live-survivor", "--wait", "3s"); !strings.Contains(stderr, "not carried out yet") {
			t.Errorf("an order for a learner: %s", stderr)
		}
		p.reason(loser, "forced-learner") // although a learner never notices that its leader is gone
		p.must(p.Site(loser).KillEtcd())
		p.reason(loser, "forced-learner")
		if rec := p.record(); rec.Generation != before.Generation+1 || rec.Fork.Index != 0 {
			t.Errorf("the record: %+v", rec)
		}
		p.must(p.Site(survivor).Start())
		p.reason(survivor, "overridden")
		p.restart(loser, "") // it may promote again
		p.force(survivor, "--data-dir", p.Site(survivor).DataDir)
		if rec := p.whole(); rec.Survivor.Name != survivor {
			t.Errorf("%q survives", rec.Survivor.Name)
		}
		p.writeAnew("a", "b")
		p.wholeAndAudited()
	})
}

// saved copies a stopped site's data directory, and returns what puts it back.
func (p *pair) saved(site string) (restore func()) {
	p.Helper()
	dir := p.Site(site).DataDir
	copied := dir + ".copy"
	p.must(os.CopyFS(copied, os.DirFS(dir)))
	return func() {
		p.Helper()
		p.must(os.Rename(dir, dir+".newest"))
		p.must(os.Rename(copied, dir))
	}
}

// confirmedAt waits until the record shows that index, as a confirmation or as the commit mark: for a minute or so.
func (p *pair) confirmedAt(index uint64) {
	p.Helper()
	p.until(fmt.Sprintf("the record shows index %d", index), func(ctx context.Context) error {
		rec, err := p.Record(ctx)
		if err == nil && rec.Confirmed.Index < index && rec.MarkIndex < index {
			err = fmt.Errorf("confirmed %d, mark %d", rec.Confirmed.Index, rec.MarkIndex)
		}
		return err
	})
}

// TestForcedRolledBack: the lone survivor's disk goes back to an older state (P10). It refuses to serve; a person decides for it all
// the same, and sees how much is given up. What it had before is kept.
//
// Rules: P10, P11, P18.
func TestForcedRolledBack(t *testing.T) {
	t.Parallel()
	on(t, "3.5", func(t *testing.T, minor string) {
		p := forcing(t, minor)
		survivor, loser, old, lost := p.aloneAndRestored()
		p.must(p.Site(survivor).Start())
		p.reason(survivor, "rolled-back")
		p.until("its etcd stops", p.ended(survivor))
		out, _ := p.claim(0, survivor, "--data-dir", p.Site(survivor).DataDir, "--yes", "--override-live-survivor")
		if !regexp.MustCompile(`given up +at least [1-9]`).MatchString(out) {
			t.Errorf("the command does not say that entries are given up:\n%s", out)
		}
		p.role(survivor, "alone")
		p.HealLink()
		p.must(p.Site(loser).Start())
		p.whole()
		old.complete()
		if n := len(lost.held()); n != 0 {
			t.Errorf("%d writes from after the copy are there", n)
		}
		p.setAside(loser, "overridden") // its log may have what this one lost (P13)
		p.writeAnew("a", "b")
		p.wholeAndAudited()
	})
}

// TestForcedRolledBackPair: one member of a whole pair gets its older disk back while the other one is lost (P15).
//
// Rules: P11, P15, P18.
func TestForcedRolledBackPair(t *testing.T) {
	t.Parallel()
	on(t, "", func(t *testing.T, minor string) {
		p := forcing(t, minor)
		old := p.ledger("a")
		old.more(10)
		for _, site := range lab.Sites {
			p.must(p.Site(site).Kill())
		}
		old.end()
		restore := p.saved("b")
		for _, site := range lab.Sites {
			p.must(p.Site(site).Start())
		}
		p.whole()
		lost := p.ledger("a")
		lost.more(50)
		lost.end()
		st, err := p.Site("a").Status(p.within())
		p.must(err)
		for _, site := range lab.Sites { // the leader's new agent marks at once
			p.restart(site, "")
		}
		p.confirmedAt(st.RaftIndex)
		generation := p.record().Generation
		for _, site := range lab.Sites {
			p.must(p.Site(site).Kill())
		}
		restore()
		p.must(p.Site("b").Start())
		p.reason("b", "rolled-back")
		if g := p.record().Generation; g != generation {
			t.Errorf("generation %d after %d", g, generation)
		}
		p.force("b", "--data-dir", p.Site("b").DataDir)
		p.must(p.Site("a").Start())
		p.whole()
		old.complete()
		if n := lost.lostExactly(p.setAside("a", "overridden")); n < 50 {
			t.Errorf("only %d acknowledged writes were lost", n)
		}
	})
}
