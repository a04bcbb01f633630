package e2e

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"twok/internal/lab"
	"twok/testing/trace"
)

// checkTrace ends every test: the model explains what the agents did, or the test says why it cannot. With
// TWOK_E2E_TRACES the traces are kept in that directory.
func (p *pair) checkTrace() {
	if dir := os.Getenv("TWOK_E2E_TRACES"); dir != "" {
		p.keepTraces(filepath.Join(dir, strings.ReplaceAll(p.Name(), "/", "_")))
	}
	if p.untraced != "" {
		p.Logf("the trace is not validated: %s", p.untraced)
		return
	}
	ls, err := trace.ReadFiles(p.Site("a").Trace, p.Site("b").Trace, p.edits())
	if err != nil {
		p.Error(err)
		return
	}
	o := trace.Options{Users: p.users}
	if !full { // a refusal is looked at for half a minute; make test has no minutes for one trace
		o.Limit = 200_000
	}
	r, err := trace.Check(ls, o)
	if errors.Is(err, trace.ErrUndecided) {
		p.Logf("TRACE UNDECIDED: %v; TWOK_E2E=full looks further", err)
		return
	}
	if err != nil {
		p.Error(err)
		return
	}
	p.Logf("the trace is explained: %s", r)
}

func (p *pair) keepTraces(dir string) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		p.Error(err)
		return
	}
	for _, name := range lab.Sites {
		if err := copyFile(filepath.Join(dir, name+".jsonl"), p.Site(name).Trace); err != nil {
			p.Error(err)
		}
	}
	if _, err := os.Stat(p.edits()); err == nil {
		if err := copyFile(filepath.Join(dir, "edits.jsonl"), p.edits()); err != nil {
			p.Error(err)
		}
	}
}

// edits is where the test says what it did to the record behind the agents' backs.
func (p *pair) edits() string { return filepath.Join(p.dir, "edits.jsonl") }

// edit notes a change of the record that was begun at this moment.
func (p *pair) edit(began time.Time) {
	p.Helper()
	b, v, err := p.reg.Read(p.within())
	p.must(err)
	line, err := json.Marshal(trace.Edit{At: began.UnixNano(), Until: time.Now().UnixNano(), Value: b, Version: v.Tag()})
	p.must(err)
	f, err := os.OpenFile(p.edits(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	p.must(err)
	_, err = f.Write(append(line, '\n'))
	p.must(errors.Join(err, f.Close()))
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// traceOf is the trace of the agents that have this data directory.
func (p *pair) traceOf(dir string) string {
	for _, name := range lab.Sites {
		if s := p.Site(name); s.DataDir == dir {
			return s.Trace
		}
	}
	p.Fatalf("no site has the directory %s", dir)
	return ""
}

// TestDemoTrace: what the demo's agents did is explained too.
//
// Rules: P1, P2, P4, P7, P8, P10, P12, P13, P14, P15.
func TestDemoTrace(t *testing.T) {
	t.Parallel()
	tmp, err := os.MkdirTemp("", "twok-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("data, logs and traces are kept in %s", tmp)
		} else if err := os.RemoveAll(tmp); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Join(tmp, "demo")
	cmd := exec.CommandContext(t.Context(), twok(t), "demo", "--json", "--fast", "--claim-after", "800ms", "--rounds", "2", "--dir", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ls, err := trace.ReadFiles(filepath.Join(dir, "a", "trace.jsonl"), filepath.Join(dir, "b", "trace.jsonl"), "")
	if err != nil {
		t.Fatal(err)
	}
	r, err := trace.Check(ls, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the trace is explained: %s", r)
}
