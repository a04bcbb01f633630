package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"twok/internal/lab"
)

// A pair whose arbiter is itself does not arm, and says why; its etcds run and take writes. (In supervise mode such a pair never
// gets its first data: an etcd with an empty disk waits until the arbiter says whether there is a record.)
//
// Rules: A1, P11.
func TestArbiterIsThePair(t *testing.T) {
	t.Parallel()
	p := prepare(t, "3.7", external) // with an arbiter that nobody uses
	url := "etcd://" + strings.TrimPrefix(p.Site("a").ClientURL, "http://") + "/pair"
	for _, s := range lab.Sites {
		p.Site(s).AgentFlags("--arbiter", url)
	}
	p.must(p.Start(p.within()))
	for _, s := range lab.Sites {
		p.reason(s, "store-untrusted")
		p.until(s+" says why", func(context.Context) error {
			if len(p.logLines(p.Site(s).AgentLog, "the arbiter stands on the pair itself")) == 0 {
				return errors.New("it does not")
			}
			return nil
		})
	}
	a, b := p.pids()
	p.write()
	p.written("a write in the pair")
	time.Sleep(2 * time.Second)
	if x, y := p.pids(); x != a || y != b {
		t.Error("an etcd was stopped")
	}
	if n := p.did("a", "swap") + p.did("b", "swap"); n != 0 {
		t.Errorf("%d swaps of a record", n)
	}
}
