package sim

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	flagSeed     = flag.Uint64("sim.seed", 0, "run this one seed and print it")
	flagFrom     = flag.Uint64("sim.from", 1_000_000, "TestLong begins at this seed")
	flagRuns     = flag.Int("sim.runs", 500, "random schedules of TestRandom")
	flagSteps    = flag.Int("sim.steps", 200, "steps of a random schedule")
	flagForced   = flag.Int("sim.forced", 0, "with -sim.seed or -sim.hunt: schedules of TestForced; schedules of TestForced otherwise, zero: 400")
	flagThird    = flag.Bool("sim.third", false, "with forced claims: a third member, too")
	flagState    = flag.String("sim.state", "", "TestLong goes on from this file and keeps its totals there")
	flagFor      = flag.Duration("sim.for", 0, "TestLong runs random schedules for so long")
	flagSchedule = flag.String("sim.schedule", "", "run this schedule and print it")
	flagOff      = flag.String("sim.off", "", "with -sim.schedule or -sim.hunt: the rules that are taken away, by their names in TestRules")
	flagHunt     = flag.Int("sim.hunt", 0, "look in so many schedules for what shows that a rule was taken away")
	flagFocus    = flag.Int("sim.focus", -1, "with -sim.hunt: events of this focus in front")
	flagStart    = flag.String("sim.start", "", "with -sim.hunt: this start")
)

// A run keeps little: collecting less often is most of the speed.
func TestMain(m *testing.M) {
	flag.Parse()
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}

// Random schedules: the real core on the real raft, all checks of doc.go, and each run ends whole or in a
// state of testdata/refusals.golden.
//
// Rules: P1, P2, P4, P5, P6, P7, P8, P9, P10, P12, P13, P14, P15, P16, P17, A0; F1, F2, F5, F6, F7, F8, F9, F19, F22, F23, F24, F29, F32, F33, F34, F37.
func TestRandom(t *testing.T) {
	if *flagSeed != 0 {
		sc := draw(*flagSeed, *flagSteps)
		if *flagForced > 0 {
			sc = drawForced(*flagSeed, *flagSteps, *flagThird)
		}
		t.Logf("%s\n%+v", sc, run(sc, Off{}, nil, t.Logf))
		return
	}
	s := newStats(t)
	for seed := uint64(1); seed <= uint64(*flagRuns); seed++ {
		s.one(t, draw(seed, *flagSteps))
	}
	t.Log(s)
	if s.Cover.count() < 60 || s.Ends["whole"] < *flagRuns*97/100 {
		t.Errorf("the schedules reach too little: %s", s)
	}
}

// Forced claims at any time, for either member, with removals by hand (P18), in random schedules: in each history
// all checks of doc.go hold, and one of them is left in the end. What is given up is what an order gave up.
//
// Rules: P7, P8, P13, P16, P18.
func TestForced(t *testing.T) {
	n := *flagForced
	if n == 0 {
		n = 400
	}
	s := newStats(t)
	for seed := uint64(1); seed <= uint64(n); seed++ {
		s.one(t, drawForced(seed, *flagSteps, *flagThird))
	}
	t.Log(s)
	if s.Forks < n/2 || s.Joins < n/100 || s.Given < n/10 || s.Ends["whole"] < n*8/10 {
		t.Errorf("the schedules reach too little: %s", s)
	}
}

// A schedule decides everything: the same one again tells the same story, and its text is the schedule.
//
// Rules: none (the simulation).
func TestDeterministic(t *testing.T) {
	for seed := uint64(1); seed <= 25; seed++ {
		var out [2]strings.Builder
		s := draw(seed, *flagSteps)
		if seed%4 == 0 {
			s = drawForced(seed, *flagSteps, false)
		}
		for i := range out {
			r := run(s, Off{}, nil, func(f string, a ...any) { fmt.Fprintf(&out[i], f+"\n", a...) })
			fmt.Fprintf(&out[i], "%+v", r)
			again, err := parse(s.String())
			if err != nil {
				t.Fatal(err)
			}
			s = again
		}
		if out[0].String() != out[1].String() {
			t.Errorf("seed %d: two runs differ", seed)
		}
	}
}

// Every start is reached, and from it the pair becomes whole without anybody's help.
//
// Rules: P12, P14; F5, F8.
func TestStarts(t *testing.T) {
	for st := range starts {
		for seed := uint64(1); seed <= 8; seed++ {
			if r := run(schedule{seed: seed, start: st}, Off{}, nil, nil); r.end != "whole" || len(r.violations) > 0 {
				t.Errorf("%s, seed %d: %s %v", st, seed, r.end, r.violations)
			}
		}
	}
}

// The same for as long as it is told, from a seed on; it prints the seed to go on from.
//
// Rules: none (TestRandom, longer).
func TestLong(t *testing.T) {
	if *flagFor == 0 {
		t.Skip("give -sim.for")
	}
	s := newStats(t)
	s.From, s.Next = *flagFrom, *flagFrom
	s.load(t, *flagState)
	end, next := time.Now().Add(*flagFor), time.Now().Add(time.Minute)
	for ; time.Now().Before(end) && !t.Failed(); s.Next++ {
		if s.Next%4 == 3 {
			s.one(t, drawForced(s.Next, *flagSteps, *flagThird))
		} else {
			s.one(t, draw(s.Next, *flagSteps))
		}
		if time.Now().After(next) {
			fmt.Printf("simulation: next seed %d: %s\n", s.Next+1, s)
			s.save(t, *flagState)
			next = time.Now().Add(time.Minute)
		}
	}
	s.save(t, *flagState)
	fmt.Printf("simulation: seeds %d to %d: %s\n%s", s.From, s.Next-1, s, s.Cover)
}

// TestReplay runs one schedule as a failure has printed it.
//
// Rules: none (a tool).
func TestReplay(t *testing.T) {
	if *flagSchedule == "" {
		t.Skip("give -sim.schedule")
	}
	s, err := parse(*flagSchedule)
	if err != nil {
		t.Fatal(err)
	}
	off, err := offOf(*flagOff)
	if err != nil {
		t.Fatal(err)
	}
	r := run(s, off, nil, t.Logf)
	t.Logf("%+v", r)
	if len(r.violations) > 0 {
		t.Fail()
	}
}

// TestHunt looks for short schedules that show a rule's absence: a tool to renew TestRules.
//
// Rules: none (a tool).
func TestHunt(t *testing.T) {
	if *flagHunt == 0 {
		t.Skip("give -sim.hunt and -sim.off")
	}
	off, err := offOf(*flagOff)
	if err != nil {
		t.Fatal(err)
	}
	bad := func(s schedule) bool { return len(run(s, off, nil, nil).violations) > 0 }
	found := 0
	for seed := uint64(1); seed <= uint64(*flagHunt) && found < 4; seed++ {
		s := drawFocus(seed, *flagSteps, *flagFocus)
		if *flagForced > 0 {
			s = drawForced(seed, *flagSteps, *flagThird)
		}
		if i := slices.Index(startNames[:], *flagStart); i >= 0 {
			s.start = start(i)
		}
		if bad(s) {
			found++
			s = shrink(s, bad)
			t.Logf("seed %d: %q\n%s", seed, s, run(s, off, nil, nil).violations[0])
		}
	}
}
