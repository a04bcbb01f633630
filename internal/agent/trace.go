package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"sync"
	"time"

	"twok/arbiter"
	"twok/internal/failover"
)

// Line is one line of the trace: the agent's start, some ticks, or a reply. The lines of one
// agent hold every event that its core was given and every action that it asked for, so that
// failover.Step gives them again; testing/trace does that. Ticks that changed nothing are
// counted, not written.
type Line struct {
	T          int64    `json:"t"`  // Unix milliseconds
	At         int64    `json:"at"` // the same in nanoseconds: traces from one machine are merged by it
	From       string   `json:"from"`
	Event      string   `json:"event"` // of failover.EventKind, or "start"
	Outcome    string   `json:"outcome,omitempty"`
	To         string   `json:"to"`
	Actions    []string `json:"actions"`
	Reason     string   `json:"reason"`
	Generation uint64   `json:"generation"`
	Index      uint64   `json:"index"`
	Term       uint64   `json:"term"`
	Member     string   `json:"member"`
	Leader     string   `json:"leader,omitempty"`
	Fork       *forkOf  `json:"fork,omitempty"`
	Keep       *bool    `json:"keep_log,omitempty"`

	Start *Start `json:"start,omitempty"`
	// Ticks is how many ticks this line stands for. All saw the same, but for the commit
	// index, which is the last one's, and for the other member's answers: Quiet is
	// how many have passed since the last one that had one, Ticks if none had.
	Ticks   uint32  `json:"ticks,omitempty"`
	Quiet   uint32  `json:"quiet,omitempty"`
	In      *Given  `json:"in,omitempty"`
	Out     []Asked `json:"out,omitempty"`
	Dropped bool    `json:"dropped,omitempty"` // the agent is stopping: Out is not carried out, and what was begun may end unseen
}

// Start is what an agent starts with.
type Start struct {
	Params failover.Params   `json:"params"`
	Own    failover.Own      `json:"own"`
	Seen   map[string]uint64 `json:"seen"`              // generations, by record
	ByHand bool              `json:"by_hand,omitempty"` // a claim by hand: it begins with Stop
}

// Given is an event of the core. Fields that are zero are left out.
type Given struct {
	failover.Event
}

// Asked is an action of the core. Fields that are zero are left out.
type Asked struct {
	failover.Action
}

// MarshalJSON implements json.Marshaler.
func (g Given) MarshalJSON() ([]byte, error) { return marshalShort(g.Event, "VersionTag", g.Version) }

// UnmarshalJSON implements json.Unmarshaler.
func (g *Given) UnmarshalJSON(b []byte) error {
	v, err := unmarshalShort(b, &g.Event)
	g.Version = v
	return err
}

// MarshalJSON implements json.Marshaler.
func (a Asked) MarshalJSON() ([]byte, error) { return marshalShort(a.Action, "VersionTag", a.Prev) }

// UnmarshalJSON implements json.Unmarshaler.
func (a *Asked) UnmarshalJSON(b []byte) error {
	v, err := unmarshalShort(b, &a.Action)
	a.Prev = v
	return err
}

func marshalShort(v any, tag string, version arbiter.Version) ([]byte, error) {
	m, _ := short(reflect.ValueOf(v)).(map[string]any)
	if m == nil {
		m = map[string]any{}
	}
	if version.Exists() {
		m[tag] = version.Tag()
	}
	return json.Marshal(m)
}

func unmarshalShort(b []byte, to any) (v arbiter.Version, err error) {
	var x struct{ VersionTag *string }
	if err := json.Unmarshal(b, &x); err != nil {
		return v, err
	}
	if x.VersionTag != nil {
		v = arbiter.At(*x.VersionTag)
	}
	return v, json.Unmarshal(b, to)
}

// short is v as JSON wants it, without what is zero; nil if all is.
func short(v reflect.Value) any {
	if v.IsZero() {
		return nil
	}
	if v.Type() == reflect.TypeFor[arbiter.Version]() {
		return nil // see marshalShort
	}
	switch v.Kind() {
	case reflect.Struct:
		m := map[string]any{}
		for i := range v.NumField() {
			if x := short(v.Field(i)); x != nil {
				m[v.Type().Field(i).Name] = x
			}
		}
		return m
	case reflect.Array:
		n := v.Len()
		for n > 0 && v.Index(n-1).IsZero() {
			n--
		}
		l := make([]any, n)
		for i := range n {
			if l[i] = short(v.Index(i)); l[i] == nil {
				l[i] = v.Index(i).Interface()
			}
		}
		return l
	}
	return v.Interface()
}

type forkOf struct {
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
}

var outcomes = map[failover.Outcome]string{failover.Unknown: "unknown", failover.Done: "done", failover.Conflict: "conflict", failover.Failed: "failed"}

func startLine(s failover.State, seen map[string]uint64, byHand bool) Line {
	now := time.Now()
	return Line{
		T: now.UnixMilli(), At: now.UnixNano(), From: s.Phase.String(), Event: "start", To: s.Phase.String(), Actions: []string{}, Reason: s.Why.String(),
		Start: &Start{Params: s.P, Own: s.Mine, Seen: seen, ByHand: byHand},
	}
}

func lineOf(s failover.State, e failover.Event, next failover.State, actions []failover.Action) Line {
	now := time.Now()
	l := Line{
		T: now.UnixMilli(), At: now.UnixNano(), From: s.Phase.String(), Event: e.Kind.String(), To: next.Phase.String(),
		Actions: []string{}, Reason: next.Why.String(), Generation: next.Rec.Generation,
		Index: next.Obs.Commit, Term: next.Obs.Term, Member: hex(next.Obs.Member), Leader: hex(next.Obs.Leader),
		In: &Given{e},
	}
	if e.Kind == failover.Tick {
		l.Ticks = max(e.Ticks, 1)
		if !e.Obs.Contact {
			l.Quiet = l.Ticks
		}
	} else {
		l.Outcome = outcomes[e.Outcome]
	}
	if next.Locked && next.Data.Last.Index != 0 {
		l.Index, l.Term = next.Data.Last.Index, next.Data.Term
	}
	for _, act := range actions {
		l.Actions = append(l.Actions, act.Kind.String())
		l.Out = append(l.Out, Asked{act})
		switch act.Kind {
		case failover.Append:
			l.Fork = &forkOf{next.Data.Last.Index + 1, act.Term}
		case failover.Rewrite:
			keep := act.Keep
			l.Keep = &keep
		}
	}
	return l
}

// tracer writes lines; its first error is kept and ends the tracing.
type tracer struct {
	mu     sync.Mutex
	w      io.Writer
	quiet  *Line // ticks that changed nothing
	failed error
}

func newTracer(w io.Writer) *tracer { return &tracer{w: w} }

// step writes a step, or counts it.
func (t *tracer) step(l Line) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.w == nil || t.failed != nil {
		return
	}
	quiet := l.Event == failover.Tick.String() && l.From == l.To && len(l.Out) == 0 && !l.Dropped
	if p := t.quiet; p != nil {
		if quiet && p.Reason == l.Reason && sameLook(p.In.Obs, l.In.Obs) {
			l.Ticks += p.Ticks
			if l.In.Obs.Contact { // the line says it with Quiet
				l.Quiet = 0
			} else {
				l.Quiet += p.Quiet
			}
			t.quiet = &l
			return
		}
		t.put(*p)
		t.quiet = nil
	}
	if quiet {
		t.quiet = &l
		return
	}
	t.put(l)
}

func sameLook(a, b failover.Obs) bool {
	a.Contact, b.Contact, a.Commit, b.Commit = false, false, 0, 0
	return a == b
}

// flush writes what was only counted so far.
func (t *tracer) flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.quiet != nil {
		t.put(*t.quiet)
		t.quiet = nil
	}
}

// put writes a line by one write: what a kill leaves behind is whole. t.mu is held.
func (t *tracer) put(l Line) {
	if t.w == nil || t.failed != nil {
		return
	}
	if l.In != nil && l.Event == failover.Tick.String() {
		l.In.Ticks, l.In.Obs.Contact = 0, false // in Ticks and Quiet
	}
	var b bytes.Buffer
	err := json.NewEncoder(&b).Encode(l)
	if err == nil {
		_, err = t.w.Write(b.Bytes())
	}
	if err != nil {
		t.failed = fmt.Errorf("the trace: %w", err)
	}
}

func (t *tracer) err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}
