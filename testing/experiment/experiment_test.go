package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMissing: a write is lost if its key is not there, or is there at another revision than was acknowledged.
//
// Rules: none (counts what experiments find).
func TestMissing(t *testing.T) {
	acks := []ack{{Key: "a", Rev: 5}, {Key: "b", Rev: 6}, {Key: "c", Rev: 7}}
	for _, x := range []struct {
		have map[string]int64
		want string
	}{
		{map[string]int64{"a": 5, "b": 6, "c": 7, "nobody's": 8}, ""},
		{map[string]int64{"a": 5, "c": 7}, "b"},
		{map[string]int64{"a": 5, "b": 9, "c": 7}, "b"},
		{nil, "abc"},
	} {
		got := ""
		for _, a := range missing(acks, x.have) {
			got += a.Key
		}
		if got != x.want {
			t.Errorf("of %v missing: %q, not %q", x.have, got, x.want)
		}
	}
}

// TestBefore: an answer counts as had if it came before the moment; the first write after one must have begun after it.
//
// Rules: none (counts what experiments find).
func TestBefore(t *testing.T) {
	t0 := time.Now()
	at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
	acks := []ack{
		{Key: "had", Begun: at(0), At: at(9)},
		{Key: "same moment", Begun: at(2), At: at(10)},
		{Key: "straddles", Begun: at(9), At: at(11)},
		{Key: "later", Begun: at(12), At: at(30)},
		{Key: "first", Begun: at(10), At: at(20)},
	}
	if had := before(acks, at(10)); len(had) != 1 || had[0].Key != "had" {
		t.Errorf("had before: %v", had)
	}
	if first, ok := firstAfter(acks, at(10)); !ok || first != at(20) {
		t.Errorf("first after: %v, %t", first, ok)
	}
	if first, ok := firstAfter(acks, at(13)); ok {
		t.Errorf("first after the end: %v", first)
	}
}

// TestDistribution: quantiles are measured values, by nearest rank.
//
// Rules: none (summarises what experiments find).
func TestDistribution(t *testing.T) {
	var v []float64
	for i := 100; i >= 1; i-- {
		v = append(v, float64(i))
	}
	if got, want := Distribution(v), (Dist{N: 100, Sum: 5050, NonZero: 100, Min: 1, P25: 25, P50: 50, P75: 75, P90: 90, P99: 99, Max: 100}); got != want {
		t.Errorf("of 1 to 100: %+v, not %+v", got, want)
	}
	if v[0] != 100 {
		t.Error("the values were sorted in place")
	}
	if got, want := Distribution([]float64{0, 3}), (Dist{N: 2, Sum: 3, NonZero: 1, P75: 3, P90: 3, P99: 3, Max: 3}); got != want {
		t.Errorf("of 0 and 3: %+v, not %+v", got, want)
	}
}

// TestSummarize: a failed run is counted, and in no distribution; a value that some runs have not is no zero.
//
// Rules: none (summarises what experiments find).
func TestSummarize(t *testing.T) {
	run := func(c, v string, values map[string]float64, err string) Run {
		return Run{Experiment: "commit-lag", Version: v, Etcd: v + ".1", Case: c, Values: values, Notes: map[string]string{"why": c}, Error: err}
	}
	s := Summarize([]Run{
		run("32", "3.5", map[string]float64{"x": 4}, ""),
		run("8", "3.6", map[string]float64{"x": 1}, ""),
		run("8", "3.5", map[string]float64{"x": 1}, ""),
		run("8", "3.5", nil, ""),
		run("8", "3.5", map[string]float64{"x": 1000}, "it broke"),
	})
	var order []string
	for _, c := range s.Cells {
		order = append(order, c.Case+" "+c.Version)
	}
	if want := []string{"8 3.5", "8 3.6", "32 3.5"}; !slices.Equal(order, want) {
		t.Errorf("cells %q, not %q", order, want)
	}
	c, ok := s.Cell("commit-lag", "8", "3.5")
	if !ok || c.Runs != 2 || c.Failed != 1 || c.Values["x"].N != 1 || c.Values["x"].Max != 1 || c.Notes["why"]["8"] != 2 || c.Etcd != "3.5.1" {
		t.Errorf("%+v", c)
	}
}

// TestPlay: runs add up over invocations, a total counts those that there are, failed sessions are kept, and a cell is given up
// after two in a row.
//
// Rules: none (plays experiments).
func TestPlay(t *testing.T) {
	out := t.TempDir()
	broken := false
	var asked []int
	e := Experiment{Name: "x", Cases: []string{"c"}, Batch: 2, Run: func(_ context.Context, s *Session, n int) error {
		asked = append(asked, n)
		if broken {
			return errors.New("it broke")
		}
		for range n {
			if err := s.Add(map[string]float64{"v": 1}, nil); err != nil {
				return err
			}
		}
		return nil
	}}
	play := func(cfg Config) error {
		cfg.Out, cfg.Versions, cfg.Log = out, []string{"3.6"}, io.Discard
		return Play(t.Context(), []Experiment{e}, cfg)
	}
	if err := play(Config{Runs: 3}); err != nil {
		t.Fatal(err)
	}
	if err := play(Config{Total: 4}); err != nil {
		t.Fatal(err)
	}
	if want := []int{2, 1, 1}; !slices.Equal(asked, want) {
		t.Errorf("sessions of %v runs, not %v", asked, want)
	}
	broken = true
	if err := play(Config{Runs: 5}); err == nil {
		t.Error("two failed sessions are no error")
	}
	s, err := ReadSummary(out)
	if err != nil {
		t.Fatal(err)
	}
	if c, _ := s.Cell("x", "c", "3.6"); c.Runs != 4 || c.Failed != 2 || c.Values["v"].Sum != 4 {
		t.Errorf("%+v", c)
	}
	var saved Summary
	if data, err := os.ReadFile(filepath.Join(out, "summary.json")); err != nil || json.Unmarshal(data, &saved) != nil {
		t.Errorf("summary.json: %v, %q", err, data)
	}
	if c, _ := saved.Cell("x", "c", "3.6"); c.Runs != 4 || c.Failed != 2 || c.Values["v"].Sum != 4 {
		t.Errorf("summary.json: %+v", c)
	}
	broken, asked = false, nil
	if err := play(Config{Total: 5}); err != nil || !slices.Equal(asked, []int{1}) { // failed runs are none
		t.Errorf("to a total of five: sessions of %v runs, %v", asked, err)
	}
	if err := play(Config{Runs: 1, Cases: []string{"no such"}}); err == nil {
		t.Error("a case that is not there is no error")
	}
	asked = nil
	if err := play(Config{Runs: 1, Cases: []string{"d", "?"}}); err != nil || len(asked) != 1 {
		t.Errorf("a pattern of cases: sessions of %v runs, %v", asked, err)
	}
	if err := play(Config{Runs: 1, Cases: []string{"["}}); err == nil {
		t.Error("a pattern that is none is no error")
	}
	file := filepath.Join(out, "x", "3.6", "c", "runs.jsonl")
	if err := os.WriteFile(file, []byte("{\"case\":\"c\"}\n{\"ca"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(out); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("half a line: %v", err)
	}
}

// TestCopyTree: a copy is byte for byte the same, with holes in it.
//
// Rules: none (copies directories for experiments).
func TestCopyTree(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "to")
	data := make([]byte, 5*block+17)
	data[0], data[3*block-1], data[5*block+3] = 1, 2, 3
	files := map[string][]byte{"a": data, "d/zeros": make([]byte, 2*block), "d/empty": nil, "d/e/short": []byte("x")}
	for name, b := range files {
		path := filepath.Join(from, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, b, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyTree(from, to); err != nil {
		t.Fatal(err)
	}
	for name, b := range files {
		if got, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(got) != string(b) {
			t.Errorf("%s: %d bytes, not the same %d, or %v", name, len(got), len(b), err)
		}
	}
	if err := os.Symlink("a", filepath.Join(from, "link")); err != nil {
		t.Fatal(err)
	}
	if copyTree(from, filepath.Join(t.TempDir(), "to")) == nil {
		t.Error("a link was passed over")
	}
}

// TestEvents: what is in etcd's log before the moment does not count, nor does a vote for oneself or one's own request. A leader
// that is known is not one that was elected.
//
// Rules: none (reads etcd's log).
func TestEvents(t *testing.T) {
	log := filepath.Join(t.TempDir(), "etcd.log")
	lines := `{"ts":"2026-01-02T10:00:00Z","msg":"1a became leader at term 2"}
no JSON
{"ts":"2026-01-02T10:00:11Z","msg":"1a received MsgPreVoteResp from 1a at term 2"}
{"ts":"2026-01-02T10:00:12Z","msg":"1a [logterm: 2, index: 482] sent MsgPreVote request to 2b at term 2"}
{"ts":"2026-01-02T10:00:12.5Z","msg":"1a [logterm: 2, index: 454, vote: 2b] ignored MsgPreVote from 2b [logterm: 2, index: 482] at term 2"}
{"ts":"2026-01-02T10:00:13Z","msg":"1a received MsgPreVoteResp from 2b at term 2"}
{"ts":"2026-01-02T10:00:13.5Z","msg":"raft.node: 1a elected leader 2b at term 2"}
{"ts":"2026-01-02T10:00:14Z","msg":"1a became leader at term 3"}
{"ts":"2026-01-02T10:00:14.5Z","msg":"raft.node: 1a elected leader 1a at term 3"}
`
	if err := os.WriteFile(log, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	ev, err := readEvents(log, time.Date(2026, 1, 2, 10, 0, 10, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	if want := (events{-1, 2.5, 3.5, 4}); ev != want {
		t.Errorf("%+v, not %+v", ev, want)
	}
	values := map[string]float64{"elected": 9, "heard": 1}
	ev.add(values)
	if want := map[string]float64{"elected": 4, "heard": 1, "follows": 3.5}; !maps.Equal(values, want) {
		t.Errorf("%v, not %v", values, want)
	}
}

// TestWithoutToken: the switch finds its clause in the core as it is, exactly once.
//
// Rules: P4 (a).
func TestWithoutToken(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := withoutToken(root, dir); err != nil {
		t.Fatal(err)
	}
	changed, err := os.ReadFile(filepath.Join(dir, "eligible.go"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(changed), tokenRule) || !strings.Contains(string(changed), noTokenRule) {
		t.Error("the clause is still there")
	}
	other := t.TempDir()
	path := filepath.Join(other, "internal", "failover")
	if err := errors.Join(os.MkdirAll(path, 0o700), os.WriteFile(filepath.Join(path, "eligible.go"), changed, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := withoutToken(other, dir); err == nil {
		t.Error("a core without the clause is switched off, too")
	}
}

// TestTables: the tables say what is in the summary, and that sessions failed.
//
// Rules: none (prints what experiments find).
func TestTables(t *testing.T) {
	s := Summarize([]Run{
		{Experiment: "commit-lag", Version: "3.6", Etcd: "3.6.16", Case: "8", Values: map[string]float64{"acked": 70, "acked_late": 5, "lost_force": 3, "late_force": 4, "all_force": 7, "lag": 9}},
		{Experiment: "commit-lag", Version: "3.6", Etcd: "3.6.16", Case: "8", Values: map[string]float64{"acked": 30, "acked_late": 0, "lost_force": 0, "late_force": 0, "all_force": 0, "lag": 2}},
		{Experiment: "commit-lag", Version: "3.6", Etcd: "3.6.16", Case: "8", Error: "it broke"},
	})
	want := "| 8 | 3.6.16 | 2 (1 failed) | 100 + 5 | 3 + 4 | 1 | 7 | 0 + 0 | 2, 9 |"
	if got := tableCommitLag(s); !strings.Contains(got, want) {
		t.Errorf("%s\nwithout\n%s", got, want)
	}
	if got := tally(map[string]int{"b": 2, "a": 2, "c": 3}); got != "3 × `c`; 2 × `a`; 2 × `b`" {
		t.Error(got)
	}
}
