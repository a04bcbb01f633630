package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/arbiter"
	"twok/arbiter/httpcas"
	"twok/internal/lab"
)

// full runs every combination, not only a part that fits an ordinary test run.
var full = os.Getenv("TWOK_E2E") == "full"

// patience ends what hangs; nothing here takes a tenth of it on an idle machine.
const patience = 2 * time.Minute

var builtTwok = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("TWOK_E2E_TWOK"); path != "" {
		return path, nil
	}
	dir, err := os.MkdirTemp("", "twok-e2e-bin-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "twok")
	if out, err := exec.Command("go", "build", "-tags", "failpoints", "-o", path, "twok/cmd/twok").CombinedOutput(); err != nil {
		return "", errors.Join(fmt.Errorf("build twok: %w: %s", err, out), os.RemoveAll(dir))
	}
	return path, nil
})

// Most of a story is waiting, so several run at a time, on any number of cores.
const parallel = "4"

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", parallel); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	if path, err := builtTwok(); err == nil && os.Getenv("TWOK_E2E_TWOK") == "" {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

func twok(t *testing.T) string {
	t.Helper()
	path, err := builtTwok()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func etcd(t *testing.T, minor string) lab.Binaries {
	t.Helper()
	b, err := lab.Etcd(t.Context(), minor, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// pair is a cluster under test.
type pair struct {
	*testing.T
	*lab.Cluster
	w        *lab.Writer
	reg      arbiter.Register
	dir      string
	tls      *tls.Config // of the clients; nil: plain text
	clients  map[string]*clientv3.Client
	panicsOK bool   // an etcd may panic in this test
	untraced string // why the trace is not validated; empty: it is
	users    bool   // people change the members in this test
	loads    int    // how many writers load has started
}

// start is a pair that is whole, with clients that write.
func start(t *testing.T, minor string, opts ...func(*lab.Config)) *pair {
	t.Helper()
	p := prepare(t, minor, opts...)
	p.must(p.Start(p.within()))
	p.whole()
	p.write()
	return p
}

// prepare chooses ports and directories and starts nothing.
func prepare(t *testing.T, minor string, opts ...func(*lab.Config)) *pair {
	t.Helper()
	dir, err := os.MkdirTemp("", "twok-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	cfg := lab.Config{
		Dir: dir, Etcd: etcd(t, minor), Mode: lab.Supervise, Timing: lab.Fast, Twok: twok(t),
		ClaimAfter: 800 * time.Millisecond, CutArbiter: true,
		// Several losses follow each other in one test, and the record is changed behind the agents' backs.
		AgentFlags: []string{"--hold-down", "0", "--min-run", "3s", "--record-interval", "1s"},
	}
	for _, o := range opts {
		o(&cfg)
	}
	c, err := lab.NewCluster(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{T: t, Cluster: c, dir: dir, clients: map[string]*clientv3.Client{}}
	t.Cleanup(func() {
		if p.w != nil {
			p.w.Stop()
		}
		for _, cl := range p.clients {
			cl.Close()
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		p.checkLogs()
		p.checkTrace()
		if t.Failed() {
			p.show()
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	p.tls, err = cfg.TLS.Client()
	p.must(err)
	if p.reg = cfg.Register; p.reg == nil {
		p.reg, err = httpcas.New(httpcas.Config{URL: c.Arbiter})
		p.must(err)
	}
	return p
}

// show says what a person needs after a failure.
func (p *pair) show() {
	p.Logf("data, logs and traces are kept in %s", p.dir)
	for _, name := range lab.Sites {
		for _, l := range tail(p.agentLines(name), 8) {
			p.Logf("agent %s: %.200s", name, l)
		}
	}
}

func tail[T any](s []T, n int) []T { return s[max(0, len(s)-n):] }

func (p *pair) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *pair) within() context.Context {
	ctx, cancel := context.WithTimeout(p.Context(), patience)
	p.Cleanup(cancel)
	return ctx
}

// until waits for something and says at the end what was in the way.
func (p *pair) until(what string, f func(context.Context) error) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), patience)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			p.Fatalf("%s: not within %s: %v", what, patience, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// steady checks again and again for a while that something stays so.
func (p *pair) steady(what string, d time.Duration, f func(context.Context) error) {
	p.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err := f(p.Context()); err != nil {
			p.Fatalf("%s: no longer so: %v", what, err)
		}
	}
}

func (p *pair) whole() arbiter.Record {
	p.Helper()
	rec, err := p.WaitWhole(p.within(), nil)
	p.must(err)
	return rec
}

// write starts the clients.
func (p *pair) write() {
	p.Helper()
	w, err := lab.StartWriter(lab.WriterConfig{
		Endpoints: []string{p.Site("a").ClientURL, p.Site("b").ClientURL},
		Clients:   8, Deadline: 400 * time.Millisecond, Pause: 10 * time.Millisecond,
		Prefix: "/e2e/", TLS: p.tls,
	})
	p.must(err)
	p.w = w
	p.written("the first write")
}

// written waits for a write that began after the call.
func (p *pair) written(what string) {
	p.Helper()
	p.answered(what, p.w.NextAck())
}

func (p *pair) answered(what string, ack <-chan time.Time) {
	p.Helper()
	select {
	case <-ack:
	case <-time.After(patience):
		p.Fatalf("%s: none was acknowledged within %s", what, patience)
	}
}

// silent says that no write that begins from now on is acknowledged for a while.
func (p *pair) silent(what string, d time.Duration) {
	p.Helper()
	select {
	case <-p.w.NextAck():
		p.Fatalf("%s: a write was acknowledged", what)
	case <-time.After(d):
	}
}

func (p *pair) leader() string {
	p.Helper()
	l, err := p.Leader(p.within())
	p.must(err)
	return l
}

// audit checks every write so far.
func (p *pair) audit() lab.AuditReport {
	p.Helper()
	r, err := lab.Audit(p.within(), p.w, p.AuditMembers())
	if err != nil {
		p.Fatalf("the audit was not done: %v", err)
	}
	if !r.OK() || r.Acked == 0 {
		p.Fatalf("the audit failed: %s", r)
	}
	return r
}

// wholeAndAudited ends most tests.
func (p *pair) wholeAndAudited() arbiter.Record {
	p.Helper()
	rec := p.whole()
	p.written("a write in the whole pair")
	p.Log(p.audit())
	return rec
}

// health waits until the agent of that site says what ok wants.
func (p *pair) health(site, what string, ok func(lab.Health) bool) lab.Health {
	p.Helper()
	var h lab.Health
	p.until(fmt.Sprintf("%s: %s", site, what), func(ctx context.Context) error {
		var err error
		if h, err = p.Site(site).Health(ctx); err == nil && !ok(h) {
			err = fmt.Errorf("the agent says %s", h)
		}
		return err
	})
	return h
}

func (p *pair) reason(site, reason string) {
	p.Helper()
	h := p.health(site, "reason "+reason, func(h lab.Health) bool { return h.Reason == reason })
	if h.Armed || h.Remedy == "" {
		p.Errorf("%s with the reason %s: armed %t, remedy %q", site, reason, h.Armed, h.Remedy)
	}
}

func (p *pair) role(site, role string) {
	p.Helper()
	p.health(site, "role "+role, func(h lab.Health) bool { return h.Role == role })
}

func (p *pair) etcdPID(site string) int {
	p.Helper()
	pid, err := p.Site(site).EtcdPID()
	p.must(err)
	return pid
}

// lines are the trace of a site's agents.
func (p *pair) trace(site string) []lab.TraceLine {
	p.Helper()
	data, err := os.ReadFile(p.Site(site).Trace)
	p.must(err)
	var out []lab.TraceLine
	for line := range bytes.Lines(data) {
		var l lab.TraceLine
		if err := json.Unmarshal(line, &l); err != nil {
			if !bytes.HasSuffix(line, []byte("\n")) {
				break // being written, or its writer was killed
			}
			p.Fatalf("trace of %s: %q: %v", site, line, err)
		}
		out = append(out, l)
	}
	return out
}

// did counts an action in the site's trace.
func (p *pair) did(site, action string) int {
	p.Helper()
	n := 0
	for _, l := range p.trace(site) {
		if slices.Contains(l.Actions, action) {
			n++
		}
	}
	return n
}

// record reads the record as it is.
func (p *pair) record() arbiter.Record {
	p.Helper()
	rec, err := p.Record(p.within())
	p.must(err)
	return rec
}

// swap changes the record behind the agents' backs.
func (p *pair) swap(f func(*arbiter.Record)) {
	p.Helper()
	began := time.Now()
	defer func() { p.edit(began) }()
	p.until("change the record", func(ctx context.Context) error {
		b, v, err := p.reg.Read(ctx)
		if err != nil {
			return err
		}
		rec, err := arbiter.Decode(b)
		if err != nil {
			return err
		}
		f(&rec)
		rec.Nonce = arbiter.NewNonce()
		if b, err = arbiter.Encode(rec); err != nil {
			p.Fatal(err)
		}
		return p.reg.CompareAndSwap(ctx, v, b)
	})
}

// raw replaces the record's bytes and returns the old ones.
func (p *pair) raw(next []byte) (old []byte) {
	p.Helper()
	began := time.Now()
	defer func() { p.edit(began) }()
	p.until("replace the record", func(ctx context.Context) error {
		b, v, err := p.reg.Read(ctx)
		if err != nil {
			return err
		}
		old = b
		return p.reg.CompareAndSwap(ctx, v, next)
	})
	return old
}

// recordFile is the file of the embedded arbiter that holds the record.
func (p *pair) recordFile() string { return filepath.Join(p.dir, "arbiter", "v.pair") }

// restart starts the site's agent anew with other failpoints. In supervise mode its etcd
// goes on meanwhile and is adopted.
func (p *pair) restart(site, failpoints string) {
	p.Helper()
	s := p.Site(site)
	s.KillAgent()
	p.failpoints(site, failpoints)
	p.must(s.StartAgent())
}

func (p *pair) failpoints(site, spec string) {
	p.Site(site).AgentEnv("TWOK_FAILPOINTS=" + spec)
}

// died waits until the agent of the site was killed at its failpoint.
func (p *pair) died(site string) {
	p.Helper()
	p.until("the agent of "+site+" dies at its failpoint", func(context.Context) error {
		if p.Site(site).AgentAlive() {
			return errors.New("it lives")
		}
		return nil
	})
}

// run runs twok and returns its status and output.
func (p *pair) run(args ...string) (code int, stdout, stderr string) {
	p.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(p.within(), twok(p.T), args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// agentLines are the agent's own lines of its log; a supervised etcd writes there too.
func (p *pair) agentLines(site string) []string {
	return p.logLines(p.Site(site).AgentLog, `"logger":"twok`)
}

func (p *pair) logLines(path string, with ...string) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	var out []string
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadString('\n')
		if slices.ContainsFunc(with, func(s string) bool { return strings.Contains(line, s) }) {
			out = append(out, strings.TrimSpace(line))
		}
		if err != nil {
			if err != io.EOF {
				p.Error(err)
			}
			return out
		}
	}
}

// More lines of one kind than these within floodWindow are a flood.
const (
	floodWindow   = 10 * time.Second
	floodWarnings = 12
	floodNotes    = 60
)

// checkLogs: no panic of etcd, no flood of the agent's.
func (p *pair) checkLogs() {
	for _, name := range lab.Sites {
		for _, path := range []string{p.Site(name).AgentLog, p.Site(name).EtcdLog} {
			for _, l := range p.logLines(path, `"level":"panic"`, "panic:") {
				// etcd answers a request that comes while it ends with a read of a closed
				// backend (3.5), or, once it was removed, with a panic about its own ID (3.7).
				if !p.panicsOK && !strings.Contains(l, "invalid memory address") && !strings.Contains(l, "failed to find local ID in cluster members") {
					p.Errorf("%s: somebody panicked: %s", path, l)
					break
				}
			}
		}
		seen := map[string][]time.Time{}
		told := map[string]bool{}
		for _, line := range p.agentLines(name) {
			var m struct {
				Level, Msg, Action, Error, Reason, Role, From, To string
				TS                                                time.Time
			}
			if json.Unmarshal([]byte(line), &m) != nil || m.Level == "debug" {
				continue
			}
			key := strings.Join([]string{m.Level, m.Msg, m.Action, m.Reason, m.Role, m.From, m.To}, " ")
			limit := floodNotes
			if m.Level != "info" {
				limit = floodWarnings
			}
			seen[key] = append(seen[key], m.TS)
			if n := len(seen[key]); n > limit && m.TS.Sub(seen[key][n-1-limit]) < floodWindow && !told[key] {
				told[key] = true
				p.Errorf("the agent of %s floods its log: %s", name, line)
			}
		}
	}
}

// confirmed: the survivor's first confirmation is in the record (P10).
func (p *pair) confirmed(ctx context.Context) error {
	rec, err := p.Record(ctx)
	if err == nil && rec.Confirmed.Index == 0 {
		err = errors.New("the record holds none")
	}
	return err
}
