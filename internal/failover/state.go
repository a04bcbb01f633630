package failover

import "twok/arbiter"

// Params are the agent's settings, in ticks. Zero HoldFirst means no hold-down.
type Params struct {
	ClaimAfter  uint32 // without a leader until a claim
	HeadStart   uint32 // added for every agent but the former leader's
	Election    uint32 // one election timeout of etcd
	WakeAfter   uint32 // peer is back, still no leader: restart etcd (lower member ID)
	WakeOther   uint32 // the same for the other member, on top of WakeAfter
	RecordIdle  uint32 // between two reads of the record with a leader in a pair
	RecordAlone uint32 // the same of a survivor that leads alone; no more than RecordIdle
	RecordBusy  uint32 // the same otherwise: leaderless, lost, or a pair that is not armed
	ListEvery   uint32 // between two looks at the survivor's member list
	ConfirmEach uint32 // between two confirmations or marks (P10, P15)
	TokenEach   uint32 // the token is written again after so long, at most twice that, if there are
	TokenFew    uint32 // at least so many new entries (zero: never),
	TokenSegs   uint32 // or after a sixth of it if there are so many new WAL segments; zero: not (P5, P14)
	MinRun      uint32 // etcd runs at least this long between two stops (P7)
	MaxRun      uint32
	HoldFirst   uint32 // hold-down before promotion, second loss within HoldWindow (F35)
	HoldMax     uint32
	HoldWindow  uint32
}

// Phase is where an agent is. It follows from its own data, the record and what
// etcd says; nothing but the part called memory below outlives the process.
type Phase uint8

// The phases.
const (
	Starting   Phase = iota // nothing is known yet
	Following               // the other member leads
	Leading                 // this member leads a pair
	Alone                   // this member leads by itself
	Leaderless              // no leader: the claim clock runs
	Stopping                // for a claim: etcd is being stopped, the locks taken
	Deciding                // locks held: record, then data are read
	Claiming                // the swap is out, or its outcome is looked for
	Appending               // the swap is won, the WAL is being written
	Rechecking              // the record is read once more
	Releasing               // the locks are given back, etcd starts
	Fenced                  // locks held, etcd stays down (P10, P16)
	Lost                    // this member is the loser and waits for the survivor
	Joining                 // a learner is removed from or added to the survivor's list
	Preparing               // the local WAL gets the new member ID, under the locks
	CatchingUp              // a learner of the survivor
	Promoting               // caught up and compared: to become a voter
	numPhases
)

var phaseNames = [numPhases]string{
	"starting", "following", "leading", "alone", "leaderless", "stopping", "deciding", "claiming",
	"appending", "rechecking", "releasing", "fenced", "lost", "joining", "preparing", "catching-up", "promoting",
}

func (p Phase) String() string {
	if p >= numPhases {
		return "unknown"
	}
	return phaseNames[p]
}

// MarshalText makes phases readable in JSON.
func (p Phase) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Phases lists all phases.
func Phases() []Phase {
	ps := make([]Phase, numPhases)
	for i := range ps {
		ps[i] = Phase(i)
	}
	return ps
}

// EtcdState is what the local etcd looks like from outside.
type EtcdState uint8

// The states of etcd.
const (
	EtcdUnknown EtcdState = iota
	EtcdAway              // not running, hung, or its peer port is silent
	EtcdNoLeader
	EtcdLed
)

// StoreState is what the probe of the arbiter's store said (A1).
type StoreState uint8

// The states of the store.
const (
	StoreTrusted  StoreState = iota // nothing speaks against it
	StoreUntested                   // not tried yet, or it could not be
	StoreFaulty                     // it does not keep its promise
)

// Reason maps a state to why nobody claims.
func (s StoreState) Reason() Reason {
	switch s {
	case StoreTrusted:
		return None
	case StoreUntested:
		return StoreNotTried
	}
	return StoreUntrusted
}

// Obs is what the shell saw since the last tick. Everything in it may be stale:
// it decides when to look, never whether a rule is met (P20).
type Obs struct {
	Etcd    EtcdState
	Start   uint32 // changes with every start of etcd (P7)
	Version uint32 // minor version, major<<16|minor; zero: not known

	Member  uint64 // zero: not known
	Cluster uint64
	Leader  uint64
	Term    uint64
	Commit  uint64
	Learner bool   // this member is a learner in its own list
	Voters  Voters // of its own list; Count zero: not known

	TokenRead bool // Token is known, from the member's own data
	Token     Token

	Blank   bool   // the data directory holds no WAL, and etcd is kept from starting on it
	Contact bool   // the other member answered since the last tick
	Peer    bool   // the other member's peer port answers
	Other   uint64 // the other member's ID, as last known
	Unsafe  bool   // etcd runs with a flag that A0 excludes
	Store   StoreState
	Alarm   bool   // NOSPACE
	Segment uint64 // number of the newest WAL segment; zero: not known, or the first
}

// RecordStatus is the outcome of reading the record.
type RecordStatus uint8

// The outcomes.
const (
	Unread RecordStatus = iota
	Readable
	Absent
	Empty
	Garbage
	Foreign
	Future
	Unavailable
	Forbidden
	Misconfigured
)

// Reason maps a status to why a claim cannot rest on it.
func (s RecordStatus) Reason() Reason {
	switch s {
	case Readable:
		return None
	case Absent:
		return RecordAbsent
	case Empty:
		return RecordEmpty
	case Garbage:
		return RecordGarbage
	case Foreign:
		return RecordForeign
	case Future:
		return RecordFuture
	case Unavailable:
		return RecordUnavailable
	case Forbidden:
		return RecordForbidden
	case Misconfigured:
		return RecordMisconfigured
	}
	return RecordUnread
}

// Own is this member's last claim, stored beside its data before the swap (P16).
type Own struct {
	RecordID   string
	Generation uint64
	Nonces     [4]string        // of the last attempts, newest first: any of them may still be applied (P1)
	End, Fork  arbiter.Position // of the newest
}

func (o Own) made(nonce string) bool {
	for _, n := range o.Nonces {
		if n != "" && n == nonce {
			return true
		}
	}
	return false
}

// State is everything that an agent's decisions depend on.
type State struct {
	P     Params
	Phase Phase
	Why   Reason // what the phase waits for or what keeps the member from being armed

	// Memory: the part that the shell keeps beside the data. Losing it changes
	// no role (F9); it only makes rollbacks of the store and clones visible.
	Mine Own
	Seen uint64 // the highest generation read for Rec.ID (P17)

	Obs Obs

	// The record as last read, and what is known of its age.
	RecStatus RecordStatus // of the last attempt
	Rec       arbiter.Record
	RecVer    arbiter.Version
	RecKnown  bool   // Rec was read at least once
	RecAge    uint32 // ticks since the last attempt ended

	// Operations that are out.
	Arb, Site ActionKind
	Purpose   Purpose // what the swap that is out is for

	// The claim clock.
	NoLeader  uint32 // ticks that etcd was up without a leader
	PeerLost  uint32 // ticks since the last contact with the peer
	PeerBack  uint32 // ticks that the peer has been answering again
	WasLeader bool   // the last leader was this member
	PeerGone  bool   // the peer was silent since the last leader
	Woken     bool   // etcd was restarted for this return of the peer
	Preflight Reason // what the last preflight found; RecordUnread: none in this time without a leader
	PreWait   uint32 // ticks until a failed preflight is tried again

	// Rate limits (P7).
	StopWait  uint32 // ticks of running etcd until the next stop
	Refused   Reason // what ended the last section; shown until the next one (P11)
	StopLevel uint8
	StopStart uint32          // Obs.Start at the last stop
	StopVer   arbiter.Version // of the record at the last stop

	// The section.
	Locked  bool
	Held    bool   // etcd has to stay down, whatever else fails (P16)
	Fence   Reason // why, while Held
	Fresh   bool   // the read that is out began after the locks were taken
	Order   bool   // for a forced claim (P18): it waited for nothing, no other claim may follow
	Data    Data   // as read in this section
	Retries uint8

	// The way back.
	List      List
	ListAge   uint32 // ticks since the last look
	NewID     uint64 // the ID that this member is about to get: as the survivor's learner, or by a forced claim
	Removed   bool   // a linearizable list at the survivor lacked this member
	Equal     bool   // the hashes were equal, promotion waits for Hold
	Asked     bool   // a promotion was asked for, and no list has been read since (F6)
	Hold      uint32 // ticks of hold-down left (F35)
	HoldLevel uint8
	LossAge   uint32 // ticks since the last return, saturating at HoldWindow
	JoinWait  uint32 // ticks until a failed return is tried again
	Tok       Token  // the own applied token, as last known
	TokKnown  bool

	// Duties of the leader.
	Intent    bool   // the read that is out is for a token
	TokStale  bool   // the token has to be written again: its term moved (P14), or a third voter was there (P5)
	TokenWait uint32 // ticks until a failed token write is tried again
	TokenAge  uint32 // ticks since this agent's member leads, or the token was last asked for
	TokenAt   uint64 // commit index at this agent's last token write; zero: none while its member leads
	TokenSeg  uint64 // the newest WAL segment then
	NoteAge   uint32 // ticks since the last confirmation or mark
	SwapWait  uint32 // ticks until a swap that failed (not a claim) is tried again
	SwapWhy   Reason // why it failed: an arbiter that refuses writes would refuse a claim
	Tidied    uint64 // generation whose leftovers were tidied, as far as possible
}

// Purpose says what a swap is for.
type Purpose uint8

// The purposes.
const (
	NoPurpose Purpose = iota
	ForCreate
	ForClaim
	ForConfirm
	ForWhole
	ForMark
	ForReassert
)

// List is a linearizable member list at the other member, through its client port,
// as it concerns this site.
type List struct {
	OK       bool // the list was read, and the answering member leads or follows a leader
	Leader   uint64
	Cluster  uint64
	Version  uint32 // cluster version, major<<16|minor
	Voters   Voters
	Self     Standing // of the ID that the own WAL carries
	Leftover uint64   // a learner with this site's peer URLs and another ID (F7)
	Stranger uint64   // a learner of neither
}

// Standing is what a list says of a member.
type Standing uint8

// The standings.
const (
	NotListed Standing = iota
	ListedLearner
	ListedVoter
)

// New is the state of an agent that has just started.
func New(p Params, mine Own) State {
	return State{P: p, Mine: mine, LossAge: p.HoldWindow, RecAge: p.RecordIdle, ListAge: p.ListEvery, NoteAge: p.ConfirmEach, Preflight: RecordUnread}
}
