package lostwrites

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

func eachMinor(t *testing.T, fn func(t *testing.T, minor string)) {
	for _, minor := range lab.Minors {
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

// truth are the changes of a history since a revision, as etcd's own watch tells them.
type truth struct {
	lines []string
	last  int64
}

// watch reads all changes from a revision on, until the store's revision is reached.
func (p *pair) watch(c *clientv3.Client, from int64) truth {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	resp, err := c.Get(ctx, "\x00")
	p.must(err)
	tr := truth{last: resp.Header.Revision}
	if from > tr.last {
		return tr
	}
	sub := map[int64]int{}
	for r := range c.Watch(clientv3.WithRequireLeader(ctx), "\x00", clientv3.WithFromKey(), clientv3.WithRev(from), clientv3.WithPrevKV(), clientv3.WithProgressNotify()) {
		p.must(r.Err())
		for _, e := range r.Events {
			rev := e.Kv.ModRevision
			old := "none"
			if e.PrevKv != nil {
				old = fmt.Sprintf("%d %x %d", e.PrevKv.ModRevision, sum(e.PrevKv.Value), e.PrevKv.Lease)
			}
			line := fmt.Sprintf("%d.%d delete %q old %s", rev, sub[rev], e.Kv.Key, old)
			if e.Type == clientv3.EventTypePut {
				line = fmt.Sprintf("%d.%d put %q %x lease %d create %d version %d old %s", rev, sub[rev], e.Kv.Key, sum(e.Kv.Value), e.Kv.Lease, e.Kv.CreateRevision, e.Kv.Version, old)
			}
			sub[rev]++
			tr.lines = append(tr.lines, line)
		}
		if r.Header.Revision >= tr.last && (len(r.Events) == 0 || r.Events[len(r.Events)-1].Kv.ModRevision >= tr.last) {
			return tr
		}
	}
	p.t.Fatal("the watch ended")
	return tr
}

func sum(b []byte) [4]byte {
	s := sha256.Sum256(b)
	return [4]byte(s[:4])
}

// listed is a listing in the words of truth.
func listed(t testing.TB, l *Listing) []string {
	t.Helper()
	var out []string
	for _, c := range l.Changes {
		old := "none"
		switch {
		case !c.Old.Known:
			old = "unknown"
		case c.Old.Exists:
			v, err := c.Old.Value.Bytes()
			if err != nil {
				t.Fatal(err)
			}
			old = fmt.Sprintf("%d %x %d", c.Old.Mod, sum(v), c.Old.Lease)
		}
		line := fmt.Sprintf("%d.%d delete %q old %s", c.Revision, c.Sub, c.Key, old)
		if !c.Delete {
			v, err := c.Value.Bytes()
			if err != nil {
				t.Fatal(err)
			}
			line = fmt.Sprintf("%d.%d put %q %x lease %d create %d version %d old %s", c.Revision, c.Sub, c.Key, sum(v), c.Lease, c.Create, c.Version, old)
		}
		out = append(out, line)
	}
	return out
}

func same(t testing.TB, got, want []string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		g, w := "(nothing)", "(nothing)"
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
