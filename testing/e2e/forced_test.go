package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"

	"twok/arbiter"
	"twok/internal/lab"
)

// TestForcedSurvivorDead: the survivor is lost for good before the loser came back. What both had is kept. What was left
// of the survivor turns up later and returns.
//
// Rules: P2, P7, P8, P13, P18; F13.
func TestForcedSurvivorDead(t *testing.T) {
	t.Parallel()
	on(t, "3.5", func(t *testing.T, minor string) {
		p := forcing(t, minor)
		before := p.audit()
		survivor, loser := p.aloneByCut()
		p.must(p.Site(survivor).Kill())
		rec := p.record()
		out, _ := p.claim(0, loser, "--endpoints", p.Site(loser).ClientURL, "--data-dir", p.Site(loser).DataDir, "--yes", "--override-live-survivor")
		if !strings.Contains(out, "at least to index") || !strings.Contains(out, "the end of the log in") {
			t.Errorf("the command shows\n%s", out)
		}
		p.role(loser, "alone")
		p.HealLink()
		p.must(p.Site(survivor).Start())
		now := p.whole()
		if now.Survivor.Name != loser || now.Generation != rec.Generation+2 {
			t.Errorf("generation %d after %d, survivor %q", now.Generation, rec.Generation, now.Survivor.Name)
		}
		fs := forcedEntries(now)
		if len(fs) != 1 || fs[0].By == "" || fs[0].First != rec.Generation+1 || fs[0].Last != rec.Generation+2 || fs[0].Fork.Term < fs[0].Last<<32 {
			t.Errorf("the history's forced claims: %+v", fs)
		}
		if r := p.audit(); r.Acked != before.Acked {
			t.Errorf("%s; before %s", r, before)
		}
		p.writeAnew("a", "b")
		p.wholeAndAudited()
	})
}

// TestForcedSurvivorAlive: the survivor lives behind a cut and goes on writing. It is refused to override it without more
// words. It stops with its next look at the record, its directory is set aside bit for bit as it stopped, and what
// it alone had acknowledged is listed exactly. It returns after the cut.
//
// Rules: P13, P16, P18; F20.
func TestForcedSurvivorAlive(t *testing.T) {
	t.Parallel()
	on(t, "3.6", func(t *testing.T, minor string) {
		p := forcing(t, minor)
		la, lb := p.ledger("a"), p.ledger("b")
		la.more(20)
		lb.more(20)
		survivor, loser := p.aloneByCut()
		there, here := la, lb
		if survivor == "b" {
			there, here = lb, la
		}
		there.more(20)
		// A loser whose etcd was restarted without a leader has no client port: its name comes from its directory.
		both := []string{"--endpoints", p.Site("a").ClientURL, "--endpoints", p.Site("b").ClientURL, "--data-dir", p.Site(loser).DataDir}
		if _, stderr := p.claim(40, loser, append(both, "--yes")...); !strings.Contains(stderr, survivor+" (") || !strings.Contains(stderr, "answers at") {
			t.Errorf("with a survivor that answers: %s", stderr)
		}
		if _, stderr := p.claim(40, loser, "--yes", "--data-dir", p.Site(loser).DataDir); !strings.Contains(stderr, "the record was written") {
			t.Errorf("with a record that was written just now: %s", stderr)
		}
		if g := p.record().Generation; g != 2 {
			t.Fatalf("generation %d after two refusals", g)
		}
		out, _ := p.claim(0, loser, append(both, "--yes", "--override-live-survivor", "--json")...)
		var said struct {
			CarriedOut bool   `json:"carried_out"`
			Leads      bool   `json:"leads"`
			By         string `json:"by"`
			Over       string `json:"overridden_name"`
			Objection  string `json:"overrode_objection"`
		}
		if err := json.Unmarshal([]byte(out), &said); err != nil || !said.Leads || !said.CarriedOut || said.Over != survivor || said.By == "" || !strings.Contains(said.Objection, "answers at") {
			t.Errorf("%v: %s", err, out)
		}
		here.more(20) // both write, until the survivor looks
		p.reason(survivor, "overridden")
		p.until("its etcd stops", p.ended(survivor))
		there.end()
		p.oneRead(survivor, p.record().Generation-1)
		stopped := digest(t, p.memberDir(survivor))
		here.more(20)
		p.must(p.ended(survivor)(t.Context()))
		unchanged(t, "while it waits for the other one", p.memberDir(survivor), stopped)

		p.HealLink()
		rec := p.whole()
		here.more(20)
		here.end()
		if rec.Survivor.Name != loser {
			t.Errorf("%q survives", rec.Survivor.Name)
		}
		aside := p.setAside(survivor, "overridden")
		unchanged(t, "the directory that was set aside", aside, stopped)
		if n := there.lostExactly(aside, here); n < 20 {
			t.Errorf("only %d acknowledged writes were lost", n)
		}
		here.complete()
		// The pair is one like any other: the next claim is by the rules.
		p.must(p.Site(loser).Kill())
		p.role(survivor, "alone")
		p.must(p.Site(loser).Start())
		p.whole()
		here.complete()
		if fs := forcedEntries(p.record()); len(fs) != 1 {
			t.Errorf("forced claims in the history: %+v", fs)
		}
	})
}

// oneRead: between the claim of that generation and its stop the survivor's agent read the record once with
// another survivor in it: at that read it stopped etcd.
func (p *pair) oneRead(site string, order uint64) {
	p.Helper()
	for _, l := range p.trace(site) {
		if l.Event != "record-read" || l.Generation < order {
			continue
		}
		if l.From != "alone" || l.To != "fenced" || len(l.Actions) != 1 || l.Actions[0] != "stop" {
			p.Errorf("its first look at generation %d: %s -> %s, %v", l.Generation, l.From, l.To, l.Actions)
		}
		return
	}
	p.Errorf("%s never saw generation %d", site, order)
}

// TestForcedWeeksLater: the survivor is cut off from everything, the arbiter too, and goes on. It is overridden, and learns of it only
// when all the machines were off and are started again.
//
// Rules: P13, P16, P18; F32.
func TestForcedWeeksLater(t *testing.T) {
	t.Parallel()
	on(t, "", func(t *testing.T, minor string) {
		p := forcing(t, minor)
		survivor, loser := p.aloneByCut()
		there := p.ledger(survivor)
		p.Network.Cut(survivor, lab.ArbiterSite)
		p.Network.Cut(lab.ArbiterSite, survivor)
		there.more(20)
		p.force(loser)
		here := p.ledger(loser)
		here.more(20)
		there.more(20) // it does not know
		for _, site := range lab.Sites {
			p.must(p.Site(site).Kill())
		}
		p.must(p.KillArbiter())
		p.HealLink()
		p.Network.Heal(survivor, lab.ArbiterSite)
		p.Network.Heal(lab.ArbiterSite, survivor)
		p.must(p.Start(p.within()))
		rec := p.whole()
		here.more(20)
		here.end()
		there.end()
		if rec.Survivor.Name != loser {
			t.Errorf("%q survives", rec.Survivor.Name)
		}
		if n := there.lostExactly(p.setAside(survivor, "overridden")); n < 40 {
			t.Errorf("only %d acknowledged writes were lost", n)
		}
		here.complete()
	})
}

// TestForcedSurvivorPaused: the survivor, etcd and agent, is frozen through the whole story. Woken it serves until its agent
// looks, stops and returns.
//
// Rules: P13, P16, P18, P20; F13, F26.
func TestForcedSurvivorPaused(t *testing.T) {
	t.Parallel()
	on(t, "3.7", func(t *testing.T, minor string) {
		p := forcing(t, minor)
		survivor, loser := p.aloneByCut()
		there := p.ledger(survivor)
		there.more(20)
		agent := p.Site(survivor).AgentPID()
		p.must(syscall.Kill(agent, syscall.SIGSTOP))
		p.must(p.Site(survivor).SignalEtcd(syscall.SIGSTOP))
		p.force(loser, "--endpoints", p.Site(loser).ClientURL)
		here := p.ledger(loser)
		here.more(20)
		p.HealLink()
		p.must(p.Site(survivor).SignalEtcd(syscall.SIGCONT))
		there.more(1) // nobody told it yet
		p.must(syscall.Kill(agent, syscall.SIGCONT))
		rec := p.whole()
		here.more(20)
		here.end()
		there.end()
		if rec.Survivor.Name != loser {
			t.Errorf("%q survives", rec.Survivor.Name)
		}
		if n := there.lostExactly(p.setAside(survivor, "overridden")); n < 21 {
			t.Errorf("only %d acknowledged writes were lost", n)
		}
		here.complete()
	})
}

// TestForcedTwice: two operators claim for the two members at the same time. One of them wins, the other one is told;
// in the end there is one history.
//
// Rules: P1, P2, P16, P18; F2.
func TestForcedTwice(t *testing.T) {
	t.Parallel()
	on(t, "3.6", func(t *testing.T, minor string) {
		p := forcing(t, minor)
		p.aloneByCut()
		const rounds = 2
		for range rounds {
			before := p.record()
			type result struct {
				code     int
				out, err string
			}
			results := map[string]*result{"a": {}, "b": {}}
			ids := map[string]string{"a": fmt.Sprintf("%016x", p.walID("a")), "b": fmt.Sprintf("%016x", p.walID("b"))}
			var g sync.WaitGroup
			for site, r := range results {
				g.Go(func() {
					r.code, r.out, r.err = p.run(p.claimArgs(ids[site], "--yes", "--override-live-survivor")...)
				})
			}
			g.Wait()
			rec := p.record()
			winners := 0
			for site, r := range results {
				t.Logf("%s: status %d, generation %d, %s", site, r.code, rec.Generation, r.err)
				switch {
				case r.code == 0:
					winners++
				case r.code != 24 || !strings.Contains(r.err, "changed"):
					t.Errorf("%s: status %d, %s", site, r.code, r.err)
				}
			}
			last := rec.Survivor.Name
			if winners == 0 || results[last] == nil || results[last].code != 0 {
				t.Fatalf("%q survives; %+v %+v", last, results["a"], results["b"])
			}
			// One order was written, or the one who came later saw the first one's and overrode it.
			if n := rec.Generation - before.Generation; n < 2 || n > 4 {
				t.Errorf("generation %d after %d", rec.Generation, before.Generation)
			}
			p.role(last, "alone")
			p.health(lab.Other(last), "it does not lead", func(h lab.Health) bool { return h.Role == "fenced" || h.Role == "lost" })
		}
		p.writeAnew("a", "b")
		p.HealLink()
		p.wholeAndAudited()
	})
}

// TestForcedAndBack: forced to the loser, and then, its site burned too, back to the first survivor. Whatever
// histories there are by now, from where they part they have no term in common.
//
// Rules: P8, P13, P16, P18.
func TestForcedAndBack(t *testing.T) {
	t.Parallel()
	on(t, "3.5", func(t *testing.T, minor string) {
		p := forcing(t, minor)
		survivor, loser := p.aloneByCut()
		there := p.ledger(survivor)
		there.more(20)
		p.force(loser)
		here := p.ledger(loser)
		here.more(20)
		p.role(survivor, "fenced")
		there.end()
		p.must(p.Site(loser).Kill())
		here.end()
		first := p.record()
		p.force(survivor, "--data-dir", p.Site(survivor).DataDir)
		x, y := p.apart(p.memberDir(survivor, "wal"), p.memberDir(loser, "wal"))
		for term := range y {
			if term < first.Generation<<32 {
				t.Errorf("the forced history at generation %d has the terms %v", first.Generation, y)
			}
		}
		t.Logf("terms %v and %v", x, y)
		back := p.ledger(survivor)
		back.more(20)
		p.HealLink()
		p.must(p.Site(loser).Start())
		rec := p.whole()
		back.end()
		if fs := forcedEntries(rec); rec.Survivor.Name != survivor || len(fs) != 2 {
			t.Errorf("%q survives, forced claims %+v", rec.Survivor.Name, fs)
		}
		aside := p.setAside(loser, "overridden")
		if n := here.lostExactly(aside); n < 20 {
			t.Errorf("only %d acknowledged writes were lost", n)
		}
		there.complete()                                    // given up once, and back
		p.apart(p.memberDir(survivor, "wal"), aside+"/wal") // what it is by now, too
	})
}

// TestForcedRemoved: the survivor of a removal by hand burns; the removed member becomes a new one. After that
// the pair is one like any other.
//
// Rules: P8, P12, P18; F16.
func TestForcedRemoved(t *testing.T) {
	t.Parallel()
	on(t, "3.7", func(t *testing.T, minor string) {
		p := forcing(t, minor)
		p.users = true
		survivor, loser := p.removedByHand()
		id := p.walID(loser)
		p.must(p.Site(survivor).Kill())
		p.claim(0, arbiter.FormatID(id), "--yes", "--override-live-survivor")
		p.role(loser, "alone")
		if now := p.walID(loser); now == id {
			t.Errorf("it leads under the ID %x, which was removed", now)
		}
		// Started again it leads its own history until its agent looks: nobody writes there.
		p.writeAnew(loser)
		p.must(p.Site(survivor).Start())
		p.wholeAndAudited()
		p.writeAnew("a", "b")
		for range 2 { // each of them survives once
			p.failover(lab.CutKillLeader)
		}
	})
}

// TestForcedByHand: the order is carried out by hand, without an agent, on a member that was removed.
//
// Rules: P7, P8, P18.
func TestForcedByHand(t *testing.T) {
	t.Parallel()
	on(t, "", func(t *testing.T, minor string) {
		p := forcing(t, minor, external)
		p.users = true
		survivor, loser := p.removedByHand()
		self := p.Site(loser)
		p.must(p.Site(survivor).Kill())
		self.StopAgent()
		self.PauseRestarter()
		p.must(self.StopEtcd())
		id := p.walID(loser)
		survive := func(want int, more ...string) (stdout, stderr string) {
			t.Helper()
			code, stdout, stderr := p.run(append(append([]string{"wal", "survive", "--arbiter", p.Arbiter}, more...), self.DataDir)...)
			if code != want {
				t.Fatalf("survive %q: status %d, want %d; %s%s", more, code, want, stdout, stderr)
			}
			return stdout, stderr
		}
		if _, stderr := survive(32); !strings.Contains(stderr, "own-removal") {
			t.Errorf("without an order: %s", stderr)
		}
		p.claim(0, loser, "--data-dir", self.DataDir, "--yes", "--override-live-survivor", "--wait", "0")
		before := digest(t, p.memberDir(loser))
		out, _ := survive(0, "--dry-run", "--json")
		if !strings.Contains(out, `"join"`) || strings.Contains(out, `"applied": true`) {
			t.Errorf("a dry run says %s", out)
		}
		unchanged(t, "a dry run", p.memberDir(loser), before)
		survive(0)
		if now := p.walID(loser); now == id || p.record().Survivor.ID != now {
			t.Errorf("the WAL is of %x, was of %x; the record names %+v", now, id, p.record().Survivor)
		}
		p.must(self.Start())
		p.role(loser, "alone")
		p.must(p.Site(survivor).Start())
		if rec := p.whole(); rec.Survivor.Name != loser {
			t.Errorf("%q survives", rec.Survivor.Name)
		}
		p.writeAnew("a", "b")
		p.wholeAndAudited()
	})
}

// removedByHand removes the follower of a whole pair through etcd.
func (p *pair) removedByHand() (survivor, loser string) {
	p.Helper()
	survivor = p.leader()
	loser = lab.Other(survivor)
	id := p.walID(loser)
	p.until("the loser is removed by hand", func(ctx context.Context) error { // etcd waits for five quiet seconds
		_, err := p.client(survivor).MemberRemove(ctx, id)
		return err
	})
	p.reason(loser, "removed-by-hand")
	return survivor, loser
}
