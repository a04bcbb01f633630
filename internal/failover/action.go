package failover

import "twok/arbiter"

// ActionKind is what the shell is asked to do.
type ActionKind uint8

// The actions, with the event that answers each.
const (
	NoAction ActionKind = iota

	// ReadRecord reads the record. Answer: RecordRead.
	ReadRecord
	// Swap stores Record if the record is still at Prev. With Claim set,
	// State.Mine is stored durably beside the data first. Answer: Swapped.
	Swap

	// Preflight reads the WAL beside the running etcd (P7). Answer: Preflighted.
	Preflight
	// Stop ends etcd and takes the locks; nothing to do if they are held. Answer: Stopped.
	Stop
	// ReadData reads the data under the locks, with the term at Index. Answer: DataRead.
	ReadData
	// Append operates: removal of every member in Remove (P8). With ID set the WAL gets that member ID first and
	// the append begins with its addition as a voter (P18). Answer: Appended.
	Append
	// Release gives the locks back and lets etcd start. Answer: Released.
	Release
	// Restart ends etcd and lets it start again, without locks: the wake. Answer: Restarted.
	Restart

	// LookAtList reads the survivor's list. Answer: Listed.
	LookAtList
	// RemoveLearner removes the learner ID from the survivor's list. Answer: MemberChanged.
	RemoveLearner
	// AddLearner adds this site as a learner. Answer: MemberChanged, with the new ID.
	AddLearner
	// Rewrite gives the local WAL the member ID, and keeps the log if Keep is
	// set; else the directory is set aside whole, named after Why, and replaced by an
	// empty prepared log. Answer: Rewritten.
	Rewrite
	// Compare nudges the survivor, waits until the learner has what it had and compares hashes. Answer: Compared.
	Compare
	// Promote makes the learner ID a voter, at the survivor. Answer: MemberChanged.
	Promote

	// Sample takes an applied position of the lone leader, with its entry's term (P10). Answer: Sampled.
	Sample
	// WriteToken writes the pair token of Generation for RecordID by P14. Answer: TokenWritten.
	WriteToken
	// Tidy keeps at most one replaced WAL. Answer: Tidied.
	Tidy
	numActions
)

var actionNames = [numActions]string{
	"none", "read-record", "swap", "preflight", "stop", "read-data", "append", "release", "restart",
	"look-at-list", "remove-learner", "add-learner", "rewrite", "compare", "promote", "sample", "write-token", "tidy",
}

func (k ActionKind) String() string {
	if k >= numActions {
		return "unknown"
	}
	return actionNames[k]
}

// MarshalText makes actions readable in JSON.
func (k ActionKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// ActionKinds lists all actions.
func ActionKinds() []ActionKind {
	var ks []ActionKind
	for k := NoAction + 1; k < numActions; k++ {
		ks = append(ks, k)
	}
	return ks
}

// onArbiter says which of the two slots an action takes.
func (k ActionKind) onArbiter() bool { return k == ReadRecord || k == Swap }

// Action is one thing to do. Only the fields that its kind names are set.
type Action struct {
	Kind       ActionKind
	Record     arbiter.Record  // Swap
	Prev       arbiter.Version // Swap
	Claim      bool            // Swap
	Index      uint64          // ReadData: the index whose term is asked for
	Remove     [MaxRemove]uint64
	Twins      uint8  // Append with ID: how many of Remove come before the addition
	Term       uint64 // Append: the term of the appended entries
	ID         uint64 // RemoveLearner, Rewrite, Compare, Promote; Append of a removed member
	Keep       bool   // Rewrite
	Cluster    uint64 // Rewrite: the cluster ID of the prepared log
	Why        Reason // Rewrite without Keep
	Generation uint64 // WriteToken
	RecordID   string // WriteToken
}

// EventKind is what happened.
type EventKind uint8

// The events.
const (
	NoEvent EventKind = iota
	Tick
	RecordRead
	Swapped
	Preflighted
	Stopped
	DataRead
	Appended
	Released
	Restarted
	Listed
	MemberChanged
	Rewritten
	Compared
	Sampled
	TokenWritten
	Tidied
	numEvents
)

var eventNames = [numEvents]string{
	"none", "tick", "record-read", "swapped", "preflighted", "stopped", "data-read", "appended", "released", "restarted",
	"listed", "member-changed", "rewritten", "compared", "sampled", "token-written", "tidied",
}

func (k EventKind) String() string {
	if k >= numEvents {
		return "unknown"
	}
	return eventNames[k]
}

// MarshalText makes events readable in JSON.
func (k EventKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// EventKinds lists all events.
func EventKinds() []EventKind {
	var ks []EventKind
	for k := Tick; k < numEvents; k++ {
		ks = append(ks, k)
	}
	return ks
}

// Outcome is how an action ended, as far as the shell knows.
type Outcome uint8

// The outcomes. The zero value is the one that promises nothing.
const (
	Unknown  Outcome = iota // may have happened, or may yet
	Done                    // happened
	Conflict                // did not happen: something else had changed
	Failed                  // did not happen
)

// Event is something that happened. Only the fields that its kind names are set;
// Stamp and Random may be set on all.
type Event struct {
	Kind    EventKind
	Outcome Outcome // all replies
	Why     Reason  // with Failed: what was in the way; Rewritten: why the log was not kept

	Obs   Obs    // Tick
	Ticks uint32 // Tick: how many have passed since the last one; zero counts as one

	Status  RecordStatus    // RecordRead
	Record  arbiter.Record  // RecordRead, with Readable
	Version arbiter.Version // RecordRead
	Seen    uint64          // RecordRead: the highest generation read before for this record ID

	Data Data // DataRead

	List List   // Listed
	ID   uint64 // MemberChanged after AddLearner

	Equal    bool             // Compared with Done: the hashes were equal
	Position arbiter.Position // Sampled
	Token    Token            // TokenWritten with Done

	Stamp    Stamp  // a fresh nonce and the clock
	RecordID string // a fresh record ID, for Create
	FreshID  uint64 // a member ID that never was, not zero (P18)
	Random   uint32 // a random number
}

// Reply is the kind of event that answers an action.
func (k ActionKind) Reply() EventKind {
	switch k {
	case ReadRecord:
		return RecordRead
	case Swap:
		return Swapped
	case Preflight:
		return Preflighted
	case Stop:
		return Stopped
	case ReadData:
		return DataRead
	case Append:
		return Appended
	case Release:
		return Released
	case Restart:
		return Restarted
	case LookAtList:
		return Listed
	case RemoveLearner, AddLearner, Promote:
		return MemberChanged
	case Rewrite:
		return Rewritten
	case Compare:
		return Compared
	case Sample:
		return Sampled
	case WriteToken:
		return TokenWritten
	case Tidy:
		return Tidied
	}
	return NoEvent
}
