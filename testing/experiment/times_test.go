package experiment

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"twok/internal/lab"
)

// TestDemoRounds: each good round is a run, with the steps of its survivor alone, the first of each; a round that failed or
// has no time is none.
//
// Rules: none (reads what the demo found).
func TestDemoRounds(t *testing.T) {
	result := `{"rounds":[
{"round":1,"leader":"a","survivor":"a","acked":10,"lost":0,"first_write_after_cut_s":4.5,"whole_after_heal_s":0.5,"hashes_equal":true},
{"round":2,"leader":"a","survivor":"b","acked":20,"lost":0,"first_write_after_cut_s":5.5,"whole_after_heal_s":7,"hashes_equal":true},
{"round":3,"leader":"b","survivor":null,"acked":5,"lost":0,"first_write_after_cut_s":1.5,"whole_after_heal_s":1,"hashes_equal":true},
{"round":4,"leader":"b","survivor":"b","acked":5,"lost":0,"first_write_after_cut_s":1.5,"whole_after_heal_s":1,"hashes_equal":false},
{"round":5,"leader":"b","survivor":"b","acked":5,"lost":0,"first_write_after_cut_s":1.5,"whole_after_heal_s":null,"hashes_equal":true},
{"round":6,"leader":"b","survivor":"b","acked":5,"lost":0,"first_write_after_cut_s":1.5,"whole_after_heal_s":1,"hashes_equal":true,"error":"it broke"}]}`
	events := `building etcd ...
{"event":"claim","site":"b","round":1,"since_cut_s":2.9}
{"event":"claim","site":"a","round":1,"since_cut_s":3}
{"event":"named","site":"a","round":1,"since_cut_s":3.25}
{"event":"lead","site":"a","round":1,"since_cut_s":4.25}
{"event":"lead","site":"a","round":1,"since_heal_s":0.1}
{"event":"claim","site":"b","round":2,"since_cut_s":3.75}
{"event":"claim","site":"b","round":2,"since_cut_s":9}
{"event":"claim","site":"b","round":3,"since_cut_s":8}
`
	got, err := demoRounds([]byte(result), []byte(events))
	if err != nil {
		t.Fatal(err)
	}
	want := []Run{
		{Values: map[string]float64{"first_write": 4.5, "whole": 0.5, "acked": 10, "lost": 0, "claim": 3, "named": 3.25, "lead": 4.25}, Notes: map[string]string{"survivor": "the former leader"}},
		{Values: map[string]float64{"first_write": 5.5, "whole": 7, "acked": 20, "lost": 0, "claim": 3.75}, Notes: map[string]string{"survivor": "the follower"}},
		{Values: map[string]float64{"first_write": 1.5, "whole": 1, "acked": 5, "lost": 0}, Notes: map[string]string{"survivor": "nobody claimed"}},
	}
	if len(got) != len(want) {
		t.Fatalf("%d runs: %+v", len(got), got)
	}
	for i := range want {
		if !maps.Equal(got[i].Values, want[i].Values) || !maps.Equal(got[i].Notes, want[i].Notes) {
			t.Errorf("round %d: %+v, not %+v", i+1, got[i], want[i])
		}
	}
	// A round that lost something has an error and is counted.
	got, err = demoRounds([]byte(`{"rounds":[{"round":1,"leader":"a","survivor":"b","acked":100,"lost":7,"error":"the audit failed"}]}`), nil)
	if err != nil || len(got) != 1 || got[0].Values["lost"] != 7 || got[0].Values["acked"] != 100 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := demoRounds([]byte("nothing"), nil); err == nil {
		t.Error("no result is no error")
	}
}

// TestReturnCases: a case's name says what is done.
//
// Rules: none (names of experiments).
func TestReturnCases(t *testing.T) {
	all := returnCases()
	if len(all) != 18 || !slices.Contains(all, "500MB-20000-wiped") {
		t.Errorf("%q", all)
	}
	for _, name := range all {
		if _, err := parseReturn(name); err != nil {
			t.Error(err)
		}
	}
	if c, err := parseReturn("50MB-1000-wiped"); err != nil || c != (returnCase{50, 1000, true}) {
		t.Errorf("%+v, %v", c, err)
	}
	for _, name := range []string{"50MB-1000", "50MB-1000-torn", "MB-1000-kept", "50MB-many-kept"} {
		if _, err := parseReturn(name); err == nil {
			t.Errorf("%q is taken", name)
		}
	}
}

// TestWayBack: what was said before the heal does not count; the last rewrite does.
//
// Rules: none (reads logs and traces).
func TestWayBack(t *testing.T) {
	since := time.Date(2026, 1, 2, 10, 0, 0, 500, time.UTC)
	for _, c := range []struct{ log, trace, wantLog, wantGot string }{
		{`{"ts":"2026-01-02T09:59:00Z","msg":"applied snapshot"}`, `{"t":"2026-01-02T09:59:00Z","keep_log":true}`, "not said", "entries"},
		{`{"ts":"2026-01-02T10:00:01Z","msg":"applied snapshot"}`, `{"t":"2026-01-02T10:00:01Z","keep_log":false}`, "empty", "snapshot"},
		{`{"ts":"2026-01-02T10:00:01Z","msg":"applying snapshot"}`, `{"t":"2026-01-02T10:00:01Z"}`, "not said", "entries"},
		{"", "{\"t\":\"2026-01-02T10:00:01Z\",\"keep_log\":false}\n{\"t\":\"2026-01-02T10:00:02Z\",\"keep_log\":true}", "kept", "entries"},
	} {
		dir := t.TempDir()
		log, trace := filepath.Join(dir, "log"), filepath.Join(dir, "trace")
		if err := errors.Join(os.WriteFile(log, []byte("no JSON\n"+c.log+"\n"), 0o600), os.WriteFile(trace, []byte(c.trace+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
		notes, err := wayBack(log, trace, since)
		if err != nil || notes["log"] != c.wantLog || notes["got"] != c.wantGot {
			t.Errorf("%s, %s: %v, %v", c.log, c.trace, notes, err)
		}
	}
	if _, err := wayBack("/nowhere", "/nowhere", since); err == nil {
		t.Error("files that are not there are no error")
	}
}

// TestStopwatch: a write counts if it began and ended in the window; a client does one at a time.
//
// Rules: none (measures).
func TestStopwatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Time{}
		start := time.Now()
		put := func(context.Context, int, int) error { time.Sleep(300 * time.Millisecond); return nil }
		took, err := stopwatch(t.Context(), put, 2, time.Second, 2*time.Second, func() error { begun = time.Now(); return nil })
		if err != nil {
			t.Fatal(err)
		}
		// Of each client those that begin at 1.2, 1.5, 1.8, 2.1, 2.4 and 2.7 s; not 0.9 to 1.2.
		if len(took) != 12 || slices.Max(took) != 300*time.Millisecond || slices.Min(took) != 300*time.Millisecond {
			t.Errorf("%v", took)
		}
		if begun.Sub(start) != time.Second {
			t.Errorf("the window began after %s", begun.Sub(start))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("it broke")
		if _, err := stopwatch(t.Context(), func(_ context.Context, client, seq int) error {
			time.Sleep(time.Second)
			if client == 1 && seq == 2 {
				return broken
			}
			return nil
		}, 2, time.Second, 4*time.Second, func() error { return nil }); !errors.Is(err, broken) {
			t.Errorf("a failed write: %v", err)
		}
	})
}

// TestLatencies: rate and quantiles of a window, and the ratios of a pair.
//
// Rules: none (summarises what experiments find).
func TestLatencies(t *testing.T) {
	var took []time.Duration
	for i := range 100 {
		took = append(took, time.Duration(100-i)*time.Millisecond)
	}
	v, err := latencies(took, 20*time.Second)
	if want := map[string]float64{"rate": 5, "p50": 0.05, "p90": 0.09, "p99": 0.099, "max": 0.1}; err != nil || !maps.Equal(v, want) {
		t.Errorf("%v, not %v; %v", v, want, err)
	}
	if _, err := latencies(nil, time.Second); err == nil {
		t.Error("a window without a write is no error")
	}
	got, err := paired(map[string]float64{"rate": 90, "agent_leader_cpu": 0.01}, map[string]float64{"rate": 100})
	if want := map[string]float64{"with_rate": 90, "without_rate": 100, "ratio_rate": 0.9, "with_agent_leader_cpu": 0.01}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, not %v; %v", got, want, err)
	}
	if _, err := paired(map[string]float64{"rate": 90}, map[string]float64{"rate": 0}); err == nil {
		t.Error("a ratio to zero")
	}
}

// TestUsage: CPU is what was used since before, by site; memory that of the end. Without agents there is none.
//
// Rules: none (measures).
func TestUsage(t *testing.T) {
	at := time.Now()
	before := usage{at: at, etcd: map[string]lab.Usage{"a": {CPU: time.Second}, "b": {CPU: 5 * time.Second}}, agents: map[string]lab.Usage{"b": {CPU: time.Second}}}
	after := usage{at: at.Add(10 * time.Second), etcd: map[string]lab.Usage{"a": {CPU: 6 * time.Second, RSS: 3, RSSAnon: 2}, "b": {CPU: 7 * time.Second, RSS: 5, RSSAnon: 4}},
		agents: map[string]lab.Usage{"b": {CPU: 2 * time.Second, RSS: 7, RSSAnon: 6}}}
	v := map[string]float64{}
	after.add(v, before, "b")
	want := map[string]float64{"etcd_follower_cpu": 0.5, "etcd_follower_rss": 3, "etcd_follower_private": 2, "etcd_leader_cpu": 0.2, "etcd_leader_rss": 5, "etcd_leader_private": 4,
		"agent_leader_cpu": 0.1, "agent_leader_rss": 7, "agent_leader_private": 6}
	if !maps.Equal(v, want) {
		t.Errorf("%v, not %v", v, want)
	}
}

// TestTimesTables: the tables say what is in the summary.
//
// Rules: none (prints what experiments find).
func TestTimesTables(t *testing.T) {
	run := func(e, c string, notes map[string]string, values map[string]float64) Run {
		return Run{Experiment: e, Version: "3.6", Etcd: "3.6.16", Case: c, Values: values, Notes: notes}
	}
	led := map[string]string{"survivor": "the former leader"}
	s := Summarize([]Run{
		run("failover", "3s-s3-one-way-to-leader", led, map[string]float64{"first_write": 4, "whole": 0.5, "acked": 10, "lost": 0, "claim": 3, "named": 3.5}),
		run("failover", "3s-s3-one-way-to-leader", map[string]string{"survivor": "the follower"}, map[string]float64{"first_write": 6, "whole": 1.5, "acked": 5, "lost": 1, "claim": 3.5, "named": 4}),
		run("failover", "3s-etcd-link", led, map[string]float64{"first_write": 5, "whole": 0.7, "acked": 2, "lost": 0, "claim": 3.25, "named": 3.75}),
		run("failover", "20s-serve-restart-both", map[string]string{"survivor": "nobody claimed"}, map[string]float64{"first_write": 2, "whole": 1, "acked": 7, "lost": 0}),
		{Experiment: "failover", Version: "3.6", Etcd: "3.6.16", Case: "20s-serve-restart-both", Error: "it broke"},
		run("return-cost", "50MB-1000-wiped", map[string]string{"log": "empty", "got": "snapshot"}, map[string]float64{"db": 51e6, "bytes": 52e6, "to_loser": 51.5e6, "link_bytes": 53e6, "whole": 7}),
		run("steady-state", "32", nil, map[string]float64{"with_rate": 900, "without_rate": 1000, "ratio_rate": 0.9, "with_agent_leader_cpu": 0.015}),
	})
	for got, wants := range map[string][]string{
		tableFailover(s): {
			"Claim-after 3s;", "| s3 | one-way-to-leader | 3.6.16 | 2 | 4.00 · 4.00 **4.00** 6.00 · 6.00 · 6.00 | 0.50 · 0.50 **0.50** 1.50 · 1.50 · 1.50 | 1 of 2 | 1 of 15 |",
			"Claim-after 20s;", "| serve | restart-both | 3.6.16 | 1 (1 failed) | 2.00 · 2.00 **2.00** 2.00 · 2.00 · 2.00 | 1.00 · 1.00 **1.00** 1.00 · 1.00 · 1.00 | 0 of 0 | 0 of 7 |",
			"| one-way-to-leader | 2 | 4.00 · 4.00 **4.00** 6.00 · 6.00 · 6.00 |", "| s3, the leader lives | 2 | 4.00", "| etcd, the leader lives | 1 | 5.00",
			"| etcd 3.6.16, the leader lives | 3 | 4.00 · 4.00 **5.00** 6.00 · 6.00 · 6.00 | 0.50 · 0.50 **0.70** 1.50 · 1.50 · 1.50 | 2 of 3 | 1 of 17 |",
			"| one-way-to-leader | 3.00 | – | 3.50 | – | – | 4.00 |", "| etcd 3.6.16, the leader lives | 3.25 | – | 3.75 | – | – | 5.00 |",
		},
		tableReturn(s): {"| Filled up to | Missed writes | Disk | etcd 3.6.16 |\n", "| 50 MB | 1000 | wiped | 52.00 MB, 7.0 s, snapshot |\n", "| 51.0 MB | 1000 | wiped | 3.6.16 | 1 | 1 × `empty` | 1 × `snapshot` | 52.00 MB, 52.00 MB | 51.50 MB, 51.50 MB | 53.00 MB, 53.00 MB | 7.00 s, 7.00 s |"},
		tableSteady(s): {"| 32 | 3.6.16 | 1 | writes/s | 900 (900–900) | 1000 (1000–1000) | 0.900 (0.900–0.900), 0.900, 0.900 |", "| 32 | 3.6.16 | leader | 1.5 (1.5–1.5) | – | – |"},
	} {
		for _, want := range wants {
			if !strings.Contains(got, want) {
				t.Errorf("%s\nwithout\n%s", got, want)
			}
		}
	}
	if strings.Contains(tableFailover(s), "| restart-both | –") {
		t.Error("steps of a claim where nobody claimed")
	}
}
