package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/arbiter"
	"twok/internal/agent"
	"twok/internal/lab"
)

// On each real store, with credentials: what onStore does.
//
// Rules: A1, P1, P2, P4, P7, P8, P12; F37.
func TestRealStores(t *testing.T) {
	t.Parallel()
	for i, kind := range backingKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
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

// A store that permits keys one by one: what namedOneByOne does.
//
// Rules: A1, P11; F9, F11.
func TestRoleByExactNames(t *testing.T) {
	t.Parallel()
	b := back(t, "etcd")
	if _, err := b.admin.RoleRevokePermission(t.Context(), "agents", "pair", clientv3.GetPrefixRangeEnd("pair")); err != nil {
		t.Fatal(err)
	}
	namedOneByOne(t, b, func(names ...string) error {
		for _, name := range names {
			if err := b.grant(t.Context(), name, ""); err != nil {
				return err
			}
		}
		return nil
	})
}

// namedOneByOne permits the record and the scratch registers of the two members that a new pair has. A member that returns
// has a new ID; its agent, started again, probes under the name that it may use, and passes. One that
// lost its memory knows the new ID only: it is unprotected, says what is forbidden, and is armed when
// that name is permitted too.
func namedOneByOne(t *testing.T, b *backing, permit func(names ...string) error) {
	t.Helper()
	p := b.under(t, "3.7")
	p.must(permit("pair")) // etcd starts on an empty disk when it is known that there is no record
	p.must(p.Start(p.within()))
	id := func(site string) (id uint64) {
		t.Helper()
		p.until("the member ID of "+site, func(ctx context.Context) error {
			st, err := p.Site(site).Status(ctx)
			if err == nil {
				id = st.Header.MemberId
			}
			return err
		})
		return id
	}
	scratch := func(id uint64) string { return "pair" + agent.ScratchSuffix(id) }
	first := map[string]uint64{"a": id("a"), "b": id("b")}
	p.must(permit("pair", scratch(first["a"]), scratch(first["b"])))
	p.whole()
	p.write()
	p.CutLink()
	p.written("a write by the survivor")
	p.HealLink()
	loser := p.Site(lab.Other(p.wholeAndAudited().Survivor.Name))
	now := id(loser.Name)
	if now == first[loser.Name] {
		t.Fatalf("%s returned under its old ID", loser.Name)
	}
	// lines of the agent that runs now
	told := func(from int, words ...string) func(context.Context) error {
		return func(context.Context) error {
			for _, l := range p.agentLines(loser.Name)[from:] {
				n := 0
				for _, w := range words {
					if strings.Contains(l, w) {
						n++
					}
				}
				if n == len(words) {
					return nil
				}
			}
			return fmt.Errorf("no line with %q", words)
		}
	}
	loser.KillAgent()
	from := len(p.agentLines(loser.Name))
	p.must(loser.StartAgent())
	p.until("it passes under its first name", told(from, "passed its probe", fmt.Sprintf(`"as":"%s"`, arbiter.FormatID(first[loser.Name]))))
	p.wholeAndAudited()

	loser.KillAgent()
	p.must(os.Remove(filepath.Join(loser.DataDir, agent.MemoryName)))
	from = len(p.agentLines(loser.Name))
	p.must(loser.StartAgent())
	p.reason(loser.Name, "store-not-tried")
	p.until("it says what is forbidden", told(from, "could not be probed", scratch(now)))
	p.must(permit(scratch(now)))
	p.until("it passes under its new name", told(from, "passed its probe", fmt.Sprintf(`"as":"%s"`, arbiter.FormatID(now))))
	p.wholeAndAudited()
}
