package arbiter

// HistoryLen is how many claims a record remembers.
const HistoryLen = 16

// Position is a place in a Raft log.
type Position struct {
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
}

// Member names an etcd member. The ID is its identity; the name is for people.
type Member struct {
	ID   uint64 `json:"id"` // encoded as 16 hex digits, as etcdctl prints it
	Name string `json:"name"`
}

// Record is the arbiter's one value (docs/design/protocol.md, "The record"). It
// is comparable: a whole record can be part of a map key or of a core state.
// Zero values mean "not there". Times are Unix milliseconds of the writer's own
// clock and inform people only; no rule reads them (P20).
type Record struct {
	ID         string // record ID: random, chosen at creation (P3)
	ClusterID  uint64 // the etcd cluster (F38)
	Generation uint64 // G: grows with every claim and with nothing else (P2)
	Survivor   Member // zero: nobody yet
	Nonce      string // fresh in every swap of any kind (ABA)
	ClaimNonce string // the Nonce of the swap that made the last claim (P1, P16)
	Reason     string // why the last claim was made, for people
	CreatedAt  int64
	ClaimedAt  int64
	WrittenAt  int64 // the last swap of any kind

	// ClaimEnd is the end of the claimer's log when it claimed (P7, P4 b).
	ClaimEnd Position
	// Fork is where the survivor's own history begins: its first appended entry (P10).
	Fork Position
	// Confirmed is the applied index, with its entry's term, that the survivor
	// confirmed while alone (P10). It belongs to this generation.
	Confirmed   Position
	ConfirmedAt int64

	// Whole: the pair was whole, with its token, at this generation (P14). Zero: no note.
	WholeGeneration uint64
	WholeMembers    [2]uint64
	WholeAt         int64

	// Mark is the commit mark (P15): the commit index of a whole pair at MarkGeneration.
	MarkGeneration uint64
	MarkIndex      uint64

	Drain  bool // the other member is meant to stay out (P19)
	Pause  bool // no agent acts
	Forced bool // this generation was claimed by force (P18)

	// History has the newest claims, oldest first, unused places zero at the
	// end. The newest entry describes Generation itself, once there was a claim.
	History [HistoryLen]HistoryEntry

	// Extra holds the fields of the encoded record that this version does not
	// know, as one canonical JSON object, so that they survive a rewrite.
	Extra string
}

// HistoryEntry is one claim, or a run of claims by one survivor (P13): it
// covers the generations First to Last and keeps the first fork of the run.
type HistoryEntry struct {
	First, Last uint64
	Survivor    uint64
	Fork        Position // where this survivor's history left the other's
	Forced      bool
	By          string // who forced it, for people (P18)
	At          int64
	Extra       string // as Record.Extra
}
