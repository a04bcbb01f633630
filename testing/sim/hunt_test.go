package sim

import (
	"testing"
)

// TestHunt looks for the shortest schedules that show a rule's absence.
func TestHunt(t *testing.T) {
	if *flagOff == "" || *flagSchedule != "" {
		t.Skip()
	}
	off := offs[*flagOff]
	found := 0
	for seed := uint64(1); seed <= uint64(*flagRuns) && found < 4; seed++ {
		s := draw(seed, 200)
		bad := func(s schedule) bool { return len(run(s, off, nil, nil).violations) > 0 }
		if !bad(s) {
			continue
		}
		found++
		t.Logf("found after %d", seed)
		s = shrink(s, bad)
		t.Logf("%s\n  %s", s, run(s, off, nil, nil).violations[0])
	}
	t.Logf("%s: %d found", *flagOff, found)
}
