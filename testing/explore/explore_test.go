package explore

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/ends.golden")

// Every schedule up to a small cost, from every seed: no property is violated, from
// every state the pair becomes whole, and a single member that may claim leads. What only an operator
// gets out of is in the golden file: where the pair stays, and what a single member says that does not lead.
//
// Rules: P1, P2, P4, P5, P7, P8, P12, P13, P14, P16, P19.
func TestExplore(t *testing.T) {
	l := NewLiveness(0)
	l.ByHand = true
	s := NewSearch(Options{Depth: 2, Operators: true, Rare: true, Each: l.Check})
	r, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d states, %d moves, every schedule of cost up to %d; whole from %d, a single member leads in %d", r.States, r.Steps, r.Depth, l.Whole, l.Leads)
	if r.Found != nil {
		t.Errorf("violation:\n%s", r.Found)
	}
	for _, b := range l.Bad {
		way, err := s.Way(b.ID)
		t.Errorf("%s: %s\n%v %v", b.Prop, b.Text, way, err)
	}
	if r.States < 3000 || l.Whole < 2000 || l.Leads < 2000 {
		t.Error("that is too little: an explorer that goes nowhere finds nothing")
	}
	const path = "testdata/ends.golden"
	got := l.Ends()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("states that only an operator can leave:\n%s\nbut %s has\n%s(-update writes it)", got, path, want)
	}
}

// Switched-off rules are found again, so the properties bite.
//
// Rules: P2, P4, P7, P8.
func TestBites(t *testing.T) {
	for _, x := range []Switch{P2, P4Gen, P7Order, P8Term, P8Truncate} {
		t.Run(x.String(), func(t *testing.T) {
			r, err := Walk{Options: Options{Off: Without(x), Workers: 1}, RandSeed: 1, Steps: 400_000}.Run()
			if err != nil {
				t.Fatal(err)
			}
			if r.Found == nil {
				t.Fatalf("nothing found in %d moves", r.Steps)
			}
			t.Logf("%d moves to find %d", r.Steps, len(r.Found.Moves))
		})
	}
}

// Random walks beyond that bound, from the middle of things.
//
// Rules: P1, P2, P4, P5, P7, P8, P12, P13, P14, P16.
func TestWalk(t *testing.T) {
	r, err := Walk{Options: Options{Operators: true, Rare: true, Workers: 1}, RandSeed: 3, Steps: 60_000}.Run()
	if err != nil {
		t.Fatal(err)
	}
	if r.Found != nil {
		t.Errorf("violation:\n%s", r.Found)
	}
	if r.Cells < 500 {
		t.Errorf("only %d kinds of states", r.Cells)
	}
	t.Logf("%d moves, %d kinds of states", r.Steps, r.Cells)
}

// What the codec leaves out by name is there. That it may be left out is what
// TestCanonical shows, with two worlds side by side of which one forgets it after every move.
//
// Rules: none (the explorer itself).
func TestDeadFields(t *testing.T) {
	for _, p := range deadPaths {
		if !deadSeen[p] {
			t.Errorf("%s is not there any more", p)
		}
	}
	for name := range classes {
		if !classSeen[name] {
			t.Errorf("%s has a class and is no field", name)
		}
	}
}
