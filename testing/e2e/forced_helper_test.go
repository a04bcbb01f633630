package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"twok/arbiter"
	"twok/internal/lab"
	"twok/walsurgery"
)

// forcing is a whole pair that will see forced claims, and nobody writes.
func forcing(t *testing.T, minor string, opts ...func(*lab.Config)) *pair {
	t.Helper()
	p := start(t, minor, opts...)
	p.untraced = "the model has no forced claims"
	p.w.Stop()
	// What nobody waits for any more may still be on its way: it is in both logs before these are answered.
	for _, site := range lab.Sites {
		_, err := p.client(site).Put(p.within(), "/forcing", site)
		p.must(err)
	}
	return p
}

// on runs a test on the one release that an ordinary run takes (none: ""), or on all of them.
func on(t *testing.T, ordinary string, f func(*testing.T, string)) {
	t.Helper()
	for _, minor := range lab.Minors {
		if full || minor == ordinary {
			t.Run(minor, func(t *testing.T) {
				t.Parallel()
				f(t, minor)
			})
		}
	}
}

// writeAnew starts clients of these sites, with keys of their own.
func (p *pair) writeAnew(sites ...string) {
	p.Helper()
	var urls []string
	for _, s := range sites {
		urls = append(urls, p.Site(s).ClientURL)
	}
	p.writeWithin(400*time.Millisecond, urls...)
}

// claim is an operator's forced claim for a member, by name or ID.
func (p *pair) claim(want int, member string, more ...string) (stdout, stderr string) {
	p.Helper()
	code, stdout, stderr := p.run(p.claimArgs(member, more...)...)
	if code != want {
		p.Fatalf("claim %s %q: status %d, want %d; %s%s", member, more, code, want, stdout, stderr)
	}
	return stdout, stderr
}

func (p *pair) claimArgs(member string, more ...string) []string {
	args := []string{"arbiter", "claim", "--accept-data-loss", "--arbiter", p.Arbiter, "--member", member}
	return append(args, more...)
}

// force is a claim that is carried out.
func (p *pair) force(site string, more ...string) {
	p.Helper()
	p.claim(0, fmt.Sprintf("%016x", p.walID(site)), append(more, "--yes", "--override-live-survivor")...)
	p.role(site, "alone")
}

// walID is the member ID in the site's WAL.
func (p *pair) walID(site string) uint64 {
	p.Helper()
	md, err := walsurgery.ReadMetadata(p.memberDir(site, "wal"))
	p.must(err)
	return md.MemberID
}

func (p *pair) memberDir(site string, more ...string) string {
	return filepath.Join(append([]string{p.Site(site).DataDir, "member"}, more...)...)
}

// aloneByCut cuts the link until one member leads alone, and says which.
func (p *pair) aloneByCut() (survivor, loser string) {
	p.Helper()
	p.CutLink()
	p.until("the confirmation", p.confirmed)
	survivor = p.record().Survivor.Name
	p.role(survivor, "alone")
	p.role(lab.Other(survivor), "lost")
	return survivor, lab.Other(survivor)
}

// ended: no etcd runs there.
func (p *pair) ended(site string) func(context.Context) error {
	return func(context.Context) error {
		if pid := p.etcdPID(site); pid != 0 {
			return fmt.Errorf("etcd of %s runs as %d", site, pid)
		}
		return nil
	}
}

// setAside is the one directory that was set aside at the site: its name says why, and for which generation of the record.
func (p *pair) setAside(site, reason string) string {
	p.Helper()
	dirs, err := filepath.Glob(filepath.Join(p.Site(site).DataDir, "member.set-aside-*"))
	p.must(err)
	name := fmt.Sprintf("member.set-aside-%s-g%d-", reason, p.record().Generation)
	if len(dirs) != 1 || !strings.HasPrefix(filepath.Base(dirs[0]), name) {
		p.Fatalf("set aside at %s: %q, want one, named %s…", site, dirs, name)
	}
	return dirs[0]
}

// aloneAndRestored is aloneByCut, and then both sites killed and the survivor's disk put back to where it was before the writes of lost
// and before a confirmation above it (P10). Those of old are from before the copy.
func (p *pair) aloneAndRestored() (survivor, loser string, old, lost *ledger) {
	p.Helper()
	survivor, loser = p.aloneByCut()
	old = p.ledger(survivor)
	old.more(10)
	p.must(p.Site(loser).Kill())
	p.must(p.Site(survivor).Kill())
	old.end()
	restore := p.saved(survivor)
	p.must(p.Site(survivor).Start())
	p.role(survivor, "alone")
	lost = p.ledger(survivor)
	lost.more(50)
	lost.end()
	st, err := p.Site(survivor).Status(p.within())
	p.must(err)
	p.Site(survivor).KillAgent() // a new agent confirms at once
	p.must(p.Site(survivor).StartAgent())
	p.confirmedAt(st.RaftIndex)
	p.must(p.Site(survivor).Kill())
	restore()
	return survivor, loser, old, lost
}

// ledger has clients of one member alone, and knows what became of each write.
type ledger struct {
	*pair
	prefix  string
	clients int

	mu     sync.Mutex
	acked  map[string]int64 // the revision by key
	begun  map[string]bool
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func (p *pair) ledger(site string) *ledger {
	p.Helper()
	cl, err := p.Site(site).Client()
	p.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	p.loads++
	l := &ledger{pair: p, prefix: fmt.Sprintf("/ledger%d/%s/", p.loads, site), clients: 4, acked: map[string]int64{}, begun: map[string]bool{}, cancel: cancel}
	for i := range l.clients {
		l.wg.Go(func() { l.writes(ctx, cl, i) })
	}
	p.Cleanup(func() { l.end(); cl.Close() })
	return l
}

func (l *ledger) writes(ctx context.Context, cl *clientv3.Client, client int) {
	for n := 0; ctx.Err() == nil; n++ {
		key := fmt.Sprintf("%s%d/%d", l.prefix, client, n)
		l.mu.Lock()
		l.begun[key] = true
		l.mu.Unlock()
		one, cancel := context.WithTimeout(ctx, 400*time.Millisecond)
		put, err := cl.Put(one, key, valueOf(key))
		cancel()
		if err == nil {
			l.mu.Lock()
			l.acked[key] = put.Header.Revision
			l.mu.Unlock()
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func valueOf(key string) string { return "value of " + key }

func (l *ledger) end() {
	l.cancel()
	l.wg.Wait()
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

// more waits for so many writes from now on.
func (l *ledger) more(n int) {
	l.Helper()
	goal := l.count() + n
	l.until(fmt.Sprintf("%d more writes below %s", n, l.prefix), func(context.Context) error {
		if got := l.count(); got < goal {
			return fmt.Errorf("%d of %d", got, goal)
		}
		return nil
	})
}

// held are the keys of the ledger that both members of the whole pair have.
func (l *ledger) held() map[string]int64 {
	l.Helper()
	var both []map[string]int64
	for _, site := range lab.Sites {
		l.must(l.Site(site).WaitServing(l.within()))
		get, err := l.client(site).Get(l.within(), l.prefix, clientv3.WithPrefix())
		l.must(err)
		m := map[string]int64{}
		for _, kv := range get.Kvs {
			m[string(kv.Key)] = kv.ModRevision
			if string(kv.Value) != valueOf(string(kv.Key)) {
				l.Errorf("%s has %s = %q", site, kv.Key, kv.Value)
			}
		}
		both = append(both, m)
	}
	if !maps.Equal(both[0], both[1]) {
		l.Fatalf("the members differ below %s: %d and %d keys", l.prefix, len(both[0]), len(both[1]))
	}
	return both[0]
}

// complete: every write that was acknowledged is there, at its revision.
func (l *ledger) complete() {
	l.Helper()
	held := l.held()
	for key, rev := range l.acked {
		if held[key] != rev {
			l.Errorf("%s, acknowledged at revision %d, is at %d", key, rev, held[key])
		}
	}
	for key := range held {
		if !l.begun[key] {
			l.Errorf("%s was never written", key)
		}
	}
	if len(l.acked) == 0 {
		l.Errorf("no write below %s was acknowledged", l.prefix)
	}
}

// lostWrites is what the command prints, as far as it is compared here.
type lostWrites struct {
	Keys []struct {
		Key  []byte
		Lost struct {
			Is *struct {
				Mod   int64 `json:"mod_revision"`
				Value []byte
			}
		}
		Status   string
		Internal bool
	}
	Changes []struct {
		Op       string
		Key      []byte
		Revision int64
	}
	Unknown []json.RawMessage
}

// lostExactly: of the overridden member's ledger, what the pair does not have is what the command lists from
// its directory, and nothing else, but for writes of unknown outcome that were under way at an end. It returns how
// many acknowledged ones there are. passed are the ledgers of the other member from before the cut: what it had passed on to this
// one, and was never told the end of, may be listed too.
func (l *ledger) lostExactly(dir string, passed ...*ledger) int {
	l.Helper()
	held := l.held()
	code, out, errs := l.run("lost-writes", "--data-dir", dir, "--arbiter", l.Arbiter, "--json",
		"--endpoints", l.Site("a").ClientURL, "--endpoints", l.Site("b").ClientURL)
	if code != 0 {
		l.Fatalf("lost-writes: status %d, %s%s", code, out, errs)
	}
	var got lostWrites
	l.must(json.Unmarshal([]byte(out), &got))
	want := maps.Clone(l.acked)
	for key, rev := range held {
		if acked, ok := want[key]; ok && acked != rev {
			l.Errorf("%s was acknowledged at revision %d and is at %d", key, acked, rev)
		}
		delete(want, key)
	}
	lost, unknown := len(want), 0
	for _, k := range got.Keys {
		key := string(k.Key)
		switch rev, ok := want[key]; {
		case k.Internal || strings.HasPrefix(key, "/twok/"):
		case slices.ContainsFunc(passed, func(o *ledger) bool { return o.begun[key] && o.acked[key] == 0 }):
			unknown++
		case !l.begun[key]:
			l.Errorf("listed: %s, which nobody wrote there", key)
		case held[key] != 0:
			l.Errorf("listed: %s, which is not lost", key)
		case k.Status != "lost" || k.Lost.Is == nil || string(k.Lost.Is.Value) != valueOf(key):
			l.Errorf("listed: %s as %+v", key, k)
		case !ok:
			unknown++
		case k.Lost.Is.Mod != rev:
			l.Errorf("listed: %s at revision %d, acknowledged at %d", key, k.Lost.Is.Mod, rev)
		}
		delete(want, key)
	}
	for key, rev := range want {
		l.Errorf("not listed: %s, acknowledged at revision %d", key, rev)
	}
	if len(got.Unknown) > 0 {
		l.Errorf("the command could not tell: %s", got.Unknown)
	}
	l.Logf("%s: %d acknowledged, %d of them lost, all listed; %d more listed that were not acknowledged", l.prefix, len(l.acked), lost, unknown)
	return lost
}

// entry is what two histories share or not.
type entry struct {
	term uint64
	data string
}

// logOf reads a WAL directory.
func (p *pair) logOf(dir string) (map[uint64]entry, uint64) {
	p.Helper()
	l, err := walsurgery.Inspect(zap.NewNop(), dir)
	p.must(err)
	defer l.Close()
	m := map[uint64]entry{}
	for e := range l.Entries() {
		p.must(e.Err)
		m[e.Index] = entry{e.Term, fmt.Sprintf("%d %x %+v", e.Kind, e.Data, e.Change)}
	}
	return m, l.Summary().Last.Index
}

// apart: the two logs share a beginning, part, and have no term in common from there on. It returns the terms of both.
func (p *pair) apart(one, two string) (a, b map[uint64]bool) {
	p.Helper()
	x, xLast := p.logOf(one)
	y, yLast := p.logOf(two)
	a, b = map[uint64]bool{}, map[uint64]bool{}
	shared := 0
	for i := uint64(1); i <= max(xLast, yLast); i++ {
		ex, okx := x[i]
		ey, oky := y[i]
		if len(a)+len(b) == 0 && okx && oky && ex == ey {
			shared++
			continue
		}
		if okx {
			a[ex.term] = true
		}
		if oky {
			b[ey.term] = true
		}
	}
	if shared == 0 || len(a) == 0 || len(b) == 0 {
		p.Fatalf("%s and %s share %d entries and part with the terms %v and %v", one, two, shared, a, b)
	}
	for term := range a {
		if b[term] {
			p.Errorf("both histories have term %d from where they part: %v, %v", term, a, b)
		}
	}
	return a, b
}

// forcedEntries are the history's forced claims.
func forcedEntries(r arbiter.Record) (out []arbiter.HistoryEntry) {
	for _, h := range r.History[:r.HistoryCount()] {
		if h.Forced {
			out = append(out, h)
		}
	}
	return out
}
