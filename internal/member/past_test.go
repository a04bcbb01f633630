package member

import (
	"testing"

	"twok/arbiter"
	"twok/internal/failover"
)

// On real etcd: a third voter that a user added and removed again after the token was written is seen in both
// members' logs, and denies; with the token written anew it does not. (A learner that came and went never does.)
//
// Rules: P4, P5, P14; F33.
func TestThirdVoterThatCameAndWent(t *testing.T) {
	eachMinor(t, func(t *testing.T, minor string) {
		p := startPair(t, minor, slow, "--strict-reconfig-check=false")
		tok := p.token(1)
		p.put(p.encode(tok))
		cl := p.client("a")
		learner, err := cl.MemberAddAsLearner(p.within(patience), []string{"http://127.0.0.1:2"})
		p.must(err)
		_, err = cl.MemberRemove(p.within(patience), learner.Member.ID)
		p.must(err)
		judge := func(when string, want failover.Reason) {
			p.stop()
			for _, site := range []string{"a", "b"} {
				d, err := p.read(site, 0)
				p.must(err)
				rec := arbiter.Record{ID: tok.RecordID, ClusterID: d.Cluster, Generation: 1}
				if _, why := failover.Eligible(rec, d, 0); why != want {
					t.Errorf("%s, %s: %v, want %v; token at %d, %+v", when, site, why, want, d.TokenIndex, d.Past)
				}
				if d.TokenIndex == 0 {
					t.Errorf("%s, %s: the token's entry was not found", when, site)
				}
			}
			p.start()
		}
		judge("a learner", failover.None)

		cl = p.client("a")
		third, err := cl.MemberAdd(p.within(patience), []string{"http://127.0.0.1:1"})
		p.must(err)
		_, err = cl.MemberRemove(p.within(patience), third.Member.ID)
		p.must(err)
		judge("a voter", failover.TokenOutlived)

		p.put(p.encode(p.token(1)))
		judge("a voter before the token", failover.None)
	})
}
