package e2e

import (
	"testing"
	"time"

	"twok/arbiter"
	"twok/internal/lab"
)

// On each real store, with credentials: what onStore does.
//
// Rules: A1, P1, P2, P4, P7, P8, P12; F37.
func TestRealStores(t *testing.T) {
	for i, kind := range backingKinds {
		t.Run(kind, func(t *testing.T) {
			onStore(t, back(t, kind), lab.Minors[i%len(lab.Minors)])
		})
	}
}

// onStore takes a pair through what happens to a store: a cut and a return; a cut while the store is down, in which
// nobody writes until the link is back, and one in which nobody does until the store is; a cut in which
// only one member, not the leader, reaches the store, and survives; and one while the credentials have
// expired, in which nobody writes until they are renewed. No agent is started again in all of it.
func onStore(t *testing.T, b *backing, minor string) {
	t.Helper()
	p := b.under(t, minor)
	p.must(p.Start(p.within()))
	generation := p.whole().Generation
	p.write()
	agents := [2]int{p.Site("a").AgentPID(), p.Site("b").AgentPID()}
	claimed := func(what string) arbiter.Record {
		t.Helper()
		p.written("a write by the survivor: " + what)
		p.Network.HealAll()
		rec := p.wholeAndAudited()
		if rec.Generation <= generation {
			t.Errorf("%s: generation %d, it was %d", what, rec.Generation, generation)
		}
		generation = rec.Generation
		return rec
	}
	nobody := func(reason string) {
		t.Helper()
		for _, name := range lab.Sites {
			p.reason(name, reason)
		}
		p.written("a write in the pair: " + reason)
		p.CutLink()
		for _, name := range lab.Sites {
			p.role(name, "leaderless")
		}
		p.silent("a cut pair: "+reason, 3*time.Second)
	}
	p.CutLink()
	claimed("the store answers")

	p.must(b.kill())
	nobody("arbiter-unavailable")
	p.HealLink()
	p.written("a write after the link came back, without the store")
	nobody("arbiter-unavailable")
	if n := p.did("a", "append") + p.did("b", "append"); n != int(generation)-1 {
		t.Errorf("%d appends at generation %d", n, generation)
	}
	p.must(b.start(p.within()))
	claimed("the store came back")

	leader := p.leader()
	p.Network.Cut(leader, lab.ArbiterSite)
	p.Network.Cut(lab.ArbiterSite, leader)
	p.CutLink()
	if rec := claimed("one member reaches the store"); rec.Survivor.Name != lab.Other(leader) {
		t.Errorf("%s survives, which does not reach the store", rec.Survivor.Name)
	}

	p.must(b.expire())
	nobody("arbiter-forbidden")
	p.must(b.renew())
	claimed("the credentials are renewed")
	if now := [2]int{p.Site("a").AgentPID(), p.Site("b").AgentPID()}; now != agents {
		t.Errorf("the agents were %d, are %d", agents, now)
	}
}
