package member

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"twok/arbiter"
	"twok/internal/failover"
	"twok/internal/lab"
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

// On real etcd: once the segment with the token's entry is gone (as etcd's purge takes it: whole, oldest first), the
// member may not claim; etcd runs on; with the token written anew it may.
//
// Rules: P4, P5, P14; F31.
func TestTokenLeavesTheLog(t *testing.T) {
	eachMinor(t, func(t *testing.T, minor string) {
		p := startPair(t, minor, slow, "--snapshot-count", "10")
		tok := p.token(1)
		p.put(p.encode(tok))
		cl := p.client("a")
		value := strings.Repeat("x", 1<<20)
		for i := range 90 { // a segment has 64 MB; the next one gets a snapshot record, so that etcd reads from there
			_, err := cl.Put(p.within(patience), "big", value[i/70*(len(value)-1):])
			p.must(err)
		}
		judge := func(when string, want failover.Reason) {
			t.Helper()
			p.stop()
			for _, site := range lab.Sites {
				d, err := p.read(site, 0)
				p.must(err)
				rec := arbiter.Record{ID: tok.RecordID, ClusterID: d.Cluster, Generation: 1}
				if _, why := failover.Eligible(rec, d, 0); why != want {
					t.Errorf("%s, %s: %v, want %v; the log begins at %d, the token is at %d", when, site, why, want, d.First, d.TokenIndex)
				}
				if (d.TokenIndex == 0) != (want == failover.LogCompacted) || d.First == 0 {
					t.Errorf("%s, %s: the log begins at %d, the token is at %d", when, site, d.First, d.TokenIndex)
				}
			}
		}
		judge("before", failover.None)
		for _, site := range lab.Sites {
			segs, err := filepath.Glob(filepath.Join(p.Site(site).DataDir, "member", "wal", "*.wal"))
			p.must(err)
			if len(segs) != 2 {
				t.Fatalf("%s has %d segments", site, len(segs))
			}
			p.must(os.Remove(segs[0]))
		}
		judge("the first segment is gone", failover.LogCompacted)
		p.start()
		p.put(p.encode(p.token(1)))
		judge("the token written anew", failover.None)
	})
}
