package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"twok/arbiter"
)

// Rules: P4, P10, P14, P15.
func TestWords(t *testing.T) {
	now := time.UnixMilli(1_767_322_900_000)
	at := func(d time.Duration) int64 { return now.Add(-d).UnixMilli() }
	base := arbiter.Record{ID: "r", ClusterID: 7, Generation: 3, WrittenAt: at(time.Second)}
	for _, c := range []struct {
		name string
		edit func(r *arbiter.Record)
		says []string
		not  string
	}{
		{"new", func(*arbiter.Record) {}, []string{"is new", "nothing would write: neither member has the pair token"}, "alone"},
		{"whole, never lost", func(r *arbiter.Record) { r.WholeGeneration, r.WholeAt = 3, at(time.Minute) },
			[]string{"whole, as noted 1m0s ago", "No member had to go on alone since this record was made.", "as generation 4"}, "paused"},
		{"whole again", func(r *arbiter.Record) {
			r.WholeGeneration, r.Survivor = 3, arbiter.Member{ID: 0xa, Name: "a"}
		}, []string{"last survivor was a (000000000000000a)", "at an unknown time", "as generation 4"}, "goes on"},
		{"alone", func(r *arbiter.Record) {
			r.Survivor, r.ClaimedAt = arbiter.Member{ID: 0xa, Name: "a\x1b"}, at(72*time.Hour)
			r.Confirmed.Index, r.ConfirmedAt = 9, at(30*time.Second)
		}, []string{`"a\x1b" (000000000000000a) goes on alone: it claimed 3 days ago`, "confirmed 30s ago", "only this member"}, "\x1b"},
		{"alone, not confirmed", func(r *arbiter.Record) { r.Survivor.ID, r.ClaimedAt = 0xa, at(time.Second) },
			[]string{"the member 000000000000000a claimed 1s ago", "has not confirmed"}, "goes on"},
		{"alone, whole a generation before", func(r *arbiter.Record) { r.Survivor.ID, r.WholeGeneration = 0xa, 2 }, []string{"claimed"}, "is whole"},
		{"drained", func(r *arbiter.Record) { r.Survivor.ID, r.Drain = 0xa, true }, []string{"is drained"}, "confirmed"},
		{"paused", func(r *arbiter.Record) { r.WholeGeneration, r.Pause = 3, true }, []string{"paused"}, "as generation"},
		{"forced", func(r *arbiter.Record) { r.Survivor.ID, r.Forced, r.Fork.Index = 0xa, true, 9 }, []string{"has not confirmed", "was forced by an operator"}, "ordered"},
		{"ordered", func(r *arbiter.Record) {
			r.Survivor, r.Forced, r.Reason, r.ClaimedAt = arbiter.Member{ID: 0xa, Name: "a"}, true, "forced by eve\x1b", at(time.Minute)
		}, []string{`ordered a (000000000000000a) to go on alone ("forced by eve\x1b"), 1m0s ago`, "not carried this out", "Until then nothing writes"}, "was forced"},
		{"ordered in vain", func(r *arbiter.Record) {
			r.Survivor.ID, r.Forced, r.WholeGeneration, r.Reason = 0xa, true, 3, "forced by eve"
		}, []string{"The pair is whole", "forced a claim (forced by eve)", "it is void"}, "given up"},
		{"silent", func(r *arbiter.Record) { r.WholeGeneration, r.WrittenAt = 3, at(10*time.Minute) }, []string{"Nothing was written to the record for 10m0s"}, "new"},
		{"clock ahead", func(r *arbiter.Record) { r.WholeGeneration, r.WholeAt = 3, at(-time.Hour) }, []string{"by a clock ahead"}, "Nothing was"},
	} {
		r := base
		c.edit(&r)
		got := strings.Join(words(r, now), "\n")
		for _, want := range c.says {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q is not in\n%s", c.name, want, got)
			}
		}
		if strings.Contains(got, c.not) {
			t.Errorf("%s: %q is in\n%s", c.name, c.not, got)
		}
	}
}

// Rules: P13.
func TestHistory(t *testing.T) {
	var rec arbiter.Record
	hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		b, err := arbiter.Encode(rec)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("ETag", `"t1"`)
		_, _ = w.Write(b)
	}))
	t.Cleanup(hs.Close)
	rec = aRecord()
	rec.History[2] = arbiter.HistoryEntry{First: 4, Last: 4, Survivor: 7, Forced: true, By: "eve@host\x1b"}
	rec.Generation, rec.Survivor.ID = 4, 7
	out, errs, code := twok(t, "arbiter", "history", "--arbiter", hs.URL+"/pair")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); code != 0 || len(lines) != 4 || !strings.HasPrefix(lines[1], "1-2 ") || !strings.Contains(lines[2], "8e9e05c52164694d") || !strings.Contains(lines[2], "yes") || !strings.Contains(lines[3], `"eve@host\x1b"`) {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	out, errs, code = twok(t, "arbiter", "history", "--json", "--arbiter", hs.URL+"/pair")
	var es []struct {
		First, Last uint64
		Survivor    string
		Fork        arbiter.Position
		Forced      bool
		By          string
	}
	if err := json.Unmarshal([]byte(out), &es); err != nil || code != 0 || len(es) != 3 || es[0].Last != 2 || es[0].Survivor != "fd422379fda50e48" || es[0].Fork.Index != 9 || !es[1].Forced || es[1].By != "" || es[2].By != "eve@host\x1b" {
		t.Errorf("exit %d, %v\n%s%s", code, err, out, errs)
	}
	rec = arbiter.Record{ID: "r", Nonce: "n", ClusterID: 7, Generation: 1, CreatedAt: 1, WrittenAt: 1}
	if out, _, code = twok(t, "arbiter", "history", "--arbiter", hs.URL+"/pair"); code != 0 || !strings.Contains(out, "no claim yet") {
		t.Errorf("exit %d\n%s", code, out)
	}
	if out, _, code = twok(t, "arbiter", "history", "--json", "--arbiter", hs.URL+"/pair"); code != 0 || strings.TrimSpace(out) != "[]" {
		t.Errorf("exit %d\n%s", code, out)
	}
	if _, _, code = twok(t, "arbiter", "history", "--arbiter", "http://127.0.0.1:1/pair"); code != exitUnavailable {
		t.Errorf("exit %d", code)
	}
}
