package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"twok/internal/lab"
)

// TestWipedWhileRunning: a person empties a member's data beside its running agent, as guides to etcd say, and ends its etcd. With
// --initial-cluster-state existing, as guides say too, etcd would begin at once on nothing, as the voter that the pair
// knows, and panic at the leader's first message (F23). It is kept down and returns as a new member: while the other one lives, and when
// that one is lost at the same time, after it is back. Nobody goes on with less than all data.
// Rules: P12, P13; F23.
func TestWipedWhileRunning(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		t.Run(map[bool]string{false: "the other one lives", true: "the other one is lost"}[lost], func(t *testing.T) {
			t.Parallel()
			p := start(t, "3.6", func(c *lab.Config) { c.ClaimAfter = 3 * time.Second })
			p.untraced = "the model's disks are not replaced"
			other := p.leader()
			wiped := lab.Other(other)
			p.Site(wiped).EtcdFlags("--initial-cluster-state", "existing")
			p.must(p.Site(wiped).Stop())
			p.must(p.Site(wiped).Start())
			p.whole()
			p.written("a write before")
			old := p.walID(wiped)
			if lost {
				p.must(p.Site(other).Kill())
			}
			p.must(os.RemoveAll(filepath.Join(p.Site(wiped).DataDir, "member")))
			p.must(p.Site(wiped).KillEtcd())
			if lost {
				p.reason(wiped, "disk-blank")
				p.silent("without the other one", 5*time.Second)
				p.must(p.Site(other).Start())
			}
			p.written("the other one leads")
			rec := p.wholeAndAudited()
			if id := p.walID(wiped); id == old {
				t.Errorf("the member came back as %x, which it was", id)
			}
			if rec.Survivor.Name != other {
				t.Errorf("the record names %q, want %q", rec.Survivor.Name, other)
			}
		})
	}
}

// TestVolumeComesLate: the data are not there when the agent starts, and come a moment later: a volume that is mounted late, or a person who
// puts back what was moved away. Etcd is held until then and goes on with them, as the member that it was; nobody has to restart the agent.
//
// Rules: P12; F18.
func TestVolumeComesLate(t *testing.T) {
	t.Parallel()
	p := start(t, "3.6", func(c *lab.Config) { c.ClaimAfter = time.Minute })
	p.untraced = "the model's disks are not replaced"
	late := lab.Other(p.leader())
	old := p.walID(late)
	p.must(p.Site(late).Stop())
	data := filepath.Join(p.Site(late).DataDir, "member")
	p.must(os.Rename(data, data+".elsewhere"))
	p.must(p.Site(late).Start())
	p.reason(late, "disk-blank")
	p.must(os.Rename(data+".elsewhere", data))
	if rec := p.wholeAndAudited(); rec.Survivor.Name != "" {
		t.Errorf("%s had to claim", rec.Survivor.Name)
	}
	if id := p.walID(late); id != old {
		t.Errorf("the member came back as %x, it was %x", id, old)
	}
}
