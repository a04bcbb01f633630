package probe

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

var (
	// ErrBusy: the scratch register changed under the probe, by another one. Nothing is known.
	ErrBusy = errors.New("somebody else writes the scratch register")
	// ErrInconclusive: too many rounds had no winner, or too many outcomes stayed unknown.
	ErrInconclusive = errors.New("the store could not be tried")
)

// Fault names what a store did.
type Fault string

// The faults, each with the sentence that says what to do.
const (
	IgnoresAbsence Fault = "ignores-absence" // a create overwrote a value
	IgnoresVersion Fault = "ignores-version" // a swap from an old version was taken
	TwoWinners     Fault = "two-winners"     // of many swaps from one version more than one was applied
	DeniesWin      Fault = "denies-win"      // "changed" was the answer to a swap that was applied
	LosesWin       Fault = "loses-win"       // an acknowledged swap is gone
	OtherBytes     Fault = "other-bytes"     // what is stored is not what was sent
	TornRead       Fault = "torn-read"       // a value that is neither the old nor a new one
	StaleRead      Fault = "stale-read"      // a client is shown less than another one was acknowledged
	Vanishes       Fault = "vanishes"        // the value was there and a read says that there is none
)

var remedies = map[Fault]string{
	IgnoresAbsence: "the store, or a proxy before it, ignores If-None-Match or its like: use a version or a store that honours conditional writes",
	IgnoresVersion: "the store, or a proxy before it, ignores If-Match or its like: use a version or a store that honours conditional writes",
	TwoWinners:     "the store checks the condition and writes in two steps: use one with an atomic compare-and-swap",
	DeniesWin:      "something between here and the store repeats requests: turn off retries in proxies and gateways, or use another store",
	LosesWin:       "the store drops acknowledged writes, or answers before they are in force: use one that does not",
	OtherBytes:     "something on the way rewrites the body (compression, chunk signatures, a transforming proxy): turn that off, or use another store",
	TornRead:       "the store shows values that are being written: use one that replaces them atomically",
	StaleRead:      "reads come from a cache or a replica: point the URL at the store itself, or use one with strongly consistent reads",
	Vanishes:       "the store shows no value while one is replaced, or has replicas that lag: use one that replaces atomically and reads consistently",
}

// Problem is what a store did that it must not do.
type Problem struct {
	Fault  Fault  `json:"fault"`
	What   string `json:"what"`   // a sentence: what it did
	Remedy string `json:"remedy"` // what to do
}

func (p *Problem) String() string { return fmt.Sprintf("%s (%s)", p.What, p.Fault) }

// Latency sums up the calls of one kind.
type Latency struct {
	Calls int           `json:"calls"`
	P50   time.Duration `json:"p50_ns"`
	P99   time.Duration `json:"p99_ns"`
	Max   time.Duration `json:"max_ns"`
}

// Report is what a probe found.
type Report struct {
	Problem  *Problem      `json:"problem"` // nil: nothing speaks against the store
	Warnings []string      `json:"warnings"`
	Rounds   int           `json:"rounds"`   // races with one winner
	Repeated int           `json:"repeated"` // races without one
	Storm    int           `json:"storm"`    // swaps applied in the storm, whose latency is not measured
	Clients  int           `json:"clients"`
	Read     Latency       `json:"read"`
	Swap     Latency       `json:"swap"`
	Took     time.Duration `json:"took_ns"`
}

// samples collects how long calls took.
type samples struct {
	mu sync.Mutex
	d  []time.Duration
}

func (s *samples) add(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.d = append(s.d, d)
}

func (s *samples) latency() (l Latency) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.d) == 0 {
		return l
	}
	slices.Sort(s.d)
	at := func(percent int) time.Duration { return s.d[(len(s.d)-1)*percent/100] }
	return Latency{Calls: len(s.d), P50: at(50), P99: at(99), Max: s.d[len(s.d)-1]}
}
