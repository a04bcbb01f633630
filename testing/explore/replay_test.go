package explore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The schedules in testdata replay: with their rules off to the violation that they
// name, and with every rule on to none. What the explorer finds becomes one of these.
//
// Rules: A0, P1, P2, P4, P5, P7, P8, P13, P14, P16, P17, P19.
func TestReplay(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no schedules", err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			in, err := os.Open(f)
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			s, err := ParseScript(in)
			if err != nil {
				t.Fatal(err)
			}
			w, err := s.Replay(nil)
			if err != nil {
				t.Fatal(err)
			}
			l := NewLiveness(s.Off)
			if !w.Broken() && s.Off == 0 {
				l.Check(0, w)
				for _, b := range l.Bad {
					t.Errorf("%s: %s", b.Prop, b.Text)
				}
			}
			switch {
			case s.Ends == "none" && w.Broken():
				t.Errorf("%s: %s", w.Prop, w.Text)
			case s.Ends != "none" && w.Prop != s.Ends:
				t.Errorf("ends with %q, not with %s", w.Prop, s.Ends)
			}
			if s.Off == 0 {
				return
			}
			// The same moves, as far as they are possible, with every rule on.
			on, err := Seed(s.Seed, 0)
			if err != nil {
				t.Fatal(err)
			}
			on.Max = 1 << 20
			for _, m := range s.Moves {
				if m.Op == Rollback {
					continue // A1
				}
				if s.Off.has(A2) {
					on.Off = Without(A2) // and the rule on
				}
				v := *on
				if v.Apply(m) {
					on = &v
				}
				if on.Broken() {
					t.Fatalf("with every rule on: %s: %s", on.Prop, on.Text)
				}
			}
		})
	}
}

// Each rule that can be taken away has a schedule, which replays, or the effort that was spent and why it stays.
//
// Rules: A0, A1, P1, P2, P4, P5, P7, P8, P10, P13, P14, P16, P17, P19.
func TestRecorded(t *testing.T) {
	var rows []Row
	for _, c := range Cases() {
		r, err := c.Recorded()
		if err != nil {
			t.Error(err)
			continue
		}
		if r.Found == nil && (r.Stays == "" || r.Moves < 100_000) {
			t.Errorf("%s: no schedule, and no reason or too little effort", c.Name())
		}
		rows = append(rows, r)
	}
	var b strings.Builder
	WriteTable(&b, rows)
	t.Log(b.String())
}

// A schedule is read as it was written.
//
// Rules: none (the explorer itself).
func TestScriptFormat(t *testing.T) {
	for _, m := range allMoves {
		got, err := ParseMove(m.String())
		if err != nil || got != m || unpack(m.pack()) != m || m.flip().flip() != m {
			t.Errorf("%s: %v %v", m, got, err)
		}
	}
	for x := range numSwitches {
		if got, err := ParseSwitches(Without(x).String()); err != nil || got != Without(x) {
			t.Errorf("%s: %v %v", x, got, err)
		}
	}
}
