package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"twok/internal/lab"
	"twok/walsurgery"
)

// TestBlankDisk: the loser's disk is replaced, the agent's own memory with it: while the survivor leads alone, or before
// it claimed. The member returns by itself, with the flags that its etcd always had: as a new member with an empty log, not as
// the voter that it was.
// Rules: P12, P13; F13.
func TestBlankDisk(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		minor   string
		claimed bool
	}{{"3.5", true}, {"3.6", false}, {"3.7", true}, {"3.5", false}, {"3.6", true}, {"3.7", false}} {
		name := c.minor + "/" + map[bool]string{true: "after the claim", false: "before the claim"}[c.claimed]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !full && (c.minor == "3.5") == c.claimed {
				t.Skip("with TWOK_E2E=full")
			}
			p := start(t, c.minor)
			p.untraced = "the model's disks are not replaced"
			survivor := p.leader()
			loser := lab.Other(survivor)
			old := p.walID(loser)
			p.must(p.Site(loser).Kill())
			if c.claimed {
				p.written("the survivor leads alone")
				p.role(survivor, "alone")
			}
			p.must(os.RemoveAll(p.Site(loser).DataDir))
			p.must(p.Site(loser).Start())
			p.written("the survivor leads")
			rec := p.wholeAndAudited()
			if id := p.walID(loser); id == old {
				t.Errorf("the member came back as %x, which it was", id)
			}
			if rec.Survivor.Name != survivor {
				t.Errorf("the record names %q", rec.Survivor.Name)
			}
			// It is a full member: the next failover is its own.
			p.must(p.Site(survivor).Kill())
			p.written("the returned member leads alone")
			p.must(p.Site(survivor).Start())
			p.wholeAndAudited()
		})
	}
}

// TestBlankDiskWithoutArbiter: whether there is a record is not known, so etcd is not started on an empty disk, and
// the agent says why; with the arbiter back it goes on.
// Rules: P3, P11; F13.
func TestBlankDiskWithoutArbiter(t *testing.T) {
	t.Parallel()
	p := prepare(t, "3.6")
	p.untraced = "nothing happens before the record is known"
	for _, name := range lab.Sites {
		p.must(p.Site(name).Start())
	}
	p.reason("a", "arbiter-unavailable")
	p.reason("b", "arbiter-unavailable")
	for _, name := range lab.Sites {
		if pid, err := p.Site(name).EtcdPID(); err == nil && pid != 0 {
			t.Errorf("etcd of %s runs as %d", name, pid)
		}
	}
	p.must(p.StartArbiter(p.within()))
	p.whole()
	p.write()
	p.audit()
}

// TestBlankDiskInSignalMode: somebody else starts etcd on the replaced disk. It takes its old ID, which was removed, and dies
// again and again; the agent, whose memory is gone too, brings it back.
// Rules: P12, P13; F13.
func TestBlankDiskInSignalMode(t *testing.T) {
	t.Parallel()
	for _, minor := range []string{"3.5", "3.6", "3.7"} {
		t.Run(minor, func(t *testing.T) {
			t.Parallel()
			if !full && minor != "3.6" {
				t.Skip("with TWOK_E2E=full")
			}
			p := start(t, minor, external)
			p.untraced = "the model's disks are not replaced"
			survivor := p.leader()
			loser := lab.Other(survivor)
			p.must(p.Site(loser).Kill())
			p.written("the survivor leads alone")
			p.role(survivor, "alone")
			p.must(os.RemoveAll(p.Site(loser).DataDir))
			p.must(p.Site(loser).Start())
			p.wholeAndAudited()
			p.must(p.Site(survivor).Kill())
			p.written("the returned member leads alone")
			p.must(p.Site(survivor).Start())
			p.wholeAndAudited()
		})
	}
}

// TestSurvivorsDiskReplaced: the disk of the member that leads alone is replaced, and somebody else starts etcd on it, as the
// voter that it was, while the link is cut. With the link back it elects the loser, which knows nothing of the claim: the
// pair of before, without what the survivor acknowledged. The agents stop it; a person decides.
// Rules: P10, P16, P18; A2; F13.
func TestSurvivorsDiskReplaced(t *testing.T) {
	t.Parallel()
	p := start(t, "3.6", external)
	p.untraced = "the model's disks are not replaced"
	survivor := p.leader()
	loser := lab.Other(survivor)
	p.CutLink()
	p.written("the survivor leads alone")
	p.role(loser, "lost")
	p.until("the survivor confirms", func(ctx context.Context) error {
		rec, err := p.Record(ctx)
		if err == nil && rec.Confirmed.Index == 0 {
			err = errors.New("not confirmed")
		}
		return err
	})
	p.w.Stop()
	p.must(p.Site(survivor).Kill())
	p.must(os.RemoveAll(p.Site(survivor).DataDir))
	p.must(p.Site(survivor).Start())
	p.until("etcd runs on the new disk", func(context.Context) error {
		_, err := walsurgery.ReadMetadata(filepath.Join(p.Site(survivor).DataDir, "member", "wal"))
		return err
	})
	p.HealLink()
	p.role(loser, "fenced")
	p.reason(loser, "overridden")
	p.until("nobody serves", func(context.Context) error { // fenced: etcd is being stopped
		if p.wrote("nobody serves") {
			return errors.New("a write was acknowledged")
		}
		return nil
	})
	p.steady("nobody serves", 3*time.Second, func(context.Context) error {
		if p.wrote("nobody serves") {
			return errors.New("a write was acknowledged")
		}
		return nil
	})
	before := len(p.trace(loser))
	p.claim(0, fmt.Sprintf("%016x", p.walID(loser)), "--yes", "--override-live-survivor")
	p.until(loser+": was alone", func(context.Context) error { // the other may be back before anybody looks
		if !slices.ContainsFunc(p.trace(loser)[before:], func(l lab.TraceLine) bool { return l.To == "alone" }) {
			return errors.New("it was not")
		}
		return nil
	})
	p.whole()
	if !p.wrote("a person decided") {
		t.Error("the pair is whole, and nobody serves")
	}
}

// wrote tries one write at each member.
func (p *pair) wrote(what string) (ok bool) {
	for _, name := range lab.Sites {
		ctx, cancel := context.WithTimeout(p.Context(), 3*time.Second)
		_, err := p.client(name).Put(ctx, "/one", what)
		cancel()
		ok = ok || err == nil
	}
	return ok
}
