package scenario

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"twok/testing/history"
	"twok/testing/report"
)

// A replay validates the traces again, keeps what went wrong while the scenario was played, and fails where something is missing.
//
// Rules: none (the harness).
func TestReplay(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, v any) {
		t.Helper()
		data, err := json.Marshal(v)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	was := report.Result{Name: "cut-both/pair/3.7/serve/signal", Seed: 7, Ran: true, Error: "close: it does not end"}
	if _, err := Replay(dir, 0); err == nil {
		t.Error("an empty directory was replayed")
	}
	if err := (history.History{}).Save(dir); err != nil {
		t.Fatal(err)
	}
	write(resultFile, was)
	if _, err := Replay(dir, 0); err == nil {
		t.Error("a directory without the options of its checks was replayed")
	}
	if err := (options{}).save(dir); err != nil {
		t.Fatal(err)
	}
	r, err := Replay(dir, 0)
	if err != nil || r.Trace != nil || r.Verdict() != "FAILED" || r.Name != was.Name || r.Seed != 7 || r.Dir != dir || !strings.Contains(r.Error, was.Error) {
		t.Errorf("%+v, %v", r, err)
	}
	was.Error, was.Trace = "", &report.Trace{Verdict: report.Explained}
	write(resultFile, was)
	for _, site := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(dir, site), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, site, "trace.jsonl"), []byte("{\"event\":\"none\"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := Replay(dir, 0); err != nil || r.Trace == nil || r.Trace.Verdict != report.Refused {
		t.Errorf("traces that are none: %+v, %v", r.Trace, err)
	}
	was.Name = "store-lies-swaps/pair/3.7/serve/signal"
	write(resultFile, was)
	if r, err := Replay(dir, 0); err != nil || r.Trace == nil || r.Trace.Verdict != report.Untraced {
		t.Errorf("a fault that is not traced: %+v, %v", r.Trace, err)
	}
	was.Name = "no-such-fault/pair/3.7/serve/signal"
	write(resultFile, was)
	if _, err := Replay(dir, 0); err == nil {
		t.Error("the traces of a fault that is not there were replayed")
	}
}
