package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/internal/agent"
	"twok/internal/lab"
	"twok/walsurgery"
)

// TestStoppedEtcd: an etcd that is frozen by SIGSTOP is as good as away. Its agent
// answers, and the site returns as the loser, from the frozen process on.
//
// Rules: P7, P12; F13, F26.
func TestStoppedEtcd(t *testing.T) {
	t.Parallel()
	p := start(t, "3.6")
	for _, leads := range []bool{false, true} {
		frozen := p.leader()
		if !leads {
			frozen = lab.Other(frozen)
		}
		p.must(p.Site(frozen).SignalEtcd(syscall.SIGSTOP))
		p.written("a write by the other member")
		p.health(frozen, "the agent of a frozen etcd answers", func(lab.Health) bool { return true })
		if rec := p.wholeAndAudited(); rec.Survivor.Name == frozen {
			t.Errorf("%s survives, which was frozen", frozen)
		}
	}
}

// TestOneAgent: only one agent runs when the link is cut. If it is the follower's, that
// one claims; the other etcd stays down when it learns of its removal, until its agent runs.
//
// Rules: P4, P12; F8.
func TestOneAgent(t *testing.T) {
	t.Parallel()
	p := start(t, "3.6")
	for _, leads := range []bool{false, true} {
		with := p.leader()
		if !leads {
			with = lab.Other(with)
		}
		without := p.Site(lab.Other(with))
		without.KillAgent()
		p.CutLink()
		p.written("a write by the site with an agent")
		p.HealLink()
		p.until("the removed etcd ends", func(context.Context) error {
			if pid := p.etcdPID(without.Name); pid != 0 {
				return fmt.Errorf("it runs as %d", pid)
			}
			return nil
		})
		p.must(without.StartAgent())
		if rec := p.wholeAndAudited(); rec.Survivor.Name != with {
			t.Errorf("%s survives", rec.Survivor.Name)
		}
	}
}

// TestForgottenMemory: what an agent remembers is deleted, in a whole pair, of a
// survivor and of a loser. No role changes.
//
// Rules: P16, P17; F9.
func TestForgottenMemory(t *testing.T) {
	t.Parallel()
	p := start(t, "3.7")
	forget := func(site string) {
		t.Helper()
		p.must(os.Remove(filepath.Join(p.Site(site).DataDir, agent.MemoryName)))
	}
	for _, name := range lab.Sites {
		p.Site(name).KillAgent()
		forget(name)
		p.must(p.Site(name).StartAgent())
	}
	before := p.whole()
	survivor := p.leader()
	loser := p.Site(lab.Other(survivor))
	p.must(loser.Kill())
	p.written("a write by the survivor")
	p.until("the confirmation", p.confirmed)
	p.Site(survivor).KillAgent()
	forget(survivor)
	forget(loser.Name)
	p.must(p.Site(survivor).StartAgent())
	p.role(survivor, "alone")
	p.must(loser.Start())
	if rec := p.wholeAndAudited(); rec.Survivor.Name != survivor || rec.Generation <= before.Generation {
		t.Errorf("survivor %s at generation %d after %d", rec.Survivor.Name, rec.Generation, before.Generation)
	}
}

// client is of that member alone; it is closed when the pair ends.
func (p *pair) client(site string) *clientv3.Client {
	p.Helper()
	if p.clients[site] == nil {
		cl, err := p.Site(site).Client()
		p.must(err)
		p.clients[site] = cl
	}
	return p.clients[site]
}

// nobody is a peer URL at which nobody listens.
const nobody = "http://127.0.0.1:1"

// TestThirdVoter: a user adds a voter. Both agents stand back and say so, also when the
// link is cut; when it is removed they are armed again.
//
// Rules: P5, P11; F33.
func TestThirdVoter(t *testing.T) {
	t.Parallel()
	p := start(t, "3.6")
	p.users = true
	leader := p.leader()
	var third uint64
	p.until("add a voter", func(ctx context.Context) error {
		resp, err := p.client(leader).MemberAdd(ctx, []string{nobody})
		if err == nil {
			third = resp.Member.ID
		}
		return err
	})
	for _, name := range lab.Sites {
		p.reason(name, "third-voter")
	}
	a, b := p.pids()
	p.CutLink()
	p.steady("nobody claims", 4*time.Second, func(context.Context) error {
		if a2, b2 := p.pids(); a2 != a || b2 != b {
			// A stop for a look at the data is allowed once (P7), a claim is not.
			if g := p.record().Generation; g != 1 {
				return fmt.Errorf("generation %d", g)
			}
		}
		return nil
	})
	p.silent("a cut pair with a third voter", time.Second)
	p.HealLink()
	p.written("a write after the heal")
	p.until("remove it", func(ctx context.Context) error {
		_, err := p.client(leader).MemberRemove(ctx, third)
		return err
	})
	p.wholeAndAudited()
}

// TestForeignLearner: a learner of somebody else takes the place at the survivor. The
// loser names it, waits, and returns when it is gone.
//
// Rules: P12; F21, F33.
func TestForeignLearner(t *testing.T) {
	t.Parallel()
	p := start(t, "3.5")
	p.users = true
	survivor := p.leader()
	loser := p.Site(lab.Other(survivor))
	p.must(loser.Kill())
	p.written("a write by the survivor")
	resp, err := p.client(survivor).MemberAddAsLearner(p.within(), []string{nobody})
	p.must(err)
	p.must(loser.Start())
	p.reason(loser.Name, "foreign-learner")
	_, err = p.client(survivor).MemberRemove(p.within(), resp.Member.ID)
	p.must(err)
	p.wholeAndAudited()
}

// TestRemovedByHand: a user removes a member of a whole pair. It stays out, with its data, and both say so.
//
// Rules: P11, P12; F3, F16, F33.
func TestRemovedByHand(t *testing.T) {
	t.Parallel()
	p := start(t, "3.7")
	p.users = true
	leader := p.leader()
	removed := p.Site(lab.Other(leader))
	before, err := walsurgery.ReadMetadata(filepath.Join(removed.DataDir, "member", "wal"))
	p.must(err)
	p.until("remove it", func(ctx context.Context) error {
		list, err := p.client(leader).MemberList(ctx)
		if err != nil {
			return err
		}
		for _, m := range list.Members {
			if m.ID == before.MemberID {
				if _, err := p.client(leader).MemberRemove(ctx, m.ID); err != nil {
					return err
				}
			}
		}
		return nil
	})
	p.reason(leader, "alone-unclaimed")
	p.reason(removed.Name, "removed-by-hand")
	p.steady("it stays out", 3*time.Second, func(ctx context.Context) error {
		list, err := p.client(leader).MemberList(ctx)
		if err == nil && len(list.Members) != 1 {
			err = fmt.Errorf("the list has %d members", len(list.Members))
		}
		return err
	})
	after, err := walsurgery.ReadMetadata(filepath.Join(removed.DataDir, "member", "wal"))
	if err != nil || after != before {
		t.Errorf("its WAL was %v, is %v, %v", before, after, err)
	}
	if g := p.record().Generation; g != 1 {
		t.Errorf("generation %d", g)
	}
	p.written("a write at the one that is left")
}

// TestAgentEnds: an agent that is told to stop leaves the membership alone; etcd
// runs on in signal mode and ends in supervise mode.
//
// Rules: F4.
func TestAgentEnds(t *testing.T) {
	t.Parallel()
	for _, mode := range []lab.Mode{lab.External, lab.Supervise} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			p := start(t, "3.6", func(c *lab.Config) {
				c.Mode = mode
				c.ClaimAfter = 10 * time.Second // one ends after the other, and nobody shall claim
			})
			a, b := p.pids()
			before := p.record()
			for _, name := range lab.Sites {
				p.Site(name).StopAgent()
			}
			a2, b2 := p.pids()
			if mode == lab.External {
				if a2 != a || b2 != b {
					t.Errorf("the etcds were %d and %d, are %d and %d", a, b, a2, b2)
				}
				p.written("a write without agents")
				if r := p.audit(); r.Membership != "" {
					t.Error(r.Membership)
				}
			} else if a2 != 0 || b2 != 0 {
				t.Errorf("the etcds %d and %d run on", a2, b2)
			}
			for _, name := range lab.Sites {
				p.must(p.Site(name).StartAgent())
			}
			if rec := p.wholeAndAudited(); rec.Generation != before.Generation || rec.WholeMembers != before.WholeMembers {
				t.Errorf("generation %d, members %x; before %d, %x", rec.Generation, rec.WholeMembers, before.Generation, before.WholeMembers)
			}
		})
	}
}

// TestArbiterDown: without the arbiter a whole pair goes on; cut apart nobody
// writes and no etcd is stopped; healed without a claim the pair goes on; and when
// the arbiter returns during a cut one survives.
//
// Rules: P7, P11; F37.
func TestArbiterDown(t *testing.T) {
	t.Parallel()
	p := start(t, "3.6")
	a, b := p.pids()
	same := func(context.Context) error {
		if a2, b2 := p.pids(); a2 != a || b2 != b {
			return fmt.Errorf("the etcds were %d and %d, are %d and %d", a, b, a2, b2)
		}
		return nil
	}
	p.must(p.KillArbiter())
	for _, name := range lab.Sites {
		p.reason(name, "arbiter-unavailable")
	}
	p.steady("no etcd is touched in a whole pair", 2*time.Second, same)
	p.written("a write without the arbiter")

	p.CutLink()
	p.until("both are without a leader", func(ctx context.Context) error {
		for _, name := range lab.Sites {
			if h, err := p.Site(name).Health(ctx); err != nil || h.Role != "leaderless" {
				return errors.Join(err, fmt.Errorf("%s: %s", name, h))
			}
		}
		return nil
	})
	p.silent("a cut pair without an arbiter", 4*time.Second)
	p.must(same(p.Context()))

	p.HealLink()
	p.written("a write after the heal, without any claim")
	for _, name := range lab.Sites {
		if n := p.did(name, "append"); n != 0 {
			t.Errorf("%s appended %d times", name, n)
		}
	}

	p.CutLink()
	p.silent("a cut pair without an arbiter", 2*time.Second)
	p.must(p.StartArbiter(p.within()))
	p.written("a write after the arbiter came back")
	p.HealLink()
	if rec := p.wholeAndAudited(); rec.Generation < 2 {
		t.Errorf("generation %d", rec.Generation)
	}
}

// TestLeaderSiteIsolated: the leader's site loses the link and the arbiter. The other one
// claims; the isolated etcd is not touched, and returns.
//
// Rules: P4, P7, P12, P13; F32.
func TestLeaderSiteIsolated(t *testing.T) {
	t.Parallel()
	p := start(t, "3.7")
	isolated := p.leader()
	pid := p.etcdPID(isolated)
	p.Network.Cut(isolated, lab.ArbiterSite)
	p.Network.Cut(lab.ArbiterSite, isolated)
	p.CutLink()
	p.written("a write at the site that has the arbiter")
	p.reason(isolated, "arbiter-unavailable")
	if now := p.etcdPID(isolated); now != pid {
		t.Errorf("the isolated etcd was %d, is %d", pid, now)
	}
	p.Network.HealAll()
	if rec := p.wholeAndAudited(); rec.Survivor.Name == isolated {
		t.Errorf("%s survives", isolated)
	}
}

// TestSurvivorWithoutArbiter: a survivor goes on without the arbiter. The loser waits for
// it, and the pair is whole when it is back.
//
// Rules: P7, P12; F5, F37.
func TestSurvivorWithoutArbiter(t *testing.T) {
	t.Parallel()
	p := start(t, "3.5")
	survivor := p.leader()
	loser := p.Site(lab.Other(survivor))
	p.must(loser.Kill())
	p.written("a write by the survivor")
	p.until("the confirmation", p.confirmed)
	p.must(p.KillArbiter())
	p.reason(survivor, "arbiter-unavailable")
	pid := p.etcdPID(survivor)
	p.must(loser.Start())
	p.steady("the survivor goes on alone", 3*time.Second, func(ctx context.Context) error {
		if now := p.etcdPID(survivor); now != pid {
			return fmt.Errorf("its etcd was %d, is %d", pid, now)
		}
		list, err := p.client(survivor).MemberList(ctx)
		if err == nil && len(list.Members) != 1 {
			err = fmt.Errorf("the list has %d members", len(list.Members))
		}
		return err
	})
	p.written("a write by the survivor, without the arbiter")
	p.Site(survivor).KillAgent()
	p.must(p.Site(survivor).KillEtcd()) // and started again it leads again, without anybody's leave
	p.must(p.Site(survivor).StartAgent())
	p.written("a write by the survivor that was restarted")
	p.must(p.StartArbiter(p.within()))
	if rec := p.wholeAndAudited(); rec.Survivor.Name != survivor || rec.Generation < 2 {
		t.Errorf("survivor %s, generation %d", rec.Survivor.Name, rec.Generation)
	}
}
