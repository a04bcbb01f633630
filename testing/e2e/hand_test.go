package e2e

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"twok/internal/lab"
)

// TestSurviveByHand: the claim by hand on the stopped follower, after its leader died:
// refused while anything runs, with the wrong arbiter and at the loser; a dry run changes
// nothing; etcd started afterwards, without any agent, leads alone with everything.
//
// Rules: P4, P7, P8, P11, P12; F5, F15.
func TestSurviveByHand(t *testing.T) {
	t.Parallel()
	p := start(t, "3.6", external)
	leader := p.leader()
	dead, self := p.Site(leader), p.Site(lab.Other(leader))
	survive := func(want int, arbiter, dir string, more ...string) (stdout, stderr string) {
		t.Helper()
		file := p.traceOf(dir)
		if arbiter != p.Arbiter { // another register is no part of the run
			file = filepath.Join(p.dir, "elsewhere.jsonl")
		}
		code, stdout, stderr := p.run(append(append([]string{"wal", "survive", "--arbiter", arbiter, "--trace", file}, more...), dir)...)
		if code != want {
			t.Errorf("survive %q: status %d, want %d; %s%s", more, code, want, stdout, stderr)
		}
		return stdout, stderr
	}
	record := func() []byte {
		b, _, err := p.reg.Read(p.within())
		p.must(err)
		return b
	}
	survive(33, p.Arbiter, self.DataDir) // the agent runs
	self.StopAgent()
	survive(33, p.Arbiter, self.DataDir) // etcd runs
	dead.StopAgent()                     // neither shall claim by itself
	self.PauseRestarter()
	p.must(self.StopEtcd())
	p.must(dead.Kill())
	p.w.Stop()

	before, digests := record(), digest(t, filepath.Join(self.DataDir, "member"))
	same := func(what string) {
		t.Helper()
		if !bytes.Equal(before, record()) {
			t.Errorf("%s changed the record", what)
		}
		unchanged(t, what, filepath.Join(self.DataDir, "member"), digests)
	}
	out, _ := survive(0, p.Arbiter, self.DataDir, "--dry-run", "--json")
	var dry struct {
		Applied    bool   `json:"applied"`
		Generation uint64 `json:"generation"`
		Survivor   string `json:"survivor"`
	}
	if err := json.Unmarshal([]byte(out), &dry); err != nil || dry.Applied || dry.Generation != 2 || dry.Survivor != self.Name {
		t.Errorf("a dry run says %s (%v)", out, err)
	}
	same("a dry run")
	if _, stderr := survive(32, p.Arbiter+"-other", self.DataDir); !strings.Contains(stderr, "record-absent") {
		t.Errorf("with another record's URL: %s", stderr)
	}
	if _, stderr := survive(32, "http://127.0.0.1:1/pair", self.DataDir); !strings.Contains(stderr, "arbiter-unavailable") || !strings.Contains(stderr, "connection refused") {
		t.Errorf("with an arbiter that is away: %s", stderr)
	}
	same("a refusal")

	survive(0, p.Arbiter, self.DataDir)
	if rec := p.record(); rec.Generation != 2 || rec.Survivor.Name != self.Name {
		t.Errorf("the record: generation %d, survivor %q", rec.Generation, rec.Survivor.Name)
	}
	lost := digest(t, filepath.Join(dead.DataDir, "member"))
	if _, stderr := survive(32, p.Arbiter, dead.DataDir); !strings.Contains(stderr, "named-other") {
		t.Errorf("at the loser: %s", stderr)
	}
	unchanged(t, "a refusal at the loser", filepath.Join(dead.DataDir, "member"), lost)
	// Once more: the record names it (P4 b), as after a claim that was killed half-way.
	survive(0, p.Arbiter, self.DataDir)

	p.must(self.StartEtcd())
	p.must(self.WaitServing(p.within()))
	list, err := p.client(self.Name).MemberList(p.within())
	p.must(err)
	if len(list.Members) != 1 {
		t.Errorf("%d members", len(list.Members))
	}
	survive(33, p.Arbiter, self.DataDir) // etcd runs
	p.must(self.StartAgent())
	p.must(dead.Start())
	rec := p.whole()
	if rec.Survivor.Name != self.Name || rec.Generation < 3 {
		t.Errorf("survivor %q at generation %d", rec.Survivor.Name, rec.Generation)
	}
	p.Log(p.audit())
}
