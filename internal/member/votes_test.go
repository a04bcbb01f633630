package member

import (
	"context"
	"os"
	"testing"
	"time"

	"twok/arbiter"
	"twok/internal/failover"
	"twok/internal/lab"
)

// A member whose peer URLs were changed while it was a learner and that was promoted then: after a restart etcd 3.6 leads
// without its vote, and acknowledges writes that it does not have, although the list shows two voters. It may not
// claim, whatever its token says. The other one lacks nothing.
//
// Rules: P4, P5; F22.
func TestVoteThatARestartForgets(t *testing.T) {
	eachMinor(t, func(t *testing.T, minor string) {
		p := startPair(t, minor, lab.Fast, "--strict-reconfig-check=false")
		b := p.Site("b")
		cl := p.client("a")
		_, err := cl.MemberRemove(p.within(patience), p.ids["b"])
		p.must(err)
		p.must(b.Kill())
		p.must(os.RemoveAll(b.DataDir))
		var id uint64
		for ctx := p.within(patience); id == 0; time.Sleep(20 * time.Millisecond) {
			try, cancel := context.WithTimeout(ctx, time.Second)
			r, err := cl.MemberAddAsLearner(try, []string{b.AdvertisedPeerURL})
			cancel()
			if err == nil {
				id = r.Member.ID
			} else if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
		b.EtcdFlags("--initial-cluster-state", "existing")
		p.must(b.StartEtcd())
		// As some scripts do at each start of a member.
		_, err = cl.MemberUpdate(p.within(patience), id, []string{b.AdvertisedPeerURL})
		p.must(err)
		for ctx := p.within(patience); ; time.Sleep(50 * time.Millisecond) {
			if _, err := cl.MemberPromote(ctx, id); err == nil {
				break
			} else if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
		p.ids["b"] = id
		p.must(p.WaitServing(p.within(patience)))
		tok := p.token(1)
		p.put(p.encode(tok))
		p.stop()
		rec := arbiter.Record{ID: tok.RecordID, ClusterID: tok.Cluster, Generation: 1}
		for site, want := range map[string]failover.Reason{"a": failover.None, "b": failover.VoteUnsure} {
			d, err := p.read(site, 0)
			p.must(err)
			if _, why := failover.Eligible(rec, d, 0); why != want {
				t.Errorf("%s: %v, want %v; %+v, %+v", site, why, want, d.Confs.Applied, d.Past)
			}
		}

		// What it is refused for: does a write without it?
		p.must(p.Site("a").StartEtcd())
		wait := patience
		if minor != "3.6" {
			wait = 2 * time.Second
		}
		_, err = p.client("a").Put(p.within(wait), "alone", "x")
		if alone := err == nil; alone != (minor == "3.6") {
			t.Errorf("a member alone acknowledged a write: %t; the rule rests on 3.6 doing so", alone)
		}
	})
}
