package report

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"twok/testing/check"
	"twok/testing/history"
)

func green(name string) Result {
	return Result{Name: name, Ran: true, Claims: 1, Check: &check.Report{Ops: 5, Acked: 3, Unknown: 1, Results: []check.Result{{Name: "watch", Verdict: check.OK, Checked: 3}}}}
}

// A run is green only if everything that was planned ran, did what it should, and was checked.
//
// Rules: none (the harness).
func TestRun(t *testing.T) {
	bad := green("y/2")
	bad.Check.Results[0] = check.Result{Name: "watch", Verdict: check.Violated, Count: 1, Findings: []string{"an event is missing"}}
	unchecked := green("y/2")
	unchecked.Check.Results[0].Verdict = check.NotChecked
	failed := green("y/2")
	failed.Error = "not whole"
	without := Result{Name: "y/2", Ran: true}
	// What an assumption's end may excuse, and what not.
	lost, safe, dead, half, refused := bad, bad, failed, unchecked, green("y/2")
	for _, r := range []*Result{&lost, &safe, &dead, &half, &refused} {
		r.Broken, r.How = "A1", "the store lied 3 times"
	}
	safe.Holds = true
	refused.Trace = &Trace{Verdict: Refused, Detail: "line 7"}
	broken := refused
	broken.Trace = &Trace{Verdict: Untraced, Detail: "not in the model"}
	undecided := green("y/2")
	undecided.Trace = &Trace{Verdict: Undecided, Detail: "300001 states"}
	store := green("y/2")
	store.Refused = "store-untrusted"
	for _, c := range []struct {
		name    string
		planned []string
		results []Result
		ok      bool
		text    string
	}{
		{"all green", []string{"x/1", "y/2"}, []Result{green("x/1"), green("y/2")}, true, "2 scenarios planned, 2 run, 0 not run, 0 red"},
		{"nothing planned", nil, nil, false, "0 scenarios planned"},
		{"one without a result", []string{"x/1", "y/2"}, []Result{green("x/1")}, false, "NOT RUN: y/2"},
		{"one that did not run", []string{"x/1", "y/2"}, []Result{green("x/1"), {Name: "y/2", Error: "needs strace"}}, false, "needs strace"},
		{"one violated", []string{"x/1", "y/2"}, []Result{green("x/1"), bad}, false, "an event is missing"},
		{"one not checked", []string{"x/1", "y/2"}, []Result{green("x/1"), unchecked}, false, "NOT CHECKED"},
		{"one without checks", []string{"x/1", "y/2"}, []Result{green("x/1"), without}, false, "NOT CHECKED"},
		{"one failed", []string{"x/1", "y/2"}, []Result{green("x/1"), failed}, false, "FAILED"},
		{"an assumption broken, and nothing lost", []string{"x/1", "y/2"}, []Result{green("x/1"), broken}, true, "BROKEN ASSUMPTION (A1): y/2"},
		{"an assumption broken, and writes lost", []string{"x/1", "y/2"}, []Result{green("x/1"), lost}, true, "watch: lost with A1, 1 findings"},
		{"writes lost where none may be even so", []string{"x/1", "y/2"}, []Result{green("x/1"), safe}, false, "VIOLATED: y/2"},
		{"an assumption broken, and the pair never whole again", []string{"x/1", "y/2"}, []Result{green("x/1"), dead}, false, "FAILED"},
		{"an assumption broken, and not all checked", []string{"x/1", "y/2"}, []Result{green("x/1"), half}, false, "NOT CHECKED"},
		{"a trace refused", []string{"x/1", "y/2"}, []Result{green("x/1"), refused}, false, "trace: line 7"},
		{"a trace undecided", []string{"x/1", "y/2"}, []Result{green("x/1"), undecided}, true, "trace undecided: y/2: 300001 states"},
		{"a store refused", []string{"x/1", "y/2"}, []Result{green("x/1"), store}, true, "0 red"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Run{Planned: c.planned, Results: c.results, Seed: 7, Flags: []string{"--v6", "--twok", "F"}}
			r.Sum()
			var b strings.Builder
			if err := r.Text(&b); err != nil {
				t.Fatal(err)
			}
			if r.OK() != c.ok || !strings.Contains(b.String(), c.text) {
				t.Errorf("green %t, want %t:\n%s", r.OK(), c.ok, b.String())
			}
			if !c.ok && len(c.results) == 2 && c.results[1].Ran && !strings.Contains(b.String(), "cmd --seed 0 --v6 --twok F --select y/2\n") {
				t.Errorf("it does not say how to play it again:\n%s", b.String())
			}
		})
	}
}

// The summary has a line for each cell with all its rounds, and adds up what serializable reads got.
//
// Rules: none (the harness).
func TestSummary(t *testing.T) {
	again := green("x/1#2")
	for site, s := range map[string]check.Stale{"a": {Reads: 4, Stale: 1, Oldest: time.Second}, "b": {Reads: 3, Stale: 2, Oldest: 2 * time.Second}} {
		if again.Check.Stale == nil {
			again.Check.Stale = map[string]check.Stale{}
		}
		again.Check.Stale[site] = s
	}
	r := Run{Planned: []string{"x/1", "y/2", "x/1#2", "y/2#2"}, Results: []Result{green("x/1"), {Name: "y/2"}, again}, Of: 70}
	r.Sum()
	var b strings.Builder
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\n       2     2       0     0  x/1\n       2     0       2     1  y/2\n", "\n2 of the 70 cells", "\n3 of 7 serializable reads were stale, up to 2.0 s\n", "\nNOT RUN: y/2\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("without %q:\n%s", want, b.String())
		}
	}
}

// What a check found counts, whether the scenario came to its end or not.
//
// Rules: none (the harness).
func TestViolated(t *testing.T) {
	bad, apart := green("x/1"), green("x/1")
	bad.Check.Results = append(bad.Check.Results, check.Result{Name: "acknowledged", Verdict: check.Violated})
	apart.Check.Results = append(apart.Check.Results, check.Result{Name: "equal", Verdict: check.Violated})
	apart.Broken = "A1" // whatever was lost by that, a pair that is whole has one key space
	if l := apart.Line(); apart.Breaks() || !strings.Contains(l, "equal VIOLATED") {
		t.Error(l)
	}
	ended := bad
	ended.Error = "context canceled"
	lies, holds, never, unchecked := bad, bad, bad, green("x/1")
	lies.Broken, holds.Broken, holds.Holds, never.Ran = "A1", "A1", true, false
	unchecked.Check.Results[0].Verdict, unchecked.Error = check.NotChecked, "context canceled"
	for _, c := range []struct {
		r    Result
		want bool
	}{{bad, true}, {ended, true}, {holds, true}, {apart, true}, {lies, false}, {never, false}, {unchecked, false}, {green("x/1"), false}} {
		if c.r.Violated() != c.want {
			t.Errorf("%s: violated %t", c.r.Line(), c.r.Violated())
		}
	}
}

// A broken assumption is counted as that, neither as green nor as red, and traces by their verdicts.
//
// Rules: none (the harness).
func TestBroken(t *testing.T) {
	x, y, z := green("x/1"), green("y/2"), green("z/3")
	x.Broken, x.How, x.Trace = "A1", "the store lied 3 times", &Trace{Verdict: Untraced}
	lost := x
	lost.Check = &check.Report{Results: []check.Result{{Name: "watch", Verdict: check.Violated, Count: 1}}}
	if l := lost.Line(); strings.Contains(l, string(check.Violated)) || !strings.Contains(l, "watch lost with A1 (1)") {
		t.Error(l)
	}
	y.Trace, z.Trace = &Trace{Verdict: Explained}, &Trace{Verdict: Undecided}
	r := Run{Planned: []string{"x/1", "y/2", "z/3"}, Results: []Result{x, y, z}}
	r.Sum()
	if r.Red != 0 || r.Broken != 1 || r.Traces[Untraced] != 1 || r.Traces[Explained] != 1 || r.Traces[Undecided] != 1 {
		t.Errorf("%+v", r)
	}
	if x.OK() || x.Red() || !x.Breaks() || !strings.Contains(x.Line(), "BROKEN ASSUMPTION (A1)") || !strings.Contains(x.Line(), "the store lied 3 times") {
		t.Errorf("green %t, red %t: %s", x.OK(), x.Red(), x.Line())
	}
}

// Both files are there, and the JSON object has the totals.
//
// Rules: none (the harness).
func TestSave(t *testing.T) {
	r := Run{Planned: []string{"x/1"}, Results: []Result{green("x/1")}}
	r.Sum()
	dir := t.TempDir()
	if err := r.Save(dir); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, jsonFile))
	if err != nil {
		t.Fatal(err)
	}
	var got Run
	if err := json.Unmarshal(data, &got); err != nil || got.Acked != 3 || got.Claims != 1 || got.ByFault["x"] != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(dir, textFile)); err != nil {
		t.Error(err)
	}
}

// Each run has a line of its own, which grows with it. A file that is something else is left alone.
//
// Rules: none (the harness).
func TestSaveTotals(t *testing.T) {
	path := filepath.Join(t.TempDir(), "totals.jsonl")
	read := func() (seeds, planned []int, red int) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range strings.Split(strings.TrimSpace(string(data)), "\n") {
			var x struct {
				Seed, Planned int
				Red           []string
			}
			if err := json.Unmarshal([]byte(l), &x); err != nil {
				t.Fatalf("%s: %v", data, err)
			}
			seeds, planned, red = append(seeds, x.Seed), append(planned, x.Planned), red+len(x.Red)
		}
		return seeds, planned, red
	}
	begin := time.Now()
	first := Run{Planned: []string{"x/1"}, Results: []Result{green("x/1")}, Seed: 9, Started: begin}
	second := Run{Planned: []string{"x/1"}, Results: []Result{green("x/1")}, Seed: 9, Started: begin.Add(time.Second)}
	third := Run{Planned: []string{"x/1"}, Results: []Result{green("x/1")}, Seed: 10, Started: begin}
	for _, r := range []*Run{&first, &second, &third} {
		r.Sum()
		if err := r.SaveTotals(path); err != nil {
			t.Fatal(err)
		}
	}
	if seeds, planned, red := read(); !slices.Equal(seeds, []int{9, 9, 10}) || !slices.Equal(planned, []int{1, 1, 1}) || red != 0 {
		t.Errorf("three runs: seeds %v, planned %v, %d red", seeds, planned, red)
	}
	first.Planned, first.Results = append(first.Planned, "y/2"), append(first.Results, Result{Name: "y/2"})
	first.Sum()
	if err := first.SaveTotals(path); err != nil {
		t.Fatal(err)
	}
	if seeds, planned, red := read(); !slices.Equal(seeds, []int{9, 10, 9}) || !slices.Equal(planned, []int{1, 1, 2}) || red != 1 {
		t.Errorf("one scenario more: seeds %v, planned %v, %d red", seeds, planned, red)
	}
	const notes = "{\"seed\": 3}\nmy notes\n"
	if err := os.WriteFile(path, []byte(notes), 0o644); err != nil {
		t.Fatal(err)
	}
	err := first.SaveTotals(path)
	if data, rerr := os.ReadFile(path); err == nil || !strings.Contains(err.Error(), "my notes") || rerr != nil || string(data) != notes {
		t.Errorf("%v, %v; it is now %q", err, rerr, data)
	}
}

// The page has the moments, the phases and a bar for each tenth of a second with writes, needs nothing
// else, and escapes what it is given.
//
// Rules: none (the harness).
func TestPage(t *testing.T) {
	r := green("x/1")
	r.Dir = t.TempDir()
	r.Moments = []Moment{{At: time.Second, Text: "cut <a> & b"}, {At: 3 * time.Second, Text: "healed"}}
	start := time.Now()
	h := history.History{
		Ops: []history.Op{
			{Site: "a", Kind: history.Put, Outcome: history.OK, Writes: []history.Write{{Key: "k"}}, Call: 1e7, Return: 5e7},
			{Site: "b", Kind: history.Put, Outcome: history.OK, Writes: []history.Write{{Key: "k"}}, Call: 1e8, Return: 2e8},
			{Site: "a", Kind: history.Get, Outcome: history.OK, Call: 1e9, Return: 2e9},
			{Site: "b", Kind: history.Put, Outcome: history.Unknown, Writes: []history.Write{{Key: "k"}}, Call: 1e9},
		},
	}
	phases := map[string][]history.Phase{"a": {{At: start.UnixNano() - 5, Name: "leading", Generation: 3}, {At: start.UnixNano() + 2e9, Name: "claiming"}}}
	r.Absent = []Absence{{Site: "a", Program: Etcd, State: "down", From: 5e8, To: 15e8}, {Site: "b", Program: Agent, State: "frozen", From: 1e8, To: 29e8}}
	if err := r.Page(h, phases, start); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(r.Dir, "timeline.html"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	for _, want := range []string{"cut &lt;a&gt; &amp; b", "healed", "leading, generation 3", "claiming, generation 0", "#9ad0a8", "#e79a97", "<circle",
		"bars: to 10/s", ">down<", ">frozen<", "<title>etcd down", "<title>agent frozen", "no write acknowledged: 2.80 s"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, not := range []string{"a: claiming", "no write acknowledged: 0", "<a>", "src=", "href=", "%!"} {
		if strings.Contains(page, not) {
			t.Errorf("the page has %q", not)
		}
	}
	// Leading from the start to 2 s, but for the second without an etcd.
	if n := strings.Count(page, "<title>a: leading, generation 3"); n != 2 {
		t.Errorf("a leads %d times", n)
	}
	r.Dir = filepath.Join(r.Dir, "none")
	if r.Page(h, phases, start) == nil {
		t.Error("a page was written into a directory that is not there")
	}
}
