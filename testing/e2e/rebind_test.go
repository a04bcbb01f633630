package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"twok/arbiter"
	"twok/arbiter/httpcas"
	"twok/internal/lab"
)

// TestRebind: a running pair is moved to another record, fails over there, and the survivor is moved once more while it is alone. Until
// its agents are told, the pair is unprotected, says why, and nothing is stopped. The loser of the second move
// returns from an empty log, since its token is of a record that nobody looks at any more.
//
// Rules: P3, P4, P13, P14; F11, F38.
func TestRebind(t *testing.T) {
	t.Parallel()
	p := start(t, "3.7", func(c *lab.Config) { c.AgentFlags = append(c.AgentFlags, "--record-interval", "200ms") })
	p.untraced = "the model has one record; a pair that is moved to another one is not in it"
	url := func(key string) string { return strings.TrimSuffix(p.Arbiter, "/pair") + "/" + key }
	initTo := func(key, site string, code int, more ...string) (res struct {
		Record     string
		Generation uint64
		Alone      bool
		Created    bool
		Token      bool   `json:"token_written"`
		Before     string `json:"bound_before"`
	}) {
		t.Helper()
		args := append([]string{"arbiter", "init", "--json", "--arbiter", url(key), "--client-url", p.Site(site).ClientURL}, more...)
		got, out, errs := p.run(args...)
		if got != code || (code != 0 && !strings.Contains(errs, "hint: ")) {
			t.Fatalf("init %s %v: exit %d, want %d\n%s%s", key, more, got, code, out, errs)
		}
		if code == 0 {
			if err := json.Unmarshal([]byte(out), &res); err != nil {
				t.Fatal(err, out)
			}
		}
		return res
	}
	point := func(key string, sites ...string) {
		t.Helper()
		for _, s := range sites {
			p.Site(s).AgentFlags("--arbiter", url(key))
			p.restart(s, "")
		}
		var err error
		p.reg, err = httpcas.New(httpcas.Config{URL: url(key)})
		p.must(err)
	}
	armed := func() {
		t.Helper()
		for _, s := range lab.Sites {
			p.health(s, "armed", func(h lab.Health) bool { return h.Armed && h.Whole })
		}
	}
	record := func() arbiter.Record { // where the agents look by now
		t.Helper()
		b, _, err := p.reg.Read(p.within())
		p.must(err)
		rec, err := arbiter.Decode(b)
		p.must(err)
		return rec
	}
	confirmed := func(context.Context) error {
		if record().Confirmed.Index == 0 {
			return errors.New("not yet")
		}
		return nil
	}
	first := record()
	if res := initTo("pair", "a", 0); res.Created || res.Token || res.Record != first.ID {
		t.Errorf("already bound: %+v", res)
	}
	initTo("second", "a", 32)
	x, y := p.pids()
	second := initTo("second", p.leader(), 0, "--rebind", "--old-arbiter", p.Arbiter)
	if !second.Created || !second.Token || second.Before != first.ID || second.Generation != first.Generation+1 {
		t.Errorf("%+v", second)
	}
	for _, s := range lab.Sites {
		p.reason(s, "record-elsewhere")
	}
	p.written("a write while the agents look at the old record")
	if a, b := p.pids(); a != x || b != y {
		t.Error("an etcd was stopped for it")
	}
	point("second", lab.Sites[:]...)
	armed()
	p.CutLink()
	p.written("a write by the survivor")
	rec := record()
	if rec.ID != second.Record || rec.Generation != second.Generation+1 || rec.Survivor.ID == 0 {
		t.Fatalf("%+v", rec)
	}
	survivor := rec.Survivor.Name
	p.until("the confirmation", confirmed)

	third := initTo("third", survivor, 0, "--rebind", "--old-arbiter", url("second"))
	if !third.Alone || third.Before != second.Record || third.Generation != rec.Generation+2 {
		t.Errorf("%+v", third)
	}
	point("third", survivor, lab.Other(survivor))
	p.until("the confirmation", confirmed)
	p.written("a write by the survivor that was moved")
	p.HealLink()
	armed()
	t.Log(p.audit())
	last := record()
	if last.ID != third.Record || last.Survivor.Name != survivor || last.WholeGeneration != last.Generation {
		t.Errorf("%+v", last)
	}
	// The loser could not keep its log.
	if got := p.did(lab.Other(survivor), "rewrite"); got != 1 {
		t.Errorf("%d rewrites", got)
	}
	for _, l := range p.trace(lab.Other(survivor)) {
		if l.Keep != nil && *l.Keep {
			t.Error("the loser kept a log of another record")
		}
	}
	// The records that were left are as they were.
	for key, want := range map[string]string{"pair": first.ID, "second": second.Record} {
		r, err := httpcas.New(httpcas.Config{URL: url(key)})
		p.must(err)
		b, _, err := r.Read(p.within())
		p.must(err)
		old, err := arbiter.Decode(b)
		if err != nil || old.ID != want {
			t.Error(fmt.Sprintf("%s: %+v", key, old), err)
		}
	}
}
