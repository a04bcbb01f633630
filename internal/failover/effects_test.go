package failover

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

// The table of TestTable in full: the same events, on states with a past, with every field that a step changes and
// every field of its actions. What a step should leave alone or forget shows here.
//
// Rules: P1, P2, P7, P10, P12, P13, P14, P16.
func TestEffects(t *testing.T) {
	var b strings.Builder
	for _, p := range Phases() {
		fmt.Fprintf(&b, "%s\n", p)
		for _, r := range rows() {
			s, ok := with(p, r.kind)
			if !ok {
				continue
			}
			wear(&s, r.e.Kind == Tick)
			if r.prep != nil {
				r.prep(&s)
			}
			e := r.e
			e.Stamp, e.RecordID, e.Random = Stamp{Nonce: "new", Now: 9}, "new-id", 3
			if e.Kind != Tick {
				e.Kind = r.kind.Reply()
			}
			next, acts := Step(s, e)
			s = known(s, e, next)
			fmt.Fprintf(&b, "  %s: %s\n", r.name, effect(s, next, acts))
		}
	}
	golden(t, "testdata/effects.golden", b.String())
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	w := strings.Split(string(want), "\n")
	for i, l := range strings.Split(got, "\n") {
		if i >= len(w) || l != w[i] {
			t.Fatalf("%s:%d\n got %s\nwant %s\n(-update writes it)", path, i+1, l, strings.Join(w[min(i, len(w)):min(i+1, len(w))], ""))
		}
	}
	if got != string(want) {
		t.Fatalf("%s has become shorter (-update writes it)", path)
	}
}

// wear gives a state a past: no field that a step may reset has its zero value. On a tick the counters
// stand where it does not move them.
func wear(s *State, tick bool) {
	s.PeerGone, s.Woken, s.WasLeader = true, true, true
	s.StopLevel, s.Refused, s.StopStart = 3, TokenTail, 1
	s.Retries, s.Equal, s.Asked, s.HoldLevel, s.Purpose = 1, true, true, 2, ForMark
	s.Intent, s.TokStale, s.TokenAt, s.SwapWhy, s.Tidied = true, true, 7, RecordForbidden, 1
	s.NoLeader, s.PeerLost, s.PeerBack, s.LossAge = 14, 10, 15, 200
	s.RecAge, s.ListAge, s.NoteAge, s.TokenAge = 20, 3, 30, 120
	if !tick {
		s.NoLeader, s.PeerLost, s.PeerBack, s.LossAge = 5, 4, 3, 50
		s.RecAge, s.ListAge, s.NoteAge, s.TokenAge = 1, 1, 1, 1
		s.PreWait, s.StopWait, s.JoinWait, s.TokenWait, s.SwapWait = 1, 2, 3, 4, 5
		s.Hold = 6
		if s.Phase == CatchingUp {
			s.Hold, s.Asked = 0, false
		}
	}
}

// known is s with what the step has taken in as it was read, which goes without saying.
func known(s State, e Event, next State) State {
	switch {
	case e.Kind == Tick && next.Obs == e.Obs:
		s.Obs = e.Obs
	case e.Kind == RecordRead && next.Rec == e.Record:
		s.Rec = e.Record
	case e.Kind == DataRead && next.Data == e.Data:
		s.Data = e.Data
	case e.Kind == Listed && next.List == e.List:
		s.List = e.List
	}
	return s
}

// effect is what changed, and what is to be done.
func effect(s, next State, acts []Action) string {
	var out []string
	differences("", reflect.ValueOf(s), reflect.ValueOf(next), &out)
	for _, a := range acts {
		var fields []string
		differences("", reflect.ValueOf(Action{Kind: a.Kind}), reflect.ValueOf(a), &fields)
		out = append(out, fmt.Sprintf("-> %s(%s)", a.Kind, strings.Join(fields, " ")))
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, " ")
}

// differences lists what b has that a has not, by field.
func differences(name string, a, b reflect.Value, out *[]string) {
	if a.Interface() == b.Interface() {
		return
	}
	if _, named := b.Interface().(fmt.Stringer); !named && b.Kind() == reflect.Struct {
		if b.IsZero() {
			*out = append(*out, name+"={}")
			return
		}
		for i := range b.NumField() {
			f := b.Type().Field(i).Name
			if name != "" {
				f = name + "." + f
			}
			if b.Type().Field(i).IsExported() {
				differences(f, a.Field(i), b.Field(i), out)
			} else if !a.Field(i).Equal(b.Field(i)) {
				*out = append(*out, fmt.Sprintf("%s=%v", f, b.Field(i)))
			}
		}
		return
	}
	if b.Kind() == reflect.Array { // without the zeros at its end
		n := b.Len()
		for n > 0 && b.Index(n-1).IsZero() {
			n--
		}
		var items []any
		for i := range n {
			items = append(items, b.Index(i).Interface())
		}
		*out = append(*out, fmt.Sprintf("%s=%v", name, items))
		return
	}
	*out = append(*out, fmt.Sprintf("%s=%v", name, b.Interface()))
}
