package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stats sums up runs.
type stats struct {
	From, Next                         uint64 // seeds
	Runs, Ticks, Claims, Writes, Reads int
	Forks, Joins, Given                int // forced appends, of them by a removed member, acknowledged writes given up
	CPU                                time.Duration
	Ends                               map[string]int
	Cover                              *coverage

	golden []string
	cpu    time.Duration // of the process when CPU was last brought up to date
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
	s := &stats{Ends: map[string]int{}, Cover: &coverage{}, cpu: cpuTime()}
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
		ends = strings.TrimSpace(ends)
		prefix, any := strings.CutSuffix(ends, "*")
		same, err := path.Match(ends, end) // a star within: any reason
		if (same && err == nil || any && strings.HasPrefix(end, prefix)) && slices.ContainsFunc(sc.events, func(e event) bool { return e.verb == cause }) {
			return true
		}
	}
	return false
}

func (s *stats) one(t *testing.T, sc schedule) {
	r := run(sc, Off{}, s.Cover, nil)
	s.Runs++
	s.Ends[r.end]++
	s.Ticks += sc.steps + r.ticks
	s.Claims += int(r.generation)
	s.Writes += r.writes
	s.Reads += r.reads
	s.Forks += r.forks
	s.Joins += r.joins
	s.Given += r.given
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
		sc.seed, y.end, strings.Join(y.violations, "\n"), small)
}

func (s *stats) String() string {
	now := cpuTime()
	s.CPU, s.cpu = s.CPU+now-s.cpu, now
	cpu := s.CPU.Seconds()
	return fmt.Sprintf("%d schedules, %.0f a second of CPU, %.0f steps a second, claims %d, forced %d (%d by a removed member), writes %d (%d given up), reads %d, %d cells of phase and event, ends %v",
		s.Runs, float64(s.Runs)/cpu, float64(s.Ticks)/cpu, s.Claims, s.Forks, s.Joins, s.Writes, s.Given, s.Reads, s.Cover.count(), s.Ends)
}

// load goes on from what save kept.
func (s *stats) load(t *testing.T, path string) {
	b, err := os.ReadFile(path)
	if path == "" || errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		err = json.Unmarshal(b, s)
	}
	if err != nil {
		t.Fatalf("the totals in %s: %v", path, err)
	}
}

func (s *stats) save(t *testing.T, path string) {
	if path == "" {
		return
	}
	_ = s.String() // brings CPU up to date
	b, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		t.Fatalf("the totals in %s: %v", path, err)
	}
}
