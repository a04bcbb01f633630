package e2e

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"twok/internal/lab"
)

// TestMoveUnderSupervise: etcd runs under a parent that restarts it, and twok beside it in signal mode. One member after the
// other, the follower first, is moved under its agent: exactly one restart of each, writes stop for that restart alone, none
// is lost, nobody claims, and the parent has no part in it any more. The other member's etcd goes on.
//
// Rules: P3, P12, P14; F4, F12.
func TestMoveUnderSupervise(t *testing.T) {
	t.Parallel()
	for _, minor := range lab.Minors {
		if !full {
			continue
		}
		t.Run(minor, func(t *testing.T) {
			t.Parallel()
			p := prepare(t, minor, external, func(c *lab.Config) { c.ClaimAfter = 8 * time.Second }) // longer than a restart
			p.must(p.StartArbiter(p.within()))
			parents := map[string]*lab.Parent{}
			for _, name := range lab.Sites {
				var err error
				parents[name], err = p.Site(name).StartParent()
				p.must(err)
			}
			p.must(p.WaitServing(p.within()))
			p.on()
			first := p.whole()
			const deadline = 2 * time.Second // of a write: longer than a hiccup of a busy machine
			p.writeWithin(deadline, p.Site("a").ClientURL, p.Site("b").ClientURL)
			for i := range lab.Sites {
				leader := p.leader()
				moved := p.Site(lab.Other(leader))
				if i == 1 { // the guide: give the leadership to the member that was moved
					moved = p.Site(leader)
					to := p.life(lab.Other(leader)).id
					cl := p.client(leader)
					_, err := cl.MoveLeader(p.within(), to)
					p.must(err)
					p.whole()
					leader = p.leader()
				}
				if moved.Name == leader {
					t.Fatalf("%s is to be moved and leads", leader)
				}
				was, stays := p.life(moved.Name), p.life(leader)
				moved.StopAgent()
				parents[moved.Name].Stop()
				if pid := p.etcdPID(moved.Name); pid != 0 {
					t.Fatalf("etcd runs on as %d", pid)
				}
				moved.UseMode(lab.Supervise)
				p.must(moved.StartAgent())
				p.written("a write after the restart")
				if rec := p.whole(); rec.Generation != first.Generation || rec.Survivor != first.Survivor || rec.WholeMembers != first.WholeMembers {
					t.Errorf("%s moved: the record was %+v, is %+v", moved.Name, first, rec)
				}
				now := p.life(moved.Name)
				if now.id != was.id || now.pid == was.pid {
					t.Errorf("%s was %+v, is %+v", moved.Name, was, now)
				}
				if other := p.life(leader); other.pid != stays.pid || other.started != stays.started || other.id != stays.id {
					t.Errorf("%s was %+v, is %+v", leader, stays, other)
				}
				// What begins now is answered, and nobody restarts it any more.
				time.Sleep(deadline)
				failed := p.w.Unknown()
				p.steady("it runs on under its agent", 2*time.Second, func(context.Context) error {
					if pid := p.etcdPID(moved.Name); pid != now.pid {
						return fmt.Errorf("etcd was %d, is %d", now.pid, pid)
					}
					return nil
				})
				if n := p.w.Unknown() - failed; n != 0 {
					t.Errorf("%d writes failed after the move", n)
				}
				starts, err := parents[moved.Name].Starts()
				if err != nil || len(starts) != 1 || starts[0] != strconv.Itoa(was.pid) {
					t.Errorf("the parent of %s started %q, %v", moved.Name, starts, err)
				}
				if n := p.logLines(moved.AgentLog, `"msg":"started etcd"`); len(n) != 1 {
					t.Errorf("the agent of %s started etcd %d times: %q", moved.Name, len(n), n)
				}
			}
			p.wholeAndAudited()
			p.failover(lab.CutKillLeader)
		})
	}
}

// TestParentRestarts: a claim and a return in signal mode under a real parent, which restarts etcd at once.
//
// Rules: P7, P12.
func TestParentRestarts(t *testing.T) {
	t.Parallel()
	if !full {
		t.Skip("with TWOK_E2E=full")
	}
	p := prepare(t, "3.6", external)
	p.must(p.StartArbiter(p.within()))
	parents := map[string]*lab.Parent{}
	for _, name := range lab.Sites {
		var err error
		parents[name], err = p.Site(name).StartParent()
		p.must(err)
	}
	p.on()
	p.whole()
	p.write()
	p.CutLink()
	p.written("a write by the survivor")
	p.HealLink()
	p.wholeAndAudited()
	for name, parent := range parents {
		starts, err := parent.Starts()
		if err == nil && (!parent.Alive() || len(starts) < 2) {
			err = errors.New("it ended, or nobody restarted etcd")
		}
		if err != nil {
			t.Errorf("the parent of %s: %v; it started %q", name, err, starts)
		}
		if pid := p.etcdPID(name); strconv.Itoa(pid) != starts[len(starts)-1] {
			t.Errorf("the etcd of %s is %d, its parent started %q", name, pid, starts)
		}
	}
}
