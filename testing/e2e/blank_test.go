package e2e

import (
	"os"
	"testing"

	"twok/internal/lab"
)

// TestBlankDisk: the loser's disk is replaced, the agent's own memory with it. It returns by itself, with the flags
// that its etcd always had: as a new member with an empty log, not as the voter that it was.
// Rules: P12, P13; F13.
func TestBlankDisk(t *testing.T) {
	for _, minor := range []string{"3.5", "3.6", "3.7"} {
		t.Run(minor, func(t *testing.T) {
			p := start(t, minor)
			p.untraced = "the model's disks are not replaced"
			survivor := p.leader()
			loser := lab.Other(survivor)
			old := p.walID(loser)
			p.must(p.Site(loser).Kill())
			p.written("the survivor leads alone")
			p.role(survivor, "alone")
			p.must(os.RemoveAll(p.Site(loser).DataDir))
			p.must(p.Site(loser).Start())
			rec := p.wholeAndAudited()
			if id := p.walID(loser); id == old {
				t.Errorf("the member came back as %x, which it was", id)
			}
			if rec.Survivor.Name != survivor {
				t.Errorf("the record names %q", rec.Survivor.Name)
			}
			// It is a full member: the next failover may be its own.
			p.must(p.Site(survivor).Kill())
			p.written("the returned member leads alone")
			p.must(p.Site(survivor).Start())
			p.wholeAndAudited()
		})
	}
}
