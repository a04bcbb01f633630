package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"twok/internal/lab"
	"twok/walsurgery"
)

// bulk writes at least n entries as fast as they go, and ends.
func (p *pair) bulk(site string, n int64) *lab.Writer {
	p.Helper()
	w, err := lab.StartWriter(lab.WriterConfig{
		Endpoints: []string{p.Site(site).ClientURL}, Clients: 64, Deadline: 5 * time.Second, Prefix: "/bulk/",
	})
	p.must(err)
	defer w.Stop()
	p.until(fmt.Sprintf("%d writes", n), func(context.Context) error {
		if got := w.Acked(); got < n {
			return fmt.Errorf("%d so far", got)
		}
		return nil
	})
	return w
}

// TestReturnBySnapshot: the survivor is too far ahead for its log to reach the
// loser, and nobody writes any more when the link is healed.
//
// Rules: P12, P13; F24, F27.
func TestReturnBySnapshot(t *testing.T) {
	t.Parallel()
	for _, minor := range lab.Minors {
		if !full && minor != "3.6" {
			continue
		}
		t.Run(minor, func(t *testing.T) {
			t.Parallel()
			p := start(t, minor, func(c *lab.Config) { c.EtcdFlags = []string{"--snapshot-count", "500"} })
			p.CutLink()
			p.written("a write by the survivor")
			survivor := p.record().Survivor.Name
			bulk := p.bulk(survivor, 7000)
			p.w.Stop()
			p.HealLink()
			rec := p.whole()
			p.Log(p.audit())
			r, err := lab.Audit(p.within(), bulk, p.AuditMembers())
			if err != nil || !r.OK() || r.Acked < 7000 {
				t.Fatalf("the many writes: %v, %v", r, err)
			}
			loser := lab.Other(rec.Survivor.Name)
			if l := p.logLines(p.Site(loser).AgentLog, "received and saved database snapshot"); len(l) == 0 {
				t.Error("the loser received no snapshot: this test showed nothing")
			}
		})
	}
}

var ownKey = regexp.MustCompile(`/(e2e|bulk)/[0-9]+/[0-9]+`)

// TestReturnWithDivergentTail: the old leader took writes that nobody acknowledged. They are in
// its log where the survivor's log has others, and it returns with that log.
//
// Rules: P8, P12, P13; F23, F24.
func TestReturnWithDivergentTail(t *testing.T) {
	t.Parallel()
	for _, minor := range lab.Minors {
		if full || minor == "3.7" {
			t.Run(minor, func(t *testing.T) {
				t.Parallel()
				divergentTail(t, minor)
			})
		}
	}
}

func divergentTail(t *testing.T, minor string) {
	p := start(t, minor)
	leader := p.leader()
	loser, survivor := p.Site(leader), p.Site(lab.Other(leader))
	loser.KillAgent() // etcd goes on, and cannot claim
	bulk, err := lab.StartWriter(lab.WriterConfig{
		// Soon enough for another try before the old leader notices that it is alone.
		Endpoints: []string{loser.ClientURL}, Clients: 32, Deadline: 60 * time.Millisecond, Prefix: "/bulk/",
	})
	p.must(err)
	defer bulk.Stop()
	p.answered("a write at the leader", bulk.NextAck())
	p.CutLink()
	p.written("a write by the survivor")
	bulk.Stop()
	p.w.Stop() // the loser's tail may well be the longer one
	p.HealLink()
	p.must(loser.StartAgent())
	rec := p.whole()
	if rec.Survivor.Name != survivor.Name {
		t.Fatalf("the record names %q, not %q, which alone had an agent", rec.Survivor.Name, survivor.Name)
	}
	p.Log(p.audit())
	r, err := lab.Audit(p.within(), bulk, p.AuditMembers())
	if err != nil || !r.OK() {
		t.Fatalf("the writes at the old leader: %v, %v", r, err)
	}

	// What the old leader had from the fork on.
	kept, err := filepath.Glob(filepath.Join(loser.DataDir, "member", "wal.before-*"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("replaced WALs: %q, %v", kept, err)
	}
	old, err := walsurgery.Inspect(zap.NewNop(), kept[0])
	p.must(err)
	defer old.Close()
	fork := rec.Fork
	if sum := old.Summary(); sum.Commit >= fork.Index || sum.Last.Index < fork.Index {
		t.Fatalf("the old log is committed to %d and ends at %s, the fork is at %d@%d: nothing diverged", sum.Commit, sum.Last, fork.Index, fork.Term)
	}
	var keys []string
	for e := range old.From(fork.Index) {
		if e.Term >= fork.Term {
			t.Errorf("entry %d of the old log has term %d, the fork %d", e.Index, e.Term, fork.Term)
		}
		if k := ownKey.Find(e.Data); k != nil {
			keys = append(keys, string(k))
		}
	}
	if len(keys) == 0 {
		t.Fatal("there is no write in the divergent tail")
	}
	t.Logf("%d writes diverged from index %d on", len(keys), fork.Index)
	for _, name := range lab.Sites {
		cl, err := p.Site(name).Client()
		p.must(err)
		defer cl.Close()
		for _, k := range keys {
			// Overwritten by the survivor's history: nowhere.
			get, err := cl.Get(p.within(), k, clientv3.WithSerializable())
			p.must(err)
			if get.Count != 0 {
				t.Errorf("%s has %s, which was never committed", name, k)
			}
		}
	}
	if l := p.agentLines(leader); !strings.Contains(strings.Join(l, "\n"), "the WAL carries the new member ID") {
		t.Error("the loser did not keep its log")
	}
}

// switchable is an etcd that can be broken: the agent's command is a link.
type switchable struct {
	*pair
	link, real string
}

func (p *pair) switchable(site, minor string) switchable {
	p.Helper()
	dir := filepath.Join(p.dir, "bin-"+site)
	p.must(os.MkdirAll(dir, 0o755))
	s := switchable{p, filepath.Join(dir, "etcd"), etcd(p.T, minor).Etcd}
	s.point(s.real)
	b := etcd(p.T, minor)
	b.Etcd = s.link
	p.Site(site).UseEtcd(b)
	return s
}

func (s switchable) point(to string) {
	s.Helper()
	tmp := s.link + ".new"
	s.must(os.Symlink(to, tmp))
	s.must(os.Rename(tmp, s.link))
}

func (s switchable) breakIt() {
	s.Helper()
	script := s.link + ".broken"
	s.must(os.WriteFile(script, []byte("#!/bin/sh\necho 'broken on purpose' >&2\nexit 1\n"), 0o755))
	s.point(script)
}

func (s switchable) repair() { s.point(s.real) }

// TestReturnOfCrashLoopingLoser: the loser's etcd program fails at each start. Its agent
// prepares the return all the same, and completes it when etcd runs again.
//
// Rules: P12; F18, F20.
func TestReturnOfCrashLoopingLoser(t *testing.T) {
	t.Parallel()
	p := prepare(t, "3.5")
	sw := map[string]switchable{"a": p.switchable("a", "3.5"), "b": p.switchable("b", "3.5")}
	p.must(p.Start(p.within()))
	p.whole()
	p.write()
	for _, cut := range []lab.CutKind{lab.CutKillLeader, lab.CutLink} {
		leader := p.leader()
		loser := leader
		if cut == lab.CutLink {
			loser = lab.Other(leader)
			p.Site(loser).KillAgent() // it shall lose
		}
		p.must(p.Cut(cut, leader))
		sw[loser].breakIt()
		if cut == lab.CutLink {
			// Its etcd ends while it is cut off, and does not start any more.
			p.must(p.Site(loser).StartAgent())
			p.must(p.Site(loser).KillEtcd())
		}
		p.written("a write by the survivor")
		p.must(p.Heal())
		p.until("the loser crash-loops as a prepared learner", func(ctx context.Context) error {
			h, err := p.Site(loser).Health(ctx)
			if err == nil && (h.Role != "catching-up" || p.etcdPID(loser) != 0) {
				err = errors.New(h.String())
			}
			return err
		})
		sw[loser].repair()
		if rec := p.wholeAndAudited(); rec.Survivor.Name == loser {
			t.Errorf("%s survives", loser)
		}
	}
}

// The ways to damage a WAL: a byte of an entry, which breaks its checksum, and a byte
// that fills up a frame, which etcd does not look at and no rewrite reproduces.
const (
	inData     = "data"
	inPadding  = "padding"
	inMetadata = "metadata" // the log does not even say whose it is
)

// damage flips one byte in the middle of the newest WAL segment.
func (p *pair) damage(site, where string) {
	p.Helper()
	segs, err := filepath.Glob(filepath.Join(p.Site(site).DataDir, "member", "wal", "*.wal"))
	p.must(err)
	if len(segs) == 0 {
		p.Fatal("no WAL")
	}
	name := segs[len(segs)-1]
	if where == inMetadata {
		name = segs[0]
	}
	b, err := os.ReadFile(name)
	p.must(err)
	// A frame is its length in 8 bytes (the uppermost says how many bytes fill it up
	// to a multiple of 8), the record, the filling.
	var at []int
	for off := 0; off+8 <= len(b); {
		l := binary.LittleEndian.Uint64(b[off:])
		record, pad := int(l&(1<<56-1)), 0
		if l>>63 != 0 {
			pad = int(l >> 56 & 7)
		}
		if record == 0 || off+8+record+pad > len(b) {
			break
		}
		switch {
		case where == inMetadata && len(at) < 2:
			at = append(at, off+8+record-1) // a checksum, then the metadata
		case where == inMetadata:
		case where == inData:
			at = append(at, off+8+record-1)
		case pad > 0:
			at = append(at, off+8+record+pad-1)
		}
		off += 8 + record + pad
	}
	if len(at) < 8 && (where != inMetadata || len(at) < 2) {
		p.Fatalf("%s has %d places to damage", name, len(at))
	}
	b[at[len(at)/2]] ^= 0xff
	p.must(os.WriteFile(name, b, 0o600))
}

// TestReturnWithDamagedWAL: the loser's log cannot be kept: damaged, so that its etcd dies at
// each start, or of a form that cannot be copied. It returns from an empty log, its directory is set
// aside, whole.
//
// Rules: P12, P13; F20, F23.
func TestReturnWithDamagedWAL(t *testing.T) {
	t.Parallel()
	for _, where := range []string{inData, inPadding, inMetadata} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			p := start(t, "3.6")
			p.panicsOK = true // etcd's answer to a damaged WAL
			loser := p.Site(lab.Other(p.leader()))
			p.must(loser.Kill())
			p.damage(loser.Name, where)
			before := digest(t, filepath.Join(loser.DataDir, "member", "wal"))
			p.written("a write by the survivor")
			p.must(p.Heal())
			p.wholeAndAudited()
			aside, err := filepath.Glob(filepath.Join(loser.DataDir, "member.set-aside-*"))
			if err != nil || len(aside) != 1 {
				t.Fatalf("set aside: %q, %v", aside, err)
			}
			// In the padding etcd may take the damage for the end of the log; if its database had not been
			// written for a while, then the token is gone with what came after.
			if !strings.Contains(aside[0], "-wal-unreadable-") && !(where == inPadding && strings.Contains(aside[0], "-token-missing-")) {
				t.Errorf("set aside as %s", aside[0])
			}
			if where != inPadding { // there etcd starts and writes
				unchanged(t, "the WAL that was set aside", filepath.Join(aside[0], "wal"), before)
			}
		})
	}
}
