package lostwrites

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/internal/lab"
	"twok/walsurgery"
)

const patience = 60 * time.Second

// pair is a real pair of etcd members without agents, which the test makes into two lineages: a, which will
// be overridden, and b, which overrides it.
type pair struct {
	*lab.Cluster
	t    testing.TB
	bin  lab.Binaries
	ids  map[string]uint64
	fork walsurgery.Position // of b
}

// eachMinor runs a test on each version with TWOK_E2E=full; else on one, which depends on the test, and TestExactly on all.
func eachMinor(t *testing.T, fn func(t *testing.T, minor string)) {
	for i, minor := range lab.Minors {
		if os.Getenv("TWOK_E2E") != "full" && t.Name() != "TestExactly" && i != len(t.Name())%len(lab.Minors) {
			continue
		}
		t.Run(minor, func(t *testing.T) { fn(t, minor) })
	}
}

func startPair(t testing.TB, minor string, flags ...string) *pair {
	t.Helper()
	bin, err := lab.Etcd(t.Context(), minor, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	c, err := lab.NewCluster(lab.Config{Dir: t.TempDir(), Etcd: bin, Mode: lab.Plain, Timing: lab.Fast, EtcdFlags: flags})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		for _, name := range lab.Sites {
			if b, err := os.ReadFile(c.Site(name).EtcdLog); err == nil && t.Failed() {
				t.Logf("end of etcd's log at %s:\n%s", name, b[max(0, len(b)-3000):])
			}
		}
	})
	p := &pair{Cluster: c, t: t, bin: bin, ids: map[string]uint64{}}
	for _, name := range lab.Sites {
		p.must(p.Site(name).StartEtcd())
	}
	p.must(p.WaitServing(p.within(patience)))
	for _, name := range lab.Sites {
		st, err := c.Site(name).Status(p.within(patience))
		p.must(err)
		p.ids[name] = st.Header.MemberId
	}
	return p
}

func (p *pair) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(p.t.Context(), d)
	p.t.Cleanup(cancel)
	return ctx
}

func (p *pair) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) client(site string, auth ...string) *clientv3.Client {
	p.t.Helper()
	cfg := clientv3.Config{Endpoints: []string{p.Site(site).ClientURL}, DialTimeout: 10 * time.Second}
	if len(auth) == 2 {
		cfg.Username, cfg.Password = auth[0], auth[1]
	}
	c, err := clientv3.New(cfg)
	p.must(err)
	p.t.Cleanup(func() { c.Close() })
	return c
}

// kill ends a member by SIGKILL and waits for its locks.
func (p *pair) kill(site string) {
	p.t.Helper()
	p.must(p.Site(site).Kill())
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		locked, err := walsurgery.Locked(p.wal(site))
		p.must(err)
		if !locked {
			return
		}
		if time.Now().After(end) {
			p.t.Fatal("the WAL stays locked")
		}
	}
}

func (p *pair) wal(site string) string { return filepath.Join(p.Site(site).DataDir, "member", "wal") }

// operate makes a member the only one of its own history, in a term of at least min.
func (p *pair) operate(site string, min uint64) walsurgery.Position {
	p.t.Helper()
	l, err := walsurgery.Open(nil, p.wal(site))
	p.must(err)
	plan, err := l.Plan([]uint64{p.ids[lab.Other(site)]}, walsurgery.MinTerm(min))
	p.must(err)
	p.must(errors.Join(l.Apply(plan), l.Close()))
	return plan.Fork
}

// split kills both and makes them two histories.
func (p *pair) split() {
	p.t.Helper()
	p.kill("a")
	p.kill("b")
	p.operate("a", 0)
	p.fork = p.operate("b", 1<<32)
}

func (p *pair) lead(site string) {
	p.t.Helper()
	p.must(p.Site(site).StartEtcd())
	p.must(p.Site(site).WaitServing(p.within(patience)))
}

// files is every file below a directory, with its contents' hash, mode, size and modification time.
func files(t testing.TB, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		sum := ""
		if st.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum = fmt.Sprintf("%x", sha256.Sum256(b))
		}
		fmt.Fprintln(&out, path, st.Mode(), st.Size(), st.ModTime().UnixNano(), sum)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// open lists a's directory, set aside under a name as the agent gives it, and checks that nothing in it changed.
func (p *pair) open(s Sources) *Listing {
	p.t.Helper()
	dir := filepath.Join(p.Site("a").DataDir, "member")
	before := files(p.t, dir)
	l, err := Open(p.Site("a").DataDir, s)
	p.must(err)
	p.t.Cleanup(func() { l.Close() })
	for _, c := range l.Changes {
		if _, err := c.Value.Bytes(); err != nil {
			p.t.Fatal(err)
		}
	}
	if after := files(p.t, dir); after != before {
		p.t.Fatalf("the directory changed:\n%s\n%s", before, after)
	}
	return l
}

func (p *pair) atFork() Sources { return Sources{At: &p.fork} }

// made is a change as etcd's own watch tells it.
type made struct {
	rev, sub               int64
	key                    string
	tomb                   bool
	value                  string
	lease, create, version int64
	old                    string // "none", or what State.text gives
}

func (m made) String() string {
	if m.tomb {
		return fmt.Sprintf("%d.%d delete %q old %s", m.rev, m.sub, m.key, m.old)
	}
	return fmt.Sprintf("%d.%d put %q %x lease %d create %d version %d old %s", m.rev, m.sub, m.key, sum([]byte(m.value)), m.lease, m.create, m.version, m.old)
}

func oldText(mod int64, value []byte, lease int64) string {
	return fmt.Sprintf("%d %x %d", mod, sum(value), lease)
}

// watch reads all changes from a revision on, up to the present one, which it returns too.
func (p *pair) watch(c *clientv3.Client, from int64) (changes []made, last int64) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	resp, err := c.Get(ctx, "\x00")
	p.must(err)
	last = resp.Header.Revision
	if from > last {
		return nil, last
	}
	sub := map[int64]int64{}
	for r := range c.Watch(clientv3.WithRequireLeader(ctx), "\x00", clientv3.WithFromKey(), clientv3.WithRev(from), clientv3.WithPrevKV(), clientv3.WithProgressNotify()) {
		p.must(r.Err())
		for _, e := range r.Events {
			m := made{rev: e.Kv.ModRevision, key: string(e.Kv.Key), tomb: e.Type == clientv3.EventTypeDelete, old: "none"}
			m.sub = sub[m.rev]
			sub[m.rev]++
			if !m.tomb {
				m.value, m.lease, m.create, m.version = string(e.Kv.Value), e.Kv.Lease, e.Kv.CreateRevision, e.Kv.Version
			}
			if e.PrevKv != nil {
				m.old = oldText(e.PrevKv.ModRevision, e.PrevKv.Value, e.PrevKv.Lease)
			}
			changes = append(changes, m)
		}
		if n := len(changes); n > 0 && changes[n-1].rev >= last {
			return changes, last
		}
	}
	p.t.Fatal("the watch ended")
	return nil, 0
}

func sum(b []byte) [4]byte {
	s := sha256.Sum256(b)
	return [4]byte(s[:4])
}

// listed is a listing in the same words.
func listed(t testing.TB, l *Listing) []made {
	t.Helper()
	var out []made
	for _, c := range l.Changes {
		m := made{rev: c.Revision, sub: c.Sub, key: string(c.Key), tomb: c.Delete, old: "none"}
		bytes := func(v Value) []byte {
			b, err := v.Bytes()
			if err != nil || len(b) != v.Len() {
				t.Fatalf("revision %d: %d bytes of %d, %v", c.Revision, len(b), v.Len(), err)
			}
			return b
		}
		if !c.Delete {
			m.value, m.lease, m.create, m.version = string(bytes(c.Value)), c.Lease, c.Create, c.Version
		}
		switch {
		case !c.Old.Known:
			m.old = "unknown"
		case c.Old.Exists:
			m.old = oldText(c.Old.Mod, bytes(c.Old.Value), c.Old.Lease)
		}
		out = append(out, m)
	}
	return out
}

func same(t testing.TB, got, want []made) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		var g, w made
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Fatalf("%d changes are listed, %d were made; the first that differs:\nlisted %s\nmade   %s", len(got), len(want), g, w)
		}
	}
}

// covers checks a listing of a history that was compacted, whose log is whole: what is listed was made so; what is not listed is
// Unknown by its revision, and not above the compaction.
func covers(t testing.TB, l *Listing, want []made) {
	t.Helper()
	type place struct{ rev, sub int64 }
	is := map[place]made{}
	for _, m := range want {
		is[place{m.rev, m.sub}] = m
	}
	for i, g := range listed(t, l) {
		w, ok := is[place{g.rev, g.sub}]
		if !ok {
			t.Fatalf("listed, and never made: %s", g)
		}
		delete(is, place{g.rev, g.sub})
		if g.old == "unknown" && (g.rev <= l.Compacted || len(l.Unknown) > 0 || l.Compacted > l.LowRevision) {
			g.old = w.old
		}
		if l.Changes[i].FromLog && !g.tomb {
			g.create, g.version = w.create, w.version
		}
		if g != w {
			t.Fatalf("listed %s\nmade   %s", g, w)
		}
	}
	unknown := map[int64]bool{}
	for _, u := range l.Unknown {
		unknown[u.Revision] = true
	}
	said := slices.ContainsFunc(l.Notes, func(n string) bool { return strings.HasPrefix(n, "COMPACTED") })
	for _, m := range is {
		if !unknown[m.rev] && (!said || !slices.ContainsFunc(l.Unknown, func(u Unknown) bool {
			return strings.Contains(u.What, fmt.Sprintf("%q", m.key)) || strings.Contains(u.What, "delete of")
		})) || m.rev > l.Compacted {
			t.Errorf("made, and neither listed nor unknown (compacted to %d): %s", l.Compacted, m)
		}
	}
	final := map[string]made{}
	for _, m := range want {
		final[m.key] = m
	}
	for _, k := range l.Keys {
		m := final[string(k.Key)]
		if m.tomb && k.Revision < m.rev && m.rev <= l.Compacted && !k.Lost.Exists {
			continue // its delete was compacted, as the listing says
		}
		if m.tomb == k.Lost.Exists || k.Revision != m.rev {
			t.Errorf("%q ends as %+v at %d, made %s", k.Key, k.Lost, k.Revision, m)
		}
	}
}
