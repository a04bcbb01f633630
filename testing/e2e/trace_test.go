package e2e

import (
	"io"
	"os"
	"path/filepath"
	"strings"

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
	ls, err := trace.ReadFiles(p.Site("a").Trace, p.Site("b").Trace)
	if err != nil {
		p.Error(err)
		return
	}
	r, err := trace.Check(ls, trace.Options{Users: p.users})
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
