package failover

// Reason names why an agent does not do something, or what a state lacks (P11).
// The zero value means that nothing is in the way.
type Reason uint8

// The reasons. Each has a remedy; reasonText is checked to be complete.
const (
	None Reason = iota

	// The record.
	RecordUnread        // not read yet, or the last attempt failed
	RecordUnavailable   // the arbiter does not answer
	RecordForbidden     // the arbiter refuses our credentials
	RecordMisconfigured // the arbiter cannot work as configured
	RecordAbsent        // no record, and the data hold a token or are not known yet
	RecordEmpty         // zero bytes or white space
	RecordGarbage       // not readable as a record
	RecordForeign       // not a twok record, or of another cluster (F38)
	RecordFuture        // written by a newer version
	RecordElsewhere     // the data are bound to another record (P3)
	RecordOld           // of a lower generation than one seen, or than the token's (P17)
	StoreUntrusted      // the store failed its probe
	StoreNotTried       // the store has not passed its probe yet
	RecordMissing       // no record and no token yet: the pair was never armed

	// The token and the configuration.
	TokenMissing      // the data hold no token
	TokenBad          // the key holds something else
	TokenGeneration   // the token is of another generation
	TokenMisnamed     // the token names other members than the voters
	TokenLate         // the token's entry is of another term than it names
	TokenTail         // an operation after the applied token speaks against it
	ThirdVoter        // a configuration has more than two voters, or another one than the token names
	ForeignLearner    // a learner that is not of this pair blocks the way
	OwnRemoval        // the log holds this member's own removal (F3)
	UnknownConfChange // the log holds a configuration change that is not understood

	// The data.
	WALUnreadable
	WALOld // from before etcd 3.5
	WALInUse
	DatabaseUnreadable
	DataInsane   // the parts of the data directory contradict each other
	RolledBack   // the data end before something that they once held
	DiskFull     // not enough space to operate
	ClaimEnd     // named by the record, but the log ends before the claim's own log end
	WholeUnknown // named by the record, but the data lack the token that the whole note promises

	// Etcd.
	EtcdUnsafe      // runs with --force-new-cluster, --unsafe-no-fsync or --pre-vote=false (A0)
	EtcdDown        // etcd does not run, or does not answer on its peer port
	EtcdAlarm       // NOSPACE alarm (F31)
	VersionUnknown  // the local etcd's version is not known yet
	VersionTooOld   // the local etcd is older than the survivor's cluster version
	LockFailed      // etcd could not be stopped, or the locks not be taken
	AppendFailed    // the append to the WAL failed
	RewriteFailed   // the WAL could not be rewritten or the directory not be set aside
	HashDiffers     // the key spaces differ at one revision (F24)
	StateUnwritable // the claim could not be stored beside the data (P16)

	// The other side and the operator.
	NoLeader       // no leader yet, claim-after not reached
	NamedOther     // the record names the other member: this one is the loser
	NotConfirmed   // the survivor has not confirmed in the record yet (P10)
	SurvivorSilent // the survivor does not answer
	SwapLost       // another swap won
	SwapUnknown    // the outcome of the claim is not known yet
	RateLimited    // etcd was stopped a short while ago
	Paused         // the record's pause flag
	Drained        // the record's drain flag: the other member is meant to stay out
	HoldDown       // promotion waits, since losses were frequent (F35)
	CatchingUpLog  // the learner is not caught up
	TokenPending   // a voter again, but the token is not applied here (P14)
	Clone          // the record shows a claim of this member that this member did not make (P16)
	Overridden     // alone, and the record names somebody else (P16)
	AloneUnclaimed // alone without a claim: somebody removed the other member (F33)
	RemovedByHand  // removed while the pair was whole, by no claim: stays out (F16, F33)
	TokenOutlived  // a third voter came and went after the token was written (P5)
	LogCompacted   // the log no longer reaches back to the token's entry, or to the claim (P5)
	DiskBlank      // the data directory holds no data, and there may be a record of a pair
	URLsUnknown    // this member's own peer URLs are not known, and it would have to be added anew (P18)
	ForcedLearner  // a forced claim names this member, which is a learner by its own data (P18)
	VoteUnsure     // another member's etcd may not count this member's vote, and lead without it (P5)
	numReasons
)

type text struct{ name, remedy string }

var reasonText = [numReasons]text{
	None:                {"none", ""},
	RecordUnread:        {"record-unread", "wait: the record has not been read yet"},
	RecordUnavailable:   {"arbiter-unavailable", "check that the arbiter runs and is reachable from this site; a healthy pair goes on without it"},
	RecordForbidden:     {"arbiter-forbidden", "check the arbiter's credentials and permissions"},
	RecordMisconfigured: {"arbiter-misconfigured", "check the arbiter URL and the store's settings; see the log for the store's answer"},
	RecordAbsent:        {"record-absent", "there is no record: a new pair's leader creates it at once; a pair that holds a token is bound to one that is gone: restore the store's object, or check the arbiter URL"},
	RecordEmpty:         {"record-empty", "the record is empty: restore the store's object from its last version"},
	RecordGarbage:       {"record-garbage", "the record cannot be read: restore the store's object from its last version"},
	RecordForeign:       {"record-foreign", "the arbiter URL points to another cluster's record or to something else: give each pair its own"},
	RecordFuture:        {"record-future", "the record was written by a newer twok: upgrade this agent"},
	RecordElsewhere:     {"record-elsewhere", "the pair is bound to another record: point both agents to the same arbiter URL"},
	RecordOld:           {"record-old", "the record is older than one seen before: the store was rolled back; restore its newest version"},
	StoreUntrusted:      {"store-untrusted", "the store does not keep its promise of compare-and-swap: run twok arbiter probe to see what it does; use another one"},
	StoreNotTried:       {"store-not-tried", "wait: the store has not passed its probe yet; if it goes on, see the log, or run twok arbiter probe"},
	RecordMissing:       {"record-missing", "wait for a running pair with a leader: its agent creates the record"},
	TokenMissing:        {"token-missing", "wait until the pair is whole: the leader's agent writes the token; check that it runs"},
	TokenBad:            {"token-bad", "the key /twok/pair holds something that twok did not write: let the pair become whole, its agent writes it anew"},
	TokenGeneration:     {"token-generation", "this member's data are of another generation than the record: the survivor has to lead, this member returns by itself"},
	TokenMisnamed:       {"token-misnamed", "the token names other members than the two voters: wait until the leader's agent writes it anew"},
	TokenLate:           {"token-late", "the token was written under another term than it names: wait until the leader's agent writes it anew"},
	TokenTail:           {"token-tail", "the log's tail holds an operation on /twok/pair that speaks against this member: the other member has to lead"},
	ThirdVoter:          {"third-voter", "this is not a pair of two voters: remove the third member, or do without twok"},
	ForeignLearner:      {"foreign-learner", "a learner that is not of this pair takes the place: remove it with etcdctl member remove"},
	OwnRemoval:          {"own-removal", "this member was removed: it returns when the survivor leads"},
	UnknownConfChange:   {"unknown-conf-change", "the log holds a membership change that this twok does not understand: upgrade twok"},
	WALUnreadable:       {"wal-unreadable", "the WAL is damaged: run twok wal inspect; let the other member lead and this one return from a snapshot"},
	WALOld:              {"wal-old", "the WAL was written by an etcd before 3.5: upgrade etcd while the pair is whole"},
	WALInUse:            {"wal-in-use", "another process holds the WAL: stop it"},
	DatabaseUnreadable:  {"database-unreadable", "the database is damaged: let the other member lead and this one return from a snapshot"},
	DataInsane:          {"data-insane", "WAL and database contradict each other (a partial restore?): let the other member lead and this one return from a snapshot"},
	RolledBack:          {"rolled-back", "the data are older than what this member once held (a restored snapshot of its disk?): let the other member lead, or force a claim"},
	DiskFull:            {"disk-full", "free space on the data volume: the size of the WAL and 128 MB are needed"},
	ClaimEnd:            {"claim-end", "the log ends before what this member held when it claimed: only an operator's forced claim can go on"},
	WholeUnknown:        {"whole-unknown", "the record says that the pair was whole at this generation, but these data do not know it: they were rolled back"},
	EtcdUnsafe:          {"etcd-unsafe", "start etcd without --force-new-cluster, --unsafe-no-fsync and --pre-vote=false"},
	EtcdDown:            {"etcd-down", "etcd does not run or its peer port does not answer: see its log"},
	EtcdAlarm:           {"etcd-alarm", "etcd has a NOSPACE alarm: compact, defragment and disarm it"},
	VersionUnknown:      {"version-unknown", "start etcd once, so that its version can be seen"},
	VersionTooOld:       {"version-too-old", "upgrade etcd here to the survivor's version: it then returns by itself"},
	LockFailed:          {"lock-failed", "etcd could not be stopped or its files not be locked: see the log"},
	AppendFailed:        {"append-failed", "the WAL could not be written: check the disk; the claim is tried again"},
	RewriteFailed:       {"rewrite-failed", "the WAL could not be prepared for the return: check the disk and the log; it is tried again"},
	HashDiffers:         {"hash-differs", "the key spaces differ at one revision: keep both data directories and compare them; remove this member's data directory's contents by hand only after that"},
	StateUnwritable:     {"state-unwritable", "the agent cannot write beside the data directory: check permissions and space"},
	NoLeader:            {"no-leader", "wait: the claim is made when claim-after has passed"},
	NamedOther:          {"named-other", "the record names the other member: this one returns when the survivor answers"},
	NotConfirmed:        {"not-confirmed", "wait: the survivor has not yet confirmed in the record that it leads"},
	SurvivorSilent:      {"survivor-silent", "the survivor does not answer: check the link and the survivor"},
	SwapLost:            {"swap-lost", "another swap won: the record is read again"},
	SwapUnknown:         {"swap-unknown", "wait: the record is read until the claim's outcome is known"},
	RateLimited:         {"rate-limited", "wait: etcd was stopped a short while ago"},
	Paused:              {"paused", "the pair is paused for maintenance"},
	Drained:             {"drained", "this member is drained: undrain it to let it return"},
	HoldDown:            {"hold-down", "wait: the link was lost several times within ten minutes"},
	CatchingUpLog:       {"catching-up", "wait: the learner is catching up with the survivor"},
	TokenPending:        {"token-pending", "wait: the survivor's agent writes the token; check that it runs"},
	Clone:               {"clone", "the record shows a later claim of this member than its own: another copy of this data directory runs somewhere; keep only one"},
	Overridden:          {"overridden", "the record names another survivor: this member's etcd stays down and returns when that one leads; if that one is gone for good, only an operator's forced claim goes on"},
	TokenOutlived:       {"token-outlived", "a third member came and went after the token was written: wait until the leader's agent writes it anew; if no leader comes back, the other member has to lead"},
	DiskBlank:           {"disk-blank", "the data directory is empty: if this member's disk was replaced, it returns by itself when the other one leads alone; if this is a new pair, give it a record of its own (another --arbiter)"},
	URLsUnknown:         {"urls-unknown", "a removed member can only be added anew with its peer URLs: let its etcd run once beside the agent, or run it in supervise mode with --initial-advertise-peer-urls"},
	ForcedLearner:       {"forced-learner", "a forced claim names this member, which was not promoted yet: a learner holds no vote and perhaps not every write; force the claim for the survivor that it returned to"},
	VoteUnsure:          {"vote-unsure", "the other member's etcd may do without this one's vote after a restart, and writes without it then: stop this member's etcd and agent until the other one has claimed, and start them again: it returns under a new ID; if the other one goes on without a claim, remove this one with etcdctl and add it anew"},
	LogCompacted:        {"log-compacted", "this member's log no longer shows what came after the pair token was written: while there is a leader, its agent writes the token again within a minute or so; without one the other member has to lead; if that one is gone for good, force a claim"},
	RemovedByHand:       {"removed-by-hand", "this member was removed while the pair was whole: add it again with etcdctl, or retire it"},
	AloneUnclaimed:      {"alone-unclaimed", "the other member was removed by somebody: add a member again, or do without twok"},
}

// String is the reason's name, as status, metrics and log show it.
func (r Reason) String() string {
	if r >= numReasons {
		return "unknown"
	}
	return reasonText[r].name
}

// Remedy says what a person can do; empty for None.
func (r Reason) Remedy() string {
	if r >= numReasons {
		return ""
	}
	return reasonText[r].remedy
}

// MarshalText makes reasons readable in JSON.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Reasons lists all reasons but None, for status pages and tests.
func Reasons() []Reason {
	var rs []Reason
	for r := None + 1; r < numReasons; r++ {
		rs = append(rs, r)
	}
	return rs
}
