package sim

import (
	"flag"
	"os"
	"runtime/debug"
	"testing"
	"time"
)

var (
	flagSeed = flag.Uint64("sim.seed", 0, "run this one seed and print it")
	flagEnd  = flag.String("sim.end", "", "shrink what ends so")
	flagRuns = flag.Int("sim.runs", 300, "random schedules")
)

// A run keeps little: collecting less often is most of the speed.
func TestMain(m *testing.M) {
	flag.Parse()
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}

func TestRandom(t *testing.T) {
	if *flagSeed != 0 {
		r := run(draw(*flagSeed, 200), Off{}, nil, t.Logf)
		t.Logf("%+v", r)
		return
	}
	ends := map[string]int{}
	cov := &coverage{}
	begin := time.Now()
	gens, writes, ticks := 0, 0, 0
	for seed := uint64(1); seed <= uint64(*flagRuns); seed++ {
		r := run(draw(seed, 200), Off{}, cov, nil)
		ends[r.end]++
		gens += int(r.generation)
		writes += r.writes
		ticks += r.ticks + 200
		for _, v := range r.violations {
			t.Errorf("seed %d: %s", seed, v)
		}
		if r.end != "whole" && r.end != "violated" {
			t.Logf("seed %d: %s %s", seed, r.end, draw(seed, 200))
		}
	}
	d := time.Since(begin)
	t.Logf("%d schedules, %.0f/s, %.0f ticks/s, generations %d, writes %d, %d cells, ends %v", *flagRuns, float64(*flagRuns)/d.Seconds(), float64(ticks)/d.Seconds(), gens, writes, cov.count(), ends)
}
