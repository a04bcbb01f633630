package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"twok/internal/lab"
)

// settleTime is how long an event waits for an earlier one from another source,
// so that the timeline is printed in the order of time.
const settleTime = 300 * time.Millisecond

// agentView is what the agent of one site said of itself.
type agentView struct {
	lab.Health
	err error
}

func (v agentView) String() string {
	if v.err != nil {
		return "no agent"
	}
	return v.Health.String()
}

// narrator prints the timeline: as text to out, as JSON lines to events.
type narrator struct {
	out    io.Writer
	events io.Writer // may be nil

	mu       sync.Mutex
	start    time.Time
	since    string    // "cut" or "heal": what the second clock counts from
	mark0    time.Time // when that was
	n, of    int       // round
	pending  []told
	lacks    string // what the pair lacks to be whole
	acked    func() int64
	last     int64 // acknowledged at the last status line
	lastAt   time.Time
	lastLine string // the last status line, without its number
	same     int
	waits    map[string]string // what each agent was last said to wait for
	stop     chan struct{}
	stopped  chan struct{}
}

// told is an event with the clocks it is printed with, or a status line.
type told struct {
	lab.Event
	since  string
	mark   time.Time
	round  int
	status *statusLine
}

type statusLine struct {
	rate   float64
	lacks  string
	agents map[string]agentView
}

func newNarrator(out, events io.Writer) *narrator {
	return &narrator{out: out, events: events, waits: map[string]string{}, stop: make(chan struct{}), stopped: make(chan struct{})}
}

// begin starts the clock with the first event.
func (t *narrator) begin(e lab.Event) {
	t.start = time.Now()
	e.At = t.start
	t.event(e)
	go func() {
		defer close(t.stopped)
		tick := time.NewTicker(settleTime / 3)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				t.flush(time.Now().Add(-settleTime))
			case <-t.stop:
				t.flush(time.Time{})
				return
			}
		}
	}()
}

// end prints what is left.
func (t *narrator) end() {
	close(t.stop)
	<-t.stopped
}

func (t *narrator) round(n, of int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n, t.of = n, of
}

func (t *narrator) counter(acked func() int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.acked, t.lastAt = acked, time.Now()
}

// missing is what the pair lacks to be whole, for the status line.
func (t *narrator) missing(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lacks = what
}

// mark is an event from which the second clock counts (cut, heal) or with which it ends.
func (t *narrator) mark(e lab.Event) {
	t.event(e)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.Kind {
	case lab.EventCut, lab.EventHeal:
		t.since, t.mark0 = string(e.Kind), e.At
	default:
		t.since = ""
	}
}

// event adds events to the timeline.
func (t *narrator) event(events ...lab.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range events {
		since, mark := t.since, t.mark0
		if e.Kind == lab.EventCut || e.Kind == lab.EventHeal || e.At.Before(mark) {
			since = ""
		}
		t.pending = append(t.pending, told{Event: e, since: since, mark: mark, round: t.n})
	}
}

// flush prints, in order, what happened before then; all of it for the zero time.
func (t *narrator) flush(then time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortStableFunc(t.pending, func(a, b told) int { return a.At.Compare(b.At) })
	n := 0
	for ; n < len(t.pending) && (then.IsZero() || t.pending[n].At.Before(then)); n++ {
		if t.pending[n].status != nil {
			t.printStatus(t.pending[n])
		} else {
			t.print(t.pending[n])
		}
	}
	t.pending = append([]told(nil), t.pending[n:]...)
}

// print writes one event: elapsed seconds, seconds since the cut or heal, site, step, words.
func (t *narrator) print(e told) {
	elapsed := max(0, e.At.Sub(t.start).Seconds())
	second := ""
	if e.since != "" {
		second = fmt.Sprintf("%s+%.2f", e.since, e.At.Sub(e.mark).Seconds())
	}
	site := e.Site
	if site == "" || e.Kind == lab.EventCut {
		site = " "
	}
	fmt.Fprintf(t.out, "%8.2f s %10s  %s  %-11s  %s\n", elapsed, second, site, e.Kind, e.Text)
	if t.events == nil {
		return
	}
	m := map[string]any{"t": round3(elapsed), "event": e.Kind, "text": e.Text}
	if e.Site != "" {
		m["site"] = e.Site
	}
	if e.Generation != 0 {
		m["generation"] = e.Generation
	}
	if e.round != 0 {
		m["round"] = e.round
	}
	if e.since != "" {
		m["since_"+e.since+"_s"] = round3(e.At.Sub(e.mark).Seconds())
	}
	t.line(m)
}

func (t *narrator) line(m map[string]any) {
	data, err := json.Marshal(m)
	if err != nil {
		data = fmt.Appendf(nil, `{"event":"failed","text":%q}`, err.Error())
	}
	fmt.Fprintf(t.events, "%s\n", data)
}

func round3(f float64) float64 { return float64(int64(f*1000+0.5)) / 1000 }

// status adds a line with the writes per second and each agent's role; what an
// agent waits for follows on a line of its own when it changed.
func (t *narrator) status(agents map[string]agentView) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	l := &statusLine{lacks: t.lacks, agents: agents}
	if t.acked != nil {
		n := t.acked()
		l.rate = float64(n-t.last) / now.Sub(t.lastAt).Seconds()
		t.last, t.lastAt = n, now
	}
	t.pending = append(t.pending, told{Event: lab.Event{At: now}, status: l})
}

func (t *narrator) printStatus(e told) {
	elapsed, l := e.At.Sub(t.start).Seconds(), e.status
	var words []string
	for _, name := range lab.Sites {
		words = append(words, fmt.Sprintf("%s: %s", name, l.agents[name]))
	}
	// A line that says what the last one said is left out, but for one in five.
	line := fmt.Sprintf("%t %s", l.rate > 0, strings.Join(words, " | "))
	if t.same++; line != t.lastLine || t.same >= 5 {
		t.same, t.lastLine = 0, line
		fmt.Fprintf(t.out, "%8.2f s %10s  |  %5.0f writes/s | %s\n", elapsed, "", l.rate, strings.Join(words, " | "))
	}
	for _, name := range lab.Sites {
		v := l.agents[name]
		if v.err == nil && v.WaitingFor != t.waits[name] {
			t.waits[name] = v.WaitingFor
			fmt.Fprintf(t.out, "%22s  %s  waits for: %s\n", "", name, v.WaitingFor)
		}
	}
	if t.events == nil {
		return
	}
	views := map[string]any{}
	for name, v := range l.agents {
		if v.err != nil {
			views[name] = map[string]string{"error": v.err.Error()}
		} else {
			views[name] = v.Health
		}
	}
	m := map[string]any{"t": round3(elapsed), "event": "status", "writes_per_s": round3(l.rate), "agents": views}
	if l.lacks != "" {
		m["lacks"] = l.lacks
	}
	t.line(m)
}
