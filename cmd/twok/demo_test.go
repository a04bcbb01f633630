package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"twok/internal/lab"
)

// cliSession runs the real command line in this process.
func cliSession(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"twok"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

// TestDemoUsage: wrong command lines end with status 2, say why, start nothing
// and write nothing.
//
// Rules: none (the demo).
func TestDemoUsage(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--cut", "cable"}, `no cut "cable"`},
		{[]string{"--etcd-run", "plain"}, "choose supervise or external"},
		{[]string{"--rounds", "0"}, "must be positive"},
		{[]string{"--claim-after", "0s"}, "must be positive"},
		{[]string{"--dir", full}, "is not empty"},
		{[]string{"now"}, "takes no argument"},
		{[]string{"--flag"}, "flag provided but not defined"},
		{[]string{"--etcd-version", "2.3"}, "3.5, 3.6, 3.7"},
		{[]string{"--arbiter", "there"}, "it has no scheme"},
	} {
		code, stdout, stderr := cliSession(t, append([]string{"demo"}, c.args...)...)
		if code != exitUsage || !strings.Contains(stderr, c.want) || stdout != "" {
			t.Errorf("demo %q: status %d, stdout %q, stderr %q", c.args, code, stdout, stderr)
		}
	}
	if entries, err := os.ReadDir(full); err != nil || len(entries) != 1 {
		t.Errorf("the directory was touched: %v, %v", entries, err)
	}
	if entries, err := os.ReadDir(tmp); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// TestNarratorOrdersEvents: events of several sources come out in the order of
// time, as text and as JSON lines, with the clock since the cut.
//
// Rules: none (the demo).
func TestNarratorOrdersEvents(t *testing.T) {
	var out, events bytes.Buffer
	n := newNarrator(&out, &events)
	n.begin(lab.Event{Kind: lab.EventStart, Text: "go"})
	at := func(s float64) time.Time { return n.start.Add(time.Duration(s * float64(time.Second))) }
	n.round(1, 1)
	n.mark(lab.Event{At: at(1), Kind: lab.EventCut, Site: "a", Text: "cut"})
	n.event(lab.Event{At: at(3), Kind: lab.EventAppend, Site: "b", Generation: 2, Text: "x"})
	n.event(lab.Event{At: at(2), Kind: lab.EventNoLeader, Site: "a"}, lab.Event{At: at(0.5), Kind: lab.EventToken, Site: "a"})
	n.end()
	var kinds []string
	var appended map[string]any
	for line := range strings.Lines(events.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		kinds = append(kinds, m["event"].(string))
		if m["event"] == "append" {
			appended = m
		}
	}
	if want := []string{"start", "token", "cut", "no-leader", "append"}; !slices.Equal(kinds, want) {
		t.Errorf("order %q, want %q", kinds, want)
	}
	for k, want := range map[string]any{"t": 3.0, "since_cut_s": 2.0, "site": "b", "generation": 2.0, "round": 1.0} {
		if appended[k] != want {
			t.Errorf("append: %s is %v, want %v", k, appended[k], want)
		}
	}
	if want := "    3.00 s   cut+2.00  b  append       x\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("text %q does not end with %q", out.String(), want)
	}
}

// TestStatusLine shows the rate and what each agent waits for.
//
// Rules: none (the demo).
func TestStatusLine(t *testing.T) {
	var out, events bytes.Buffer
	n := newNarrator(&out, &events)
	n.begin(lab.Event{Kind: lab.EventStart})
	n.counter(func() int64 { return 1000 })
	n.missing("a token")
	n.status(map[string]agentView{
		"a": {Health: lab.Health{Role: "alone", WaitingFor: "the other member"}},
		"b": {err: errors.New("refused")},
	})
	n.end()
	if s := out.String(); !strings.Contains(s, "writes/s") || !strings.Contains(s, "a: alone | b: no agent\n") || !strings.Contains(s, "a  waits for: the other member\n") {
		t.Errorf("text %q", s)
	}
	var m struct {
		Event  string
		Rate   float64 `json:"writes_per_s"`
		Lacks  string
		Agents map[string]map[string]any
	}
	line := events.String()[strings.Index(events.String(), `{"agents"`):]
	if err := json.Unmarshal([]byte(line), &m); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	if m.Event != "status" || m.Rate <= 0 || m.Lacks != "a token" || m.Agents["a"]["role"] != "alone" || m.Agents["b"]["error"] != "refused" {
		t.Errorf("%+v", m)
	}
}

// TestDemoTotals: times are maxima, counts are sums, a round without a time
// leaves none, and the object has the promised fields.
//
// Rules: none (the demo).
func TestDemoTotals(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	s := func(v string) *string { return &v }
	var r demoResult
	r.add(demoRound{Round: 1, Acked: 10, FirstWrite: f(4), WholeAfterHeal: f(1), Survivor: s("a"), Generation: 2, HashesEqual: true})
	r.add(demoRound{Round: 2, Acked: 20, FirstWrite: f(3), WholeAfterHeal: f(2), Survivor: s("b"), Generation: 3, HashesEqual: true})
	if r.Acked != 30 || r.Lost != 0 || *r.FirstWrite != 4 || *r.WholeAfterHeal != 2 || *r.Survivor != "b" || r.Generation != 3 || !r.HashesEqual || len(r.Rounds) != 2 {
		t.Errorf("%+v", r)
	}
	r.add(demoRound{Round: 3, Lost: 1, FirstWrite: f(9)})
	if r.Lost != 1 || *r.FirstWrite != 9 || r.WholeAfterHeal != nil || r.Survivor != nil || r.Generation != 3 || r.HashesEqual {
		t.Errorf("after a bad round: %+v", r)
	}
	r.add(demoRound{Round: 4, FirstWrite: f(1), WholeAfterHeal: f(1), HashesEqual: true})
	if r.WholeAfterHeal != nil || r.HashesEqual || *r.FirstWrite != 9 {
		t.Errorf("a good round does not heal the totals: %+v", r)
	}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	var got []string
	for k := range m {
		got = append(got, k)
	}
	slices.Sort(got)
	want := strings.Fields("acked arbiter claim_after_s cut etcd_version first_write_after_cut_s generation hashes_equal head_start_s lost rounds survivor whole_after_heal_s")
	if !slices.Equal(got, want) {
		t.Errorf("fields %q, want %q", got, want)
	}
	if string(m["survivor"]) != "null" || string(m["whole_after_heal_s"]) != "null" {
		t.Errorf("missing values are not null: %s", data)
	}
	if !strings.Contains(string(m["rounds"]), `"survivor":"b"`) {
		t.Errorf("rounds: %s", m["rounds"])
	}
}
