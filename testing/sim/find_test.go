package sim

import (
	"flag"
	"testing"
)

var flagSchedule = flag.String("sim.schedule", "", "run this schedule and print it")
var flagOff = flag.String("sim.off", "", "rule to take away")

var offs = map[string]Off{
	"": {}, "A0": {A0: true}, "applied": {TokenApplied: true}, "anyone": {TokenAnyone: true}, "redial": {TokenRedial: true}, "port": {Port: true}, "redialPort": {TokenRedial: true, Port: true}, "pair": {Pair: true}, "term": {NextTerm: true}, "past": {Past: true},
}

func TestOne(t *testing.T) {
	if *flagSchedule == "" {
		t.Skip()
	}
	s, err := parse(*flagSchedule)
	if err != nil {
		t.Fatal(err)
	}
	debugTicks = *flagRuns == 1
	r := run(s, offs[*flagOff], nil, t.Logf)
	t.Logf("%+v", r)
}
