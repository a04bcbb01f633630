package main

import (
	"fmt"
	"time"

	"twok/arbiter"
	"twok/internal/failover"
)

// quietFor is how long the record of a pair with its agents running is not written, at most: the leader's
// agent marks it about once a minute, a lone survivor confirms as often (P10, P15).
const quietFor = 3 * time.Minute

// words says what a record means, for people: who survives, since when, whether the pair is
// whole, and what would happen if the link were cut now. Ages are by the writers' clocks.
func words(r arbiter.Record, now time.Time) (ws []string) {
	say := func(format string, args ...any) { ws = append(ws, fmt.Sprintf(format, args...)) }
	name := fmt.Sprintf("the member %s", arbiter.FormatID(r.Survivor.ID))
	if r.Survivor.Name != "" {
		name = fmt.Sprintf("%s (%s)", printable(r.Survivor.Name), arbiter.FormatID(r.Survivor.ID))
	}
	whole := r.WholeGeneration == r.Generation
	lone := r.Survivor.ID != 0 && !whole
	ordered := failover.Ordered(r, r.Survivor.ID)
	switch {
	case ordered:
		say("An operator ordered %s to go on alone (%s), %s. Its agent has not carried this out yet: does it run?", name, printable(r.Reason), since(r.ClaimedAt, now))
	case lone && r.Drain:
		say("%s goes on alone, it claimed %s: the other member is drained.", name, since(r.ClaimedAt, now))
	case lone && r.Confirmed.Index != 0:
		say("%s goes on alone: it claimed %s, and last confirmed %s that it leads.", name, since(r.ClaimedAt, now), since(r.ConfirmedAt, now))
	case lone:
		say("%s claimed %s to go on alone, and has not confirmed yet that it leads.", name, since(r.ClaimedAt, now))
	case whole && r.Survivor.ID != 0:
		say("The pair is whole, as noted %s. Its last survivor was %s.", since(r.WholeAt, now), name)
	case whole:
		say("The pair is whole, as noted %s. No member had to go on alone since this record was made.", since(r.WholeAt, now))
	default:
		say("The record is new: the pair has not been whole with it yet.")
	}
	switch {
	case r.Pause:
		say("If the link were cut now, nothing would write: the pair is paused.")
	case whole:
		say("If the link were cut now, one of the two would go on alone, as generation %d: the leader of then, if it lives.", r.Generation+1)
	case ordered:
		say("Until then nothing writes, but for a survivor that was overridden and does not know yet.")
	case lone:
		say("If the link were cut now, only this member could go on; the other one returns when it reaches it.")
	default:
		say("If the link were cut now, nothing would write: neither member has the pair token yet.")
	}
	switch {
	case ordered || !r.Forced:
	case r.Fork.Index == 0:
		say("An operator had forced a claim (%s). Nobody carried it out before the pair was whole: it is void.", printable(r.Reason))
	default:
		say("The last claim was forced by an operator: writes of the other side may have been given up.")
	}
	if age := now.Sub(time.UnixMilli(r.WrittenAt)); r.WrittenAt != 0 && age > quietFor {
		say("Nothing was written to the record for %s: does the agent of the member that leads run, and reach the arbiter?", age.Round(time.Second))
	}
	return ws
}

// since is an age for a sentence.
func since(ms int64, now time.Time) string {
	if ms == 0 {
		return "at an unknown time"
	}
	switch age := now.Sub(time.UnixMilli(ms)); {
	case age >= 48*time.Hour:
		return fmt.Sprintf("%d days ago", age/(24*time.Hour))
	case age >= 0:
		return fmt.Sprintf("%v ago", age.Round(time.Second))
	}
	return "at " + time.UnixMilli(ms).UTC().Format("2006-01-02 15:04:05Z") + ", by a clock ahead of this one"
}
