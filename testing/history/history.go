package history

import (
	"crypto/sha256"
	"fmt"
	"sync"
	"time"
)

// Outcome of an operation.
type Outcome string

// The outcomes.
const (
	OK      Outcome = "ok"
	Failed  Outcome = "failed"  // etcd refused it and did nothing
	Unknown Outcome = "unknown" // it may have happened, now or later, or never
)

// Kind of an operation. The checks follow from what it reads and writes; the kind is for people.
type Kind string

// The kinds.
const (
	Unique   Kind = "unique"   // a key that is written once
	Put      Kind = "put"      // a register is set; the old value is returned
	CAS      Kind = "cas"      // a register is set if it has the expected value
	Delete   Kind = "delete"   // a register is deleted; the old value is returned
	Txn      Kind = "txn"      // several keys of a group are written, all of them read
	Get      Kind = "get"      // a linearizable read of a group
	StaleGet Kind = "staleget" // a serializable read of a group, at the local member
	Grant    Kind = "grant"    // a lease
	LeasePut Kind = "leaseput" // a key that is written once, under a lease
	Revoke   Kind = "revoke"   // the lease, and with it its key
)

// KV is a key with its value. Absent keys have no value and revision 0.
type KV struct {
	Key     string `json:"k"`
	Value   string `json:"v,omitempty"`
	Mod     int64  `json:"m,omitempty"` // revision of its last change
	Create  int64  `json:"c,omitempty"`
	Version int64  `json:"n,omitempty"`
}

// brief is the longest value that is kept as it is.
const brief = 8 << 10

// Value is how a history keeps a value: as it is, or, above 8 kB, by its length and hash. What the workload
// writes is shorter.
func Value(b []byte) string {
	if len(b) <= brief {
		return string(b)
	}
	return fmt.Sprintf("%d bytes, sha256 %x", len(b), sha256.Sum256(b))
}

// Present says whether the key was there.
func (kv KV) Present() bool { return kv.Mod != 0 }

// Write is a put, or a delete.
type Write struct {
	Key    string `json:"k"`
	Value  string `json:"v,omitempty"`
	Delete bool   `json:"d,omitempty"`
}

// Cond is a condition on one key: that it has this value, or that it is absent.
type Cond struct {
	Key    string `json:"k"`
	Value  string `json:"v,omitempty"`
	Absent bool   `json:"a,omitempty"`
}

// Op is an operation.
type Op struct {
	ID     int    `json:"id"`
	Client int    `json:"client"`
	Site   string `json:"site"` // whose member it asked
	Kind   Kind   `json:"kind"`
	Group  string `json:"group,omitempty"` // empty: its keys are in no group

	If     *Cond   `json:"if,omitempty"` // nil: always
	Writes []Write `json:"w,omitempty"`  // if the condition holds
	Lease  int64   `json:"lease,omitempty"`

	Call    int64   `json:"call"` // nanoseconds since the beginning
	Return  int64   `json:"ret,omitempty"`
	Outcome Outcome `json:"out"`
	Error   string  `json:"err,omitempty"`

	Revision int64 `json:"rev,omitempty"` // of the reply's header: with Applied writes, theirs
	Applied  bool  `json:"app,omitempty"` // the condition held
	Seen     []KV  `json:"seen,omitempty"`
}

// Wrote says whether the operation is known to have changed something, at Revision.
func (o *Op) Wrote() bool {
	if o.Outcome != OK || !o.Applied || len(o.Writes) == 0 {
		return false
	}
	for _, w := range o.Writes {
		if !w.Delete {
			return true
		}
		for _, kv := range o.Seen {
			if kv.Key == w.Key && kv.Present() {
				return true
			}
		}
	}
	return false
}

// Linearizable says whether the reply has to be as of some moment between Call and Return.
func (o *Op) Linearizable() bool { return o.Kind != StaleGet && o.Kind != Grant }

// Event is what one watch received.
type Event struct {
	At     int64  `json:"at"`
	Rev    int64  `json:"rev"`
	Key    string `json:"k,omitempty"`
	Value  string `json:"v,omitempty"`
	Delete bool   `json:"d,omitempty"`
	// Compacted: the watch could go on only here, since etcd had compacted what came before.
	Compacted bool `json:"compacted,omitempty"`
}

// Change is a revision of a key as a data directory holds it.
type Change struct {
	Rev     int64  `json:"rev"`
	Sub     int64  `json:"sub,omitempty"`
	Key     string `json:"k"`
	Value   string `json:"v,omitempty"`
	Delete  bool   `json:"d,omitempty"`
	Create  int64  `json:"c,omitempty"`
	Version int64  `json:"n,omitempty"`
}

// Member is what was found at one member at the end.
type Member struct {
	Site string `json:"site"`

	// Over the API, by the member's own data.
	Keys     []KV     `json:"keys"`
	Revision int64    `json:"revision"` // of Keys
	Members  []string `json:"members"`  // "ID name voter" or "… learner"
	Hash     uint32   `json:"hash"`     // of the key space at HashRevision
	Compact  int64    `json:"compact"`  // as the hash says
	Leases   []int64  `json:"leases"`   // that it knows; nil: it was not asked

	// From its database, after it ended.
	Disk        []Change `json:"disk"`
	DiskCompact int64    `json:"disk_compact"`
	DiskLeases  []int64  `json:"disk_leases"` // nil: they were not read
	// Beside the member's WAL, and beside its directory: names of what returns have replaced, each with the number of WAL segments in it.
	Replaced map[string]int `json:"replaced"`
	Touched  []string       `json:"touched,omitempty"` // files in these that were written to afterwards
}

// Return is a change of a WAL's owner that an agent's trace shows as done.
type Return struct {
	Site  string `json:"site"`
	ID    uint64 `json:"id"`              // the new one
	Kept  bool   `json:"kept,omitempty"`  // with its log; else from an empty one
	Blank bool   `json:"blank,omitempty"` // there was none
}

// Claim is a claim that an agent's trace shows.
type Claim struct {
	Site       string `json:"site"`
	Generation uint64 `json:"generation"`
	Won        bool   `json:"won"` // the agent knew that its swap had won
	At         int64  `json:"at"`  // Unix milliseconds
}

// Phase is a phase that a site's agent came into.
type Phase struct {
	At         int64  `json:"at"` // Unix nanoseconds
	Name       string `json:"name"`
	Generation uint64 `json:"generation"`
}

// Reign is a claim, or a run of claims by one survivor, as the record's history has it.
type Reign struct {
	First, Last uint64
	Survivor    uint64
}

// Record is the arbiter's record at the end.
type Record struct {
	Generation uint64  `json:"generation"`
	Reigns     []Reign `json:"reigns"`
}

// Final is what was found at the end.
type Final struct {
	HashRevision int64    `json:"hash_revision"`
	Linear       []KV     `json:"linear"` // every key, by one linearizable read
	Members      []Member `json:"members"`
	Record       *Record  `json:"record"`
	Claims       []Claim  `json:"claims"`
	Returns      []Return `json:"returns"`
	// IDs are the member IDs that each site had, as its agents' traces show.
	IDs map[string][]uint64 `json:"ids"`
	// Phases of each site's agent, as its traces show them; for people.
	Phases map[string][]Phase `json:"phases"`
}

// History is a run.
type History struct {
	Ops     []Op
	Watches map[string][]Event // by site
	Final   *Final             // nil: it was not looked at
}

// Recorder takes down a history. Several goroutines may use it at a time.
type Recorder struct {
	start time.Time

	mu      sync.Mutex
	ops     []Op
	watches map[string][]Event
	changed chan struct{} // closed and replaced with each completed operation
}

// NewRecorder begins a history.
func NewRecorder() *Recorder {
	return &Recorder{start: time.Now(), watches: map[string][]Event{}, changed: make(chan struct{})}
}

// Now is the history's clock, never 0.
func (r *Recorder) Now() int64 { return max(1, int64(time.Since(r.start))) }

// Start is when the history began.
func (r *Recorder) Start() time.Time { return r.start }

// Call notes that o is about to be made and returns its ID. Its outcome is Unknown until Return.
func (r *Recorder) Call(o Op) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.ID, o.Outcome = len(r.ops), Unknown
	r.ops = append(r.ops, o)
	r.ops[o.ID].Call = r.Now()
	return o.ID
}

// Return notes the outcome that f fills in.
func (r *Recorder) Return(id int, f func(*Op)) {
	now := r.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	o := &r.ops[id]
	f(o)
	o.Return = now
	close(r.changed)
	r.changed = make(chan struct{})
}

// Watch notes what the watch of a site received.
func (r *Recorder) Watch(site string, e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.At = r.Now()
	r.watches[site] = append(r.watches[site], e)
}

// Watched is the revision of the newest event of the site's watch.
func (r *Recorder) Watched(site string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.watches[site]; len(w) > 0 {
		return w[len(w)-1].Rev
	}
	return 0
}

// Count is how many operations match, and a channel that is closed when another one has returned.
func (r *Recorder) Count(match func(*Op) bool) (int, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for i := range r.ops {
		if match(&r.ops[i]) {
			n++
		}
	}
	return n, r.changed
}

// History is a copy of what there is so far.
func (r *Recorder) History() History {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := History{Ops: append([]Op(nil), r.ops...), Watches: map[string][]Event{}}
	for s, w := range r.watches {
		h.Watches[s] = append([]Event(nil), w...)
	}
	return h
}
