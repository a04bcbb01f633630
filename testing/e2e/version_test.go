package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"twok/internal/lab"
	"twok/walsurgery"
)

// TestMixedVersions: the survivor runs a newer etcd than the loser. The loser is refused, its
// data stay as they are, and it returns by itself when its binary was upgraded.
//
// Rules: P12; F20.
func TestMixedVersions(t *testing.T) {
	t.Parallel()
	for newer, older := range map[string]string{"3.7": "3.6", "3.6": "3.5"} {
		if full || newer == "3.7" {
			t.Run(newer+" and "+older, func(t *testing.T) {
				t.Parallel()
				mixedVersions(t, newer, older)
			})
		}
	}
}

func mixedVersions(t *testing.T, newer, older string) {
	p := prepare(t, newer)
	old := p.switchable("b", older)
	p.panicsOK = true // etcd's answer to a newer cluster version
	p.must(p.Start(p.within()))
	p.whole()
	p.write()
	loser := p.Site("b")
	p.must(loser.Kill())
	p.written("a write by the survivor")
	p.until("the cluster version of the survivor alone", func(ctx context.Context) error {
		st, err := p.client("a").Status(ctx, p.Site("a").ClientURL)
		if err == nil && st.StorageVersion != newer+".0" {
			err = fmt.Errorf("its storage version is %s", st.StorageVersion)
		}
		return err
	})
	wal := filepath.Join(loser.DataDir, "member", "wal")
	before, err := walsurgery.ReadMetadata(wal)
	p.must(err)
	p.must(loser.Start())
	p.reason("b", "version-too-old")
	p.steady("the loser is left alone", 2*time.Second, func(ctx context.Context) error {
		list, err := p.client("a").MemberList(ctx)
		if err == nil && len(list.Members) != 1 {
			err = fmt.Errorf("the survivor's list has %d members", len(list.Members))
		}
		return err
	})
	after, err := walsurgery.ReadMetadata(wal)
	if err != nil || after != before {
		t.Errorf("its WAL was %v, is %v (%v)", before, after, err)
	}
	for _, pattern := range []string{"member.*", "member/wal.*"} {
		if left, err := filepath.Glob(filepath.Join(loser.DataDir, pattern)); err != nil || len(left) > 0 {
			t.Errorf("a refused loser has %q (%v)", left, err)
		}
	}
	old.point(etcd(t, newer).Etcd)
	if rec := p.wholeAndAudited(); rec.Survivor.Name != "a" {
		t.Errorf("%s survives", rec.Survivor.Name)
	}
}

// TestUnsafeFlags: an etcd with a flag that the rules exclude is not armed, and its agent
// claims nothing. Without the flag it is armed again.
//
// Rules: P11, A0.
func TestUnsafeFlags(t *testing.T) {
	t.Parallel()
	p := start(t, "3.6", func(c *lab.Config) { c.ClaimAfter = 2 * time.Second })
	p.untraced = "one etcd runs without PreVote (A0), the model's all with it"
	restart := func(a, b []string) {
		t.Helper()
		for _, name := range lab.Sites {
			p.must(p.Site(name).Kill())
		}
		p.Site("a").EtcdFlags(a...)
		p.Site("b").EtcdFlags(b...)
		p.must(p.Heal())
	}
	restart([]string{"--unsafe-no-fsync"}, []string{"--pre-vote=false"})
	for _, name := range lab.Sites {
		p.reason(name, "etcd-unsafe")
	}
	p.written("a write with unsafe flags")
	p.CutLink()
	p.silent("a cut pair with unsafe flags", 5*time.Second)
	for _, name := range lab.Sites {
		if n := p.did(name, "stop"); n != 0 {
			t.Errorf("the etcd of %s was stopped %d times", name, n)
		}
	}
	p.HealLink()
	restart(nil, nil)
	p.wholeAndAudited()
}

// TestForceNewCluster: an etcd that was started with --force-new-cluster leads alone, by no
// claim. Its agent names that, and confirms nothing.
//
// Rules: P10, P11, A0.
func TestForceNewCluster(t *testing.T) {
	t.Parallel()
	p := start(t, "3.5")
	p.untraced = "an etcd that makes itself a new cluster is not in the model"
	p.w.Stop()
	for _, name := range lab.Sites {
		p.must(p.Site(name).Kill())
	}
	before := p.record()
	p.Site("b").EtcdFlags("--force-new-cluster")
	p.must(p.Site("b").Start())
	p.role("b", "alone")
	p.reason("b", "etcd-unsafe")
	if after := p.record(); after != before {
		t.Errorf("the record was %+v, is %+v", before, after)
	}
}
