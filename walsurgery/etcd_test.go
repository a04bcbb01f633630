package walsurgery

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/internal/lab"
)

// Real etcd for this package's tests: pairs on loopback with a short election
// timeout, whose members can be killed, copied and started again.

var versions = lab.Minors

// eachVersion runs f for every minor version of etcd.
func eachVersion(t *testing.T, f func(t *testing.T, version string)) {
	for _, v := range versions {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			f(t, v)
		})
	}
}

// etcdBinary returns the path of a real etcd, from the cache of the tools.
func etcdBinary(t testing.TB, version string) string {
	t.Helper()
	b, err := lab.Etcd(context.Background(), version, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return b.Etcd
}

type member struct {
	t            testing.TB
	bin, name    string
	dir          string // data directory
	client, peer string
	flags        []string

	mu   sync.Mutex
	cmd  *exec.Cmd
	out  *bytes.Buffer
	dead chan struct{}
}

func (m *member) wal() string { return filepath.Join(m.dir, "member", "wal") }
func (m *member) id() uint64 {
	md, err := ReadMetadata(m.wal())
	if err != nil {
		m.t.Fatal(err)
	}
	return md.MemberID
}

func freePort(t testing.TB) int {
	t.Helper()
	for { // below the kernel's own range, whose ports go to whoever connects
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(22_000)))
		if err == nil {
			defer l.Close()
			return l.Addr().(*net.TCPAddr).Port
		}
	}
}

// newPair makes two members that do not run yet.
func newPair(t testing.TB, version, root string) [2]*member {
	t.Helper()
	bin := etcdBinary(t, version)
	var ms [2]*member
	var cluster []string
	for i := range ms {
		name := string(rune('a' + i))
		ms[i] = &member{t: t, bin: bin, name: name, dir: filepath.Join(root, name),
			client: fmt.Sprintf("http://127.0.0.1:%d", freePort(t)), peer: fmt.Sprintf("http://127.0.0.1:%d", freePort(t))}
		cluster = append(cluster, name+"="+ms[i].peer)
	}
	for _, m := range ms {
		m.flags = []string{"--name", m.name, "--data-dir", m.dir,
			"--listen-client-urls", m.client, "--advertise-client-urls", m.client,
			"--listen-peer-urls", m.peer, "--initial-advertise-peer-urls", m.peer,
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-token", "walsurgery",
			"--heartbeat-interval", "20", "--election-timeout", "200", "--snapshot-count", "1000",
			// else a member add waits until all are connected for five seconds
			"--strict-reconfig-check=false"}
	}
	return ms
}

// start runs etcd on the member's directory. It is killed at the test's end.
func (m *member) start(extra ...string) {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	cmd := exec.Command(m.bin, append(append([]string{}, m.flags...), extra...)...)
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	dead := make(chan struct{})
	go func() { _ = cmd.Wait(); close(dead) }()
	m.cmd, m.out, m.dead = cmd, out, dead
	m.t.Cleanup(func() { _ = cmd.Process.Kill(); <-dead })
}

// kill sends SIGKILL and waits until the process is reaped.
func (m *member) kill() {
	_ = m.cmd.Process.Kill()
	<-m.dead
}

// log returns etcd's output; only after it ended.
func (m *member) log() string { return tailOf(m.out.String()) }

func tailOf(s string) string {
	if len(s) > 6000 {
		s = s[len(s)-6000:]
	}
	return s
}

func (m *member) connect() *clientv3.Client {
	m.t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{m.client}, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second,
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.2, MaxDelay: 100 * time.Millisecond}})}})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { c.Close() })
	return c
}

// eventually repeats f until it succeeds, m dies, or half a minute has passed.
func (m *member) eventually(what string, f func(ctx context.Context) error) {
	m.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		err := f(ctx)
		cancel()
		if err == nil {
			return
		}
		select {
		case <-m.dead:
			m.t.Fatalf("%s: etcd %s died:\n%s", what, m.name, m.log())
		default:
		}
		if time.Now().After(deadline) {
			m.kill()
			m.t.Fatalf("%s: %v\n%s", what, err, m.log())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// awaitLeader waits for a linearizable read.
func (m *member) awaitLeader() *clientv3.Client {
	m.t.Helper()
	c := m.connect()
	m.eventually("linearizable read", func(ctx context.Context) error {
		_, err := c.Get(ctx, "x")
		return err
	})
	return c
}

// peerUp asks what a member answers even without a leader.
func (m *member) peerUp(ctx context.Context) error {
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, m.peer+"/version", nil)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// hashKV is the key-space hash at a revision, from the peer port, which answers
// for learners too.
func (m *member) hashKV(ctx context.Context, rev int64) (string, error) {
	body := fmt.Sprintf(`{"revision":%d}`, rev)
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, m.peer+"/members/hashkv", strings.NewReader(body))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("hashkv: %s %s %v", resp.Status, b, err)
	}
	var h struct {
		Hash            uint32 `json:"hash"`
		CompactRevision int64  `json:"compact_revision"`
		HashRevision    int64  `json:"hash_revision"`
	}
	if err := json.Unmarshal(b, &h); err != nil {
		return "", err
	}
	return fmt.Sprintf("%08x compact %d", h.Hash, h.CompactRevision), nil
}

// writers puts keys through c from n goroutines until stop is closed, and
// returns what was acknowledged.
func writers(c *clientv3.Client, n int, size int, stop <-chan struct{}) <-chan []string {
	out := make(chan []string, 1)
	var mu sync.Mutex
	var acked []string
	var wg sync.WaitGroup
	val := strings.Repeat("v", size)
	for w := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprintf("w/%d/%d", w, i)
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				_, err := c.Put(ctx, key, val)
				cancel()
				if err == nil {
					mu.Lock()
					acked = append(acked, key)
					mu.Unlock()
				}
			}
		}()
	}
	go func() { wg.Wait(); out <- acked }()
	return out
}

// missing returns the acknowledged keys that c does not have.
func missing(t testing.TB, c *clientv3.Client, acked []string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	r, err := c.Get(ctx, "w/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, kv := range r.Kvs {
		have[string(kv.Key)] = true
	}
	var lost []string
	for _, k := range acked {
		if !have[k] {
			lost = append(lost, k)
		}
	}
	return lost
}

// crashed is a pair that was killed under load. Its directories are kept, so
// that many tests can operate on copies of them, one test at a time: the copies
// share the pair's ports.
type crashed struct {
	pair             [2]*member
	ids              [2]uint64
	leader, follower int
	acked            []string
}

var (
	fixtures     sync.Map // version -> *crashed
	fixtureLocks sync.Map // version -> *sync.Mutex
	fixtureDir   string   // made and removed by TestMain
)

func TestMain(m *testing.M) {
	flag.Parse()
	var err error
	if fixtureDir, err = os.MkdirTemp("", "walsurgery"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(fixtureDir)
	os.Exit(code)
}

// crash returns the crashed pair of a version; the first call makes it.
func crash(t testing.TB, version string) *crashed {
	t.Helper()
	mu, _ := fixtureLocks.LoadOrStore(version, &sync.Mutex{})
	mu.(*sync.Mutex).Lock()
	defer mu.(*sync.Mutex).Unlock()
	if cr, ok := fixtures.Load(version); ok {
		return cr.(*crashed)
	}
	cr := makeCrash(t, version)
	fixtures.Store(version, cr)
	return cr
}

// makeCrash starts a pair, lets a user change the membership back and forth,
// writes under load and kills both members in the middle of it, the follower
// first: the leader's log then ends in entries that only the leader has.
func makeCrash(t testing.TB, version string) *crashed {
	t.Helper()
	root, err := os.MkdirTemp(fixtureDir, version)
	if err != nil {
		t.Fatal(err)
	}
	pair := newPair(t, version, root)
	for _, m := range pair {
		m.start()
	}
	c := pair[0].awaitLeader()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var added *clientv3.MemberAddResponse
	pair[0].eventually("member add", func(ctx context.Context) (err error) {
		added, err = c.MemberAddAsLearner(ctx, []string{"http://127.0.0.1:1"})
		return err
	})
	if _, err := c.MemberRemove(ctx, added.Member.ID); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	out := writers(c, 16, 100, stop)
	time.Sleep(700 * time.Millisecond)
	cr := &crashed{pair: pair, ids: [2]uint64{pair[0].id(), pair[1].id()}}
	st, err := c.Status(ctx, pair[0].client)
	if err != nil || st.Leader == 0 {
		t.Fatalf("no leader under load: %v", err)
	}
	cr.leader = slices.Index(cr.ids[:], st.Leader)
	cr.follower = 1 - cr.leader
	cl := pair[cr.leader].awaitLeader()
	pair[cr.follower].kill()
	late, stopped := context.WithTimeout(ctx, 60*time.Millisecond)
	defer stopped()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if _, err := cl.Put(late, fmt.Sprintf("late/%d", i), "v"); err == nil {
				t.Errorf("%s: a leader without its follower acknowledged a write", version)
			}
		})
	}
	wg.Wait()
	pair[cr.leader].kill()
	close(stop)
	cr.acked = <-out
	if l, f := lastOf(t, pair[cr.leader]), lastOf(t, pair[cr.follower]); l.Index <= f.Index || l.Term != f.Term {
		t.Fatalf("the leader's log ends at %s, the follower's at %s", l, f)
	}
	if len(cr.acked) < 16 {
		t.Fatalf("only %d writes acknowledged", len(cr.acked))
	}
	return cr
}

func lastOf(t testing.TB, m *member) Position {
	t.Helper()
	l, err := Inspect(nil, m.wal())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Summary().Last
}

// restore returns member i on a fresh copy of the directory that the crash left.
func (cr *crashed) restore(t testing.TB, i int) *member {
	t.Helper()
	dir := filepath.Join(t.TempDir(), cr.pair[i].name)
	copyDir(t, cr.pair[i].dir, dir)
	return cr.pair[i].at(t, dir)
}

// at returns the member with another data directory, not running.
func (m *member) at(t testing.TB, dir string) *member {
	flags := slices.Clone(m.flags)
	flags[slices.Index(flags, "--data-dir")+1] = dir
	return &member{t: t, bin: m.bin, name: m.name, dir: dir, client: m.client, peer: m.peer, flags: flags}
}

func copyDir(t testing.TB, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", "--sparse=always", from, to).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v %s", err, out)
	}
}

// segmentsHash covers the segments alone: an open Log has etcd's preallocated
// file for the next one beside them.
func segmentsHash(t testing.TB, dir string) string {
	t.Helper()
	h := sha256.New()
	for _, n := range namesIn(t, dir) {
		if !strings.HasSuffix(n, ".wal") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, n))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(h, "%s %d\n", n, len(b))
		h.Write(b)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// dirHash covers names, modes and contents below dir.
func dirHash(t testing.TB, dir string) string {
	t.Helper()
	h := sha256.New()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		fmt.Fprintf(h, "%s %v %d\n", rel, st.Mode(), st.Size())
		if d.Type().IsRegular() {
			f, err := os.Open(p)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.Copy(h, f)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}
