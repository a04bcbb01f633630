package sim

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

var (
	flagSeed     = flag.Uint64("sim.seed", 0, "run this one seed and print it")
	flagFrom     = flag.Uint64("sim.from", 1_000_000, "TestLong begins at this seed")
	flagRuns     = flag.Int("sim.runs", 500, "random schedules of TestRandom")
	flagSteps    = flag.Int("sim.steps", 200, "steps of a random schedule")
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
		r := run(draw(*flagSeed, *flagSteps), Off{}, nil, t.Logf)
		t.Logf("%+v", r)
		return
	}
	s := newStats(t)
	for seed := uint64(1); seed <= uint64(*flagRuns); seed++ {
		s.one(t, seed)
	}
	t.Log(s)
	if s.cov.count() < 60 || s.ends["whole"] < *flagRuns*97/100 {
		t.Errorf("the schedules reach too little: %s", s)
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
	end, next := time.Now().Add(*flagFor), time.Now().Add(time.Minute)
	seed := *flagFrom
	for ; time.Now().Before(end) && !t.Failed(); seed++ {
		s.one(t, seed)
		if time.Now().After(next) {
			fmt.Printf("next seed %d: %s\n", seed+1, s)
			next = time.Now().Add(time.Minute)
		}
	}
	fmt.Printf("seeds %d to %d: %s\n%s", *flagFrom, seed-1, s, s.cov)
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

// stats sums up runs.
type stats struct {
	runs, ticks, gens, writes, reads int
	ends                             map[string]int
	cov                              *coverage
	golden                           []string
	cpu                              time.Duration
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func newStats(t *testing.T) *stats {
	b, err := os.ReadFile("testdata/refusals.golden")
	if err != nil {
		t.Fatal(err)
	}
	s := &stats{ends: map[string]int{}, cov: &coverage{}, cpu: cpuTime()}
	for _, l := range strings.Split(string(b), "\n") {
		if l = strings.TrimSpace(l); l != "" && !strings.HasPrefix(l, "#") {
			s.golden = append(s.golden, l)
		}
	}
	return s
}

// known says whether an end is one that only an operator can lift, after what the schedule's user did.
func (s *stats) known(end string, sc schedule) bool {
	for _, l := range s.golden {
		cause, ends, _ := strings.Cut(l, " ")
		if strings.TrimSpace(ends) == end && slices.ContainsFunc(sc.events, func(e event) bool { return e.verb == cause }) {
			return true
		}
	}
	return false
}

func (s *stats) one(t *testing.T, seed uint64) {
	sc := draw(seed, *flagSteps)
	r := run(sc, Off{}, s.cov, nil)
	s.runs++
	s.ends[r.end]++
	s.ticks += sc.steps + r.ticks
	s.gens += int(r.generation)
	s.writes += r.writes
	s.reads += r.reads
	wrong := func(r result) bool {
		return len(r.violations) > 0 || (r.end != "whole" && !s.known(r.end, sc))
	}
	if !wrong(r) {
		return
	}
	small := shrink(sc, func(x schedule) bool {
		y := run(x, Off{}, nil, nil)
		return len(y.violations) > 0 == (len(r.violations) > 0) && wrong(y)
	})
	y := run(small, Off{}, nil, nil)
	t.Errorf("seed %d ends %s\n%s\nreplay: go test ./testing/sim -run TestReplay -v -sim.schedule '%s'",
		seed, y.end, strings.Join(y.violations, "\n"), small)
}

func (s *stats) String() string {
	cpu := (cpuTime() - s.cpu).Seconds()
	return fmt.Sprintf("%d schedules, %.0f a second of CPU, %.0f steps a second, claims %d, writes %d, reads %d, %d cells of phase and event, ends %v",
		s.runs, float64(s.runs)/cpu, float64(s.ticks)/cpu, s.gens, s.writes, s.reads, s.cov.count(), s.ends)
}
