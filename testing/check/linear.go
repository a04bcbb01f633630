package check

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"

	"twok/testing/history"
)

// values are a group's keys; "" is absent.
type values [3]string

// model is one group of keys, all absent at first.
func model(keys []string) porcupine.Model {
	at := func(key string) int { return slices.Index(keys, key) }
	return porcupine.Model{
		Init: func() any { return values{} },
		Step: func(state, in, _ any) (bool, any) {
			s, o := state.(values), in.(*history.Op)
			holds := o.If == nil || o.If.Absent && s[at(o.If.Key)] == "" || !o.If.Absent && s[at(o.If.Key)] == o.If.Value
			if o.Outcome == history.OK {
				if holds != o.Applied {
					return false, s
				}
				for _, kv := range o.Seen {
					if s[at(kv.Key)] != kv.Value {
						return false, s
					}
				}
			}
			if holds {
				for _, w := range o.Writes {
					s[at(w.Key)] = w.Value // "" of a delete
				}
			}
			return true, s
		},
	}
}

func linearizable(r *Result, h history.History, opt Options) {
	groups := map[string][]*history.Op{}
	for i := range h.Ops {
		if o := &h.Ops[i]; o.Group != "" && o.Linearizable() && o.Outcome != history.Failed {
			groups[o.Group] = append(groups[o.Group], o)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		ops := groups[name]
		keys, ok := keysOf(ops)
		if !ok {
			r.missing("group %s has more than three keys, or an empty value", name)
			continue
		}
		history, answered := possible(ops)
		r.Checked += answered
		switch porcupine.CheckOperationsTimeout(model(keys), history, opt.Timeout) {
		case porcupine.Illegal:
			r.bad("the %d operations on %s are not linearizable", len(history), strings.Join(keys, ", "))
		case porcupine.Unknown:
			r.missing("the %d operations on %s took longer than %s", len(history), strings.Join(keys, ", "), opt.Timeout)
		}
	}
}

func keysOf(ops []*history.Op) (keys []string, ok bool) {
	set := map[string]bool{}
	for _, o := range ops {
		for _, w := range o.Writes {
			set[w.Key] = true
			if !w.Delete && w.Value == "" {
				return nil, false
			}
		}
		for _, kv := range o.Seen {
			set[kv.Key] = true
			if kv.Present() != (kv.Value != "") {
				return nil, false
			}
		}
		if o.If != nil {
			set[o.If.Key] = true
		}
	}
	keys = slices.Sorted(maps.Keys(set))
	return keys, len(keys) <= len(values{})
}

// possible are the operations for porcupine. Every operation that was answered says what it saw, of all keys that
// it wrote, so one without an answer whose values nobody saw can be put at the end of any order, or left out: it decides
// nothing and is left out. One whose value was seen took effect before the first answer that showed it. A condition shows a value
// as well: its client has it from a serializable read.
func possible(ops []*history.Op) (out []porcupine.Operation, answered int) {
	shown := map[string]int64{}  // value → first answer that shows it
	absent := map[string]int64{} // key → last answer that shows that it is absent
	for _, o := range ops {
		if o.Outcome != history.OK {
			continue
		}
		for _, kv := range o.Seen {
			if !kv.Present() {
				absent[kv.Key] = max(absent[kv.Key], o.Return)
			} else if at, ok := shown[kv.Value]; !ok || o.Return < at {
				shown[kv.Value] = o.Return
			}
		}
	}
	for _, o := range ops {
		if c := o.If; c == nil {
			continue
		} else if c.Absent {
			absent[c.Key] = math.MaxInt64
		} else if _, ok := shown[c.Value]; !ok {
			shown[c.Value] = math.MaxInt64
		}
	}
	for _, o := range ops {
		p := porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Return: o.Return}
		if o.Outcome == history.OK {
			answered++
			out = append(out, p)
			continue
		}
		p.Return = math.MaxInt64
		matters := false
		for _, w := range o.Writes {
			if w.Delete {
				matters = matters || absent[w.Key] > o.Call
			} else if at, ok := shown[w.Value]; ok {
				matters, p.Return = true, min(p.Return, at)
			}
		}
		if matters {
			p.Return = max(p.Return, p.Call) // shown before it was called: not linearizable, and porcupine shall say so
			out = append(out, p)
		}
	}
	return out, answered
}
