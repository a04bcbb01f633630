package lostwrites

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// oddKeys are what a script gets wrong.
var oddKeys = []string{"\x00", "\x00\x00a", "a\nb", "-k", "--", "--lease=1", "'", "\"", "\\", "\\x41", "$(touch x)", "`id`", "%s%d", " lead", "trail ", "\xff\xfe", "ü\u202e", "a\tb\r", "(", ")", "put", "!"}

func init() {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	oddKeys = append(oddKeys, string(all))
}

// before writes what both histories share.
func before(p *pair, c *clientv3.Client) {
	p.t.Helper()
	ctx := p.within(patience)
	for i := range 30 {
		_, err := c.Put(ctx, fmt.Sprintf("shared/%02d", i), fmt.Sprint("old", i))
		p.must(err)
	}
	_, err := c.Put(ctx, "same", "twice")
	p.must(err)
	_, err = c.Grant(ctx, 7200)
	p.must(err)
}

// workload makes every kind of change and returns the highest revision that was acknowledged.
func workload(p *pair, c *clientv3.Client) int64 {
	p.t.Helper()
	ctx := p.within(patience)
	last := int64(0)
	do := func(op clientv3.Op) clientv3.OpResponse {
		p.t.Helper()
		r, err := c.Do(ctx, op)
		p.must(err)
		switch {
		case r.Put() != nil:
			last = r.Put().Header.Revision
		case r.Del() != nil:
			last = r.Del().Header.Revision
		case r.Txn() != nil:
			last = r.Txn().Header.Revision
		}
		return r
	}
	refused := func(op clientv3.Op, want error) {
		p.t.Helper()
		if _, err := c.Do(ctx, op); !errors.Is(err, want) {
			p.t.Fatalf("%v, want %v", err, want)
		}
	}
	put, del := clientv3.OpPut, clientv3.OpDelete
	do(put("same", "twice")) // as before the fork
	do(put("shared/00", "new"))
	do(put("shared/00", "newer"))
	do(del("shared/01"))
	do(del("shared/absent"))
	do(put("shared/02", ""))
	do(del("shared/1", clientv3.WithPrefix()))
	for i, k := range oddKeys {
		do(put(k, fmt.Sprintf("%s\x00\n'\"%d", k, i)))
	}
	do(put("big", string(bytes.Repeat([]byte{0, 255, '\n', '\''}, 300_000))))
	// Leases: one that stays, one whose keys it takes along, one that is not there.
	stays, err := c.Grant(ctx, 3600)
	p.must(err)
	goes, err := c.Grant(ctx, 3600)
	p.must(err)
	do(put("leased", "a", clientv3.WithLease(stays.ID)))
	do(put("leased/2", "b", clientv3.WithLease(goes.ID)))
	do(put("leased/1", "c", clientv3.WithLease(goes.ID)))
	do(put("leased/3", "d", clientv3.WithLease(goes.ID)))
	do(put("leased/3", "freed"))
	do(put("leased", "kept", clientv3.WithIgnoreLease()))
	do(put("leased", "", clientv3.WithIgnoreValue(), clientv3.WithLease(goes.ID)))
	do(put("leased", "", clientv3.WithIgnoreValue(), clientv3.WithLease(stays.ID)))
	refused(put("x", "y", clientv3.WithLease(12345)), rpctypes.ErrLeaseNotFound)
	refused(put("nokey", "", clientv3.WithIgnoreValue()), rpctypes.ErrKeyNotFound)
	_, err = c.Revoke(ctx, goes.ID)
	p.must(err)
	last += 1
	if _, err := c.Revoke(ctx, goes.ID); err == nil {
		p.t.Fatal("a lease was revoked twice")
	}
	// Transactions: both branches, nested, empty, over ranges, several changes of one revision.
	eq := func(k, v string) clientv3.Cmp { return clientv3.Compare(clientv3.Value(k), "=", v) }
	do(clientv3.OpTxn([]clientv3.Cmp{eq("shared/00", "newer")}, []clientv3.Op{put("txn/yes", "1"), del("shared/03"), put("txn/a", "2")}, []clientv3.Op{put("txn/no", "1")}))
	do(clientv3.OpTxn([]clientv3.Cmp{eq("shared/00", "other")}, []clientv3.Op{put("txn/no", "1")}, []clientv3.Op{put("txn/else", "1"), del("txn/yes")}))
	do(clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision("txn/new"), "=", 0)},
		[]clientv3.Op{clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Version("shared/04"), ">", 5)}, []clientv3.Op{put("txn/no", "1")},
			[]clientv3.Op{put("txn/new", "in"), clientv3.OpTxn(nil, []clientv3.Op{del("shared/05"), put("txn/deep", "\x00")}, nil)}), put("txn/out", "o")}, nil))
	do(clientv3.OpTxn([]clientv3.Cmp{eq("absent", "x")}, []clientv3.Op{put("txn/no", "1")}, []clientv3.Op{clientv3.OpGet("shared/00")}))
	do(clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision("shared/").WithPrefix(), ">", 0)}, []clientv3.Op{del("shared/2", clientv3.WithPrefix())}, nil))
	refused(clientv3.OpTxn(nil, []clientv3.Op{put("txn/no", "1"), clientv3.OpGet("a", clientv3.WithRev(1<<40))}, nil), rpctypes.ErrFutureRev)
	do(put("again", "x"))
	do(del("again"))
	do(put("again", "y"))
	return last
}

// keysOf is the whole key space, values included.
func keysOf(p *pair, c *clientv3.Client) map[string]string {
	p.t.Helper()
	r, err := c.Get(p.within(patience), "\x00", clientv3.WithFromKey())
	p.must(err)
	out := map[string]string{}
	for _, kv := range r.Kvs {
		out[string(kv.Key)] = string(kv.Value)
	}
	return out
}

// replay runs the script with the real etcdctl and a real shell.
func replay(p *pair, l *Listing, overwrite bool) (string, error) {
	p.t.Helper()
	var script bytes.Buffer
	p.must(l.Script(&script, overwrite))
	name := filepath.Join(p.t.TempDir(), "replay.sh")
	p.must(os.WriteFile(name, script.Bytes(), 0o700))
	cmd := exec.CommandContext(p.t.Context(), "/bin/sh", name)
	cmd.Dir = filepath.Dir(name)
	cmd.Env = append(os.Environ(), "ETCDCTL="+p.bin.Etcdctl, "ETCDCTL_ENDPOINTS="+p.Site("b").ClientURL)
	out, err := cmd.CombinedOutput()
	if left, _ := filepath.Glob(filepath.Join(cmd.Dir, "*")); len(left) != 1 {
		p.t.Fatalf("the script made files: %q", left)
	}
	return string(out), err
}

// What an overridden member had committed beyond the fork is listed exactly, change by change, with the state before each: when the
// database had all of it, when it had nothing of it and all is in the
// log, and in between. The directory does not
// change by a bit. The script brings the keys back, whatever their bytes, and leaves alone what the survivor wrote since.
//
// Rules: P18.
func TestExactly(t *testing.T) {
	eachMinor(t, func(t *testing.T, minor string) {
		for _, mode := range []string{"applied", "logged", "between"} {
			t.Run(mode, func(t *testing.T) {
				var flags []string
				if mode == "between" {
					flags = []string{"--backend-batch-interval=1h", "--backend-batch-limit=1000000"}
				}
				p := startPair(t, minor, flags...)
				before(p, p.client("a"))
				p.split()
				db := filepath.Join(p.Site("a").DataDir, "member", "snap", "db")
				old, err := os.ReadFile(db)
				p.must(err)
				p.lead("a")
				c := p.client("a")
				start, err := c.Get(p.within(patience), "x")
				p.must(err)
				fork := start.Header.Revision
				acked := workload(p, c)
				want, last := p.watch(c, fork+1)
				wanted := keysOf(p, c)
				if acked != last {
					t.Fatalf("acknowledged up to %d, watched to %d", acked, last)
				}
				if mode == "applied" {
					time.Sleep(500 * time.Millisecond) // etcd's batch interval is 100 ms
				}
				p.kill("a")
				if mode == "logged" { // as if nothing since the fork had been flushed
					p.must(os.WriteFile(db, old, 0o600))
				}

				for name, s := range map[string]Sources{"fork": p.atFork(), "against": {Against: p.Site("b").DataDir}} {
					l := p.open(s)
					same(t, listed(t, l), want)
					if l.LowRevision != fork || l.HighRevision != fork || !l.Alone || len(l.Unknown) > 0 {
						t.Errorf("%s: fork at revisions %d to %d, want %d; alone %t, unknown %v", name, l.LowRevision, l.HighRevision, fork, l.Alone, l.Unknown)
					}
					if mode == "applied" && l.Applied < l.Last.Index-1 || mode == "logged" && l.Applied >= l.Fork.Index || mode == "between" && (l.Applied < l.Fork.Index || l.Applied >= l.Last.Index) {
						t.Errorf("%s: applied %d, fork %d, last %s: not what this was to show", name, l.Applied, l.Fork.Index, l.Last)
					}
					for _, c := range l.Changes {
						// Two entries revoke the same lease: the log does not tell which one deleted the keys.
						if c.Perhaps || c.Index == 0 && !strings.HasPrefix(string(c.Key), "leased/") {
							t.Fatalf("%s: revision %d: perhaps %t, entry %d", name, c.Revision, c.Perhaps, c.Index)
						}
					}
					checkEvents(t, l, "lease-grant", 2, "lease-revoke", 2, "membership", 1)
				}
				if mode == "applied" {
					survivor(p, wanted)
				}
			})
		}
	})
}

func checkEvents(t *testing.T, l *Listing, want ...any) {
	t.Helper()
	for i := 0; i < len(want); i += 2 {
		n := 0
		for _, e := range l.Events {
			if e.Kind == want[i] {
				n++
			}
		}
		if n != want[i+1] {
			t.Errorf("%d events %q, want %d: %v", n, want[i], want[i+1], l.Events)
		}
	}
}

// survivor starts b, lets it write some of the same keys, compares, replays and compares again.
func survivor(p *pair, wanted map[string]string) {
	t := p.t
	t.Helper()
	p.lead("b")
	cb := p.client("b")
	ctx := p.within(patience)
	for k, v := range map[string]string{"shared/00": "survivor's", "shared/01": "survivor's", "txn/a": "2", "later": "x"} {
		_, err := cb.Put(ctx, k, v)
		p.must(err)
	}
	_, err := cb.Delete(ctx, "shared/02")
	p.must(err)
	mine := keysOf(p, cb)

	unseen := p.open(p.atFork()) // without Compare
	l := p.open(p.atFork())
	p.must(l.Compare(ctx, cb))
	for _, k := range l.Keys {
		want := Lost
		switch string(k.Key) {
		case "shared/00", "shared/01", "shared/02":
			want = Superseded
		case "txn/a", "same", "leased/1", "leased/2", "txn/yes":
			want = Same
		}
		if k.Status != want {
			t.Errorf("%q is %s, want %s: at the fork %+v, lost %+v, now %+v", k.Key, k.Status, want, k.AtFork, k.Lost, k.Now)
		}
	}
	expect := func(what string, superseded map[string]string) {
		t.Helper()
		got := keysOf(p, cb)
		for k, v := range wanted {
			if s, ok := superseded[k]; ok {
				v = s
			}
			if w, ok := got[k]; !ok || w != v {
				t.Errorf("%s: %q is %.60q (%t), want %.60q", what, k, w, ok, v)
			}
		}
		for k := range got {
			_, lost := wanted[k]
			_, own := superseded[k]
			if !lost && !own && k != "later" {
				t.Errorf("%s: %q is there, and was not in the lost history", what, k)
			}
		}
	}
	keep := map[string]string{"shared/00": mine["shared/00"], "shared/01": mine["shared/01"]}
	// Somebody writes between the look and the replay.
	_, err = cb.Put(ctx, oddKeys[3], "meanwhile")
	p.must(err)
	out, err := replay(p, l, false)
	if code := exitCode(err); code != 3 || strings.Count(out, "left as it is") != 1 {
		t.Fatalf("replay: exit %d, %s", code, out)
	}
	skipped := map[string]string{"shared/00": keep["shared/00"], "shared/01": keep["shared/01"], oddKeys[3]: "meanwhile"}
	got := keysOf(p, cb)
	if _, ok := got["shared/02"]; ok {
		t.Error("shared/02 was deleted by the survivor and is back")
	}
	delete(wanted, "shared/02")
	expect("after the replay", skipped)

	// The keys are bound to a lease of the same TTL again.
	kv, err := cb.Get(ctx, "leased")
	p.must(err)
	ttl, err := cb.TimeToLive(ctx, clientv3.LeaseID(kv.Kvs[0].Lease))
	if err != nil || ttl.GrantedTTL != 3600 {
		t.Errorf("lease of the key: %+v, %v", ttl, err)
	}

	// With everything overwritten both are the same. A listing without endpoints guards by the fork: it leaves all that was written since.
	out, err = replay(p, unseen, false)
	if code := exitCode(err); code != 3 || strings.Contains(out, "failed") {
		t.Fatalf("replay without endpoints: exit %d, %s", code, out)
	}
	expect("after the guarded replay", skipped)
	wanted["shared/02"] = ""
	p.must(l.Compare(ctx, cb))
	if out, err := replay(p, l, true); err != nil {
		t.Fatalf("replay with conflicts: %v, %s", err, out)
	}
	expect("after the overwrite", nil)
	p.must(l.Compare(ctx, cb))
	for _, k := range l.Keys {
		if k.Status != Same {
			t.Errorf("%q is %s after the replay", k.Key, k.Status)
		}
	}
}

func exitCode(err error) int {
	var x *exec.ExitError
	if errors.As(err, &x) {
		return x.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}

// Nothing was written beyond the fork: nothing is listed, whichever way the fork is found. A directory that was not overridden says so.
//
// Rules: P18.
func TestNothingLost(t *testing.T) {
	p := startPair(t, "3.6")
	before(p, p.client("a"))
	p.kill("a")
	p.kill("b")
	p.fork = p.operate("b", 1<<32)
	for _, s := range []Sources{p.atFork(), {Against: p.Site("b").DataDir}} {
		l := p.open(s)
		if len(l.Changes) > 0 || len(l.Keys) > 0 || len(l.Events) > 0 {
			t.Errorf("%+v: %+v, %+v", s, l.Changes, l.Events)
		}
	}
	if _, err := Open(p.Site("b").DataDir, p.atFork()); !errors.Is(err, ErrSameHistory) {
		t.Errorf("the survivor's own directory: %v", err)
	}
	p.lead("b")
	if _, err := Open(p.Site("b").DataDir, p.atFork()); !errors.Is(err, ErrInUse) {
		t.Errorf("while etcd runs: %v", err)
	}
}

// Killed amid a storm of writers: everything acknowledged is listed, and nothing that nobody tried.
//
// Rules: P18.
func TestStorm(t *testing.T) {
	eachMinor(t, func(t *testing.T, minor string) {
		p := startPair(t, minor)
		before(p, p.client("a"))
		p.split()
		p.lead("a")
		ctx, stop := context.WithCancel(p.within(patience))
		defer stop()
		const writers = 16
		acked, tried := make([]map[string]bool, writers), make([]map[string]bool, writers)
		done := make(chan bool)
		var total atomic.Int64
		for w := range writers {
			acked[w], tried[w] = map[string]bool{}, map[string]bool{}
			c := p.client("a")
			go func() {
				defer func() { done <- true }()
				for i := 0; ctx.Err() == nil; i++ {
					k := fmt.Sprintf("storm/%d/%d", w, i)
					tried[w][k] = true
					if _, err := c.Put(ctx, k, k); err == nil {
						acked[w][k] = true
						total.Add(1)
					} else {
						return
					}
				}
			}()
		}
		for total.Load() < 1000 && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		p.kill("a")
		stop()
		for range writers {
			<-done
		}
		l := p.open(p.atFork())
		seen := map[string]bool{}
		possibly := 0
		for _, c := range l.Changes {
			if seen[string(c.Key)] {
				t.Errorf("%q is listed twice", c.Key)
			}
			seen[string(c.Key)] = true
			if c.Certainty == Possibly {
				possibly++
			}
			if v, err := c.Value.Bytes(); err != nil || string(v) != string(c.Key) {
				t.Errorf("%q has the value %q, %v", c.Key, v, err)
			}
		}
		n := 0
		for w := range writers {
			for k := range acked[w] {
				n++
				if !seen[k] {
					t.Errorf("%q was acknowledged and is not listed", k)
				}
			}
		}
		for k := range seen {
			if !slices.ContainsFunc(tried, func(m map[string]bool) bool { return m[k] }) {
				t.Errorf("%q is listed, and nobody wrote it", k)
			}
		}
		if n < 1000 {
			t.Errorf("only %d writes were acknowledged: nothing was shown", n)
		}
		t.Logf("%d acknowledged, %d listed, %d of them possibly committed; applied %d, committed %d, last %s", n, len(seen), possibly, l.Applied, l.Committed, l.Last)
	})
}
