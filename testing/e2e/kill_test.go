package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"twok/internal/lab"
)

// steps are failpoints of a list. Ordinary runs take those with a star.
func steps(list string) (out []string) {
	for f := range strings.FieldsSeq(list) {
		name, star := strings.CutSuffix(f, "*")
		if full || star {
			out = append(out, name)
		}
	}
	return out
}

// beforeAndAfter are the failpoints of actions; a star in front or behind says which ordinary runs take.
func beforeAndAfter(actions ...string) (out []string) {
	for _, a := range actions {
		name := strings.Trim(a, "*")
		if full || strings.HasPrefix(a, "*") {
			out = append(out, "agent/"+name+"/before")
		}
		if full || strings.HasSuffix(a, "*") {
			out = append(out, "agent/"+name+"/after")
		}
	}
	return out
}

// kill is the specification for a failpoint that does not say itself what to do.
func kill(point string) string {
	if strings.Contains(point, "=") {
		return point
	}
	return point + "=kill"
}

// TestClaimerKilled: the claimer's agent is killed at each step of its claim, while
// the other site is down. Started again it goes on, and the pair becomes whole.
//
// Rules: P1, P2, P7, P8, P9, P10, P16; F19.
func TestClaimerKilled(t *testing.T) {
	t.Parallel()
	points := slices.Concat(
		beforeAndAfter("preflight", "stop*", "read-data", "*append", "release*", "*sample"),
		// The first swap of an agent that leads a whole pair is the commit mark.
		steps("agent/swap/before=kill@2* agent/swap/after=kill@2* wal/append/begin wal/append/hardstate* wal/append/entries* wal/append/commit wal/append/synced"))
	p := start(t, "3.6")
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			q := *p
			q.T = t
			p := &q
			before := p.whole().Generation
			claimer := p.leader()
			other := p.Site(lab.Other(claimer))
			p.restart(claimer, kill(point))
			p.whole()
			p.must(other.Kill())
			p.died(claimer)
			p.restart(claimer, "")
			p.written("a write by the survivor after its agent came back")
			p.must(other.Start())
			if rec := p.wholeAndAudited(); rec.Survivor.Name != claimer || rec.Generation <= before {
				t.Errorf("%s survives at generation %d after %d", rec.Survivor.Name, rec.Generation, before)
			}
		})
	}
}

// TestClaimerKilledOtherClaims: the claimer's agent dies with its etcd stopped, before
// its swap. The other site claims, and the first one returns as the loser.
//
// Rules: P1, P4, P7, P12; F19.
func TestClaimerKilledOtherClaims(t *testing.T) {
	t.Parallel()
	p := start(t, "3.7")
	for _, point := range append(beforeAndAfter("stop*", "read-data"), "agent/swap/before=kill@2") {
		t.Run(point, func(t *testing.T) {
			q := *p
			q.T = t
			p := &q
			claimer := p.leader()
			other := lab.Other(claimer)
			p.restart(claimer, kill(point))
			p.whole()
			p.Site(other).KillAgent() // it shall not be first
			p.CutLink()
			p.died(claimer)
			p.must(p.Site(other).StartAgent())
			p.written("a write by the other site")
			p.HealLink()
			p.restart(claimer, "")
			if rec := p.wholeAndAudited(); rec.Survivor.Name != other {
				t.Errorf("%s survives", rec.Survivor.Name)
			}
		})
	}
}

// TestLoserKilled: the loser's agent is killed at each step of its return.
//
// Rules: P12, P13; F6, F7, F8, F19.
func TestLoserKilled(t *testing.T) {
	t.Parallel()
	points := slices.Concat(
		beforeAndAfter("look-at-list", "*add-learner*", "stop*", "read-data", "rewrite*", "release", "compare*", "promote*"),
		steps("wal/rewrite/begin wal/rewrite/segment wal/rewrite/staged* wal/rewrite/exchanged* wal/rewrite/aside"))
	p := start(t, "3.6")
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			q := *p
			q.T = t
			p := &q
			survivor := p.leader()
			loser := p.Site(lab.Other(survivor))
			p.must(loser.Kill())
			p.written("a write by the survivor")
			p.failpoints(loser.Name, kill(point))
			p.must(loser.Start())
			p.died(loser.Name)
			p.restart(loser.Name, "")
			if rec := p.wholeAndAudited(); rec.Survivor.Name != survivor {
				t.Errorf("%s survives", rec.Survivor.Name)
			}
		})
	}
}

// TestKilledInSignalMode: the same where somebody else restarts etcd at once, as soon as
// the locks are free.
//
// Rules: P1, P7, P9, P12; F19.
func TestKilledInSignalMode(t *testing.T) {
	t.Parallel()
	p := start(t, "3.5", external)
	for _, point := range append(beforeAndAfter("stop*", "read-data", "append", "release"),
		steps("agent/swap/after=kill@2 wal/append/hardstate wal/append/entries* wal/append/commit")...) {
		t.Run("claimer/"+point, func(t *testing.T) {
			q := *p
			q.T = t
			p := &q
			claimer := p.leader()
			other := p.Site(lab.Other(claimer))
			p.restart(claimer, kill(point))
			p.whole()
			p.must(other.Kill())
			p.died(claimer)
			p.restart(claimer, "")
			p.written("a write by the survivor after its agent came back")
			p.must(other.Start())
			if rec := p.wholeAndAudited(); rec.Survivor.Name != claimer {
				t.Errorf("%s survives", rec.Survivor.Name)
			}
		})
	}
	for _, point := range append(beforeAndAfter("stop", "rewrite*", "release"),
		steps("wal/rewrite/staged wal/rewrite/exchanged* wal/rewrite/aside")...) {
		t.Run("loser/"+point, func(t *testing.T) {
			q := *p
			q.T = t
			p := &q
			survivor := p.leader()
			loser := p.Site(lab.Other(survivor))
			p.must(loser.Kill())
			p.written("a write by the survivor")
			p.failpoints(loser.Name, kill(point))
			p.must(loser.Start())
			p.died(loser.Name)
			p.restart(loser.Name, "")
			if rec := p.wholeAndAudited(); rec.Survivor.Name != survivor {
				t.Errorf("%s survives", rec.Survivor.Name)
			}
		})
	}
}

// TestLoserKilledTwice: the agent dies after its learner was added and before it knows the ID,
// and again after it removed that leftover.
//
// Rules: P12; F6, F7.
func TestLoserKilledTwice(t *testing.T) {
	t.Parallel()
	p := start(t, "3.7")
	survivor := p.leader()
	loser := p.Site(lab.Other(survivor))
	p.must(loser.Kill())
	p.written("a write by the survivor")
	p.failpoints(loser.Name, "agent/add-learner/after=kill")
	p.must(loser.Start())
	p.died(loser.Name)
	p.restart(loser.Name, "agent/remove-learner/after=kill")
	p.died(loser.Name)
	p.restart(loser.Name, "")
	p.wholeAndAudited()
	if n := p.did(loser.Name, "remove-learner"); n != 1 {
		t.Errorf("%d learners were removed, want the one that was left over", n)
	}
}

// TestLoserKilledInReset: the same where the loser starts over from an empty log.
//
// Rules: P12, P13; F19, F20.
func TestLoserKilledInReset(t *testing.T) {
	t.Parallel()
	p := start(t, "3.5")
	p.panicsOK = true // etcd's answer to a damaged WAL
	for _, point := range steps("rejoin/reset/prepared* rejoin/reset/exchanged* rejoin/reset/aside wal/create/created") {
		t.Run(point, func(t *testing.T) {
			q := *p
			q.T = t
			p := &q
			survivor := p.leader()
			loser := p.Site(lab.Other(survivor))
			p.must(loser.Kill())
			p.damage(loser.Name, inData)
			p.written("a write by the survivor")
			p.failpoints(loser.Name, kill(point))
			p.must(loser.Start())
			p.died(loser.Name)
			p.restart(loser.Name, "")
			p.wholeAndAudited()
		})
	}
}

// TestLeaderKilled: the leader's agent is killed where it makes the pair whole again.
//
// Rules: P3, P14, P15; F8, F19.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	p := start(t, "3.7")
	for _, point := range append(beforeAndAfter("*write-token*", "tidy"), // The first swap of an agent that finds itself alone is a confirmation.
		steps("agent/swap/before=kill@2 agent/swap/after=kill@2*")...) {
		t.Run(point, func(t *testing.T) {
			q := *p
			q.T = t
			p := &q
			survivor := p.leader()
			loser := p.Site(lab.Other(survivor))
			p.must(loser.Kill())
			p.written("a write by the survivor")
			p.until("the confirmation", p.confirmed)
			p.restart(survivor, kill(point))
			p.must(loser.Start())
			p.died(survivor)
			p.restart(survivor, "")
			p.wholeAndAudited()
		})
	}
}

// TestKilledAtBirth: the first leader's agent is killed where it creates the record,
// writes the token and the note.
//
// Rules: P3, P14; F19.
func TestKilledAtBirth(t *testing.T) {
	t.Parallel()
	for i, point := range append(beforeAndAfter("*write-token*"),
		steps("agent/swap/before=kill@1 agent/swap/after=kill@1* agent/swap/before=kill@2 agent/swap/after=kill@2")...) {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			p := prepare(t, lab.Minors[i%len(lab.Minors)], func(c *lab.Config) { c.ClaimAfter = 5 * time.Second })
			for _, name := range lab.Sites {
				p.failpoints(name, kill(point))
			}
			p.must(p.Start(p.within()))
			dead := ""
			for end := time.Now().Add(patience); dead == ""; time.Sleep(20 * time.Millisecond) {
				for _, name := range lab.Sites {
					if !p.Site(name).AgentAlive() {
						dead = name
					}
				}
				if time.Now().After(end) {
					t.Fatal("no agent died at its failpoint")
				}
			}
			p.restart(dead, "")
			p.whole()
			p.write()
			if rec := p.wholeAndAudited(); rec.Generation != 1 || rec.Survivor.ID != 0 {
				t.Errorf("the record: %+v", rec)
			}
		})
	}
}
