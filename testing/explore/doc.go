// Package explore explores the core, internal/failover, exhaustively within a bound and
// by random walks beyond it: two instances of failover.Step and Eligible as they run in the
// agent, one register, and an abstract Raft pair.
//
// # The model
//
// World is one state. A Move changes it: an agent ticks or has one of its actions carried out
// (done, failed, done with the reply lost, to be done later, done with the reply kept back, torn), a store
// applies a late swap, an etcd sends, applies, restarts, is elected, a link is cut, a user changes
// members or drains. Raft is abstract: a log with terms, the commit index in memory and on disk, the
// applied index in memory and in the database, each with its lag; a configuration is in force when its entry is applied, one change is pending at a
// time (go.etcd.io/raft/v3); the hard state that commits a change is on disk before anything rests on it
// (A0); an election needs a quorum of the applied configuration, a candidate that cannot win changes no term
// (PreVote); a leader that reaches no quorum steps down when a move says so (CheckQuorum, without its
// leases: the model grants every vote that Raft allows). A learner with an empty log gets a
// snapshot of what its leader has applied.
//
// With A1 off the store may be rolled back, with A2 off a disk may lose the last entries that it synced: no rule
// closes either, the schedules in testdata show what the rules catch.
//
// Not in the model: messages that are delivered out of order or after a later one, two copies of one data directory, forced claims, rebinding, more than one removal under
// way. The simulation (testing/sim) has the first; the others are assumptions or operators' deeds.
//
// # Properties
//
//	S1  committed histories are prefixes of one another
//	S2  a committed entry is never overwritten
//	S3  no two members can commit at once
//	S4  who claims, operates or is elected holds everything that was ever committed
//	S5  an append has its own swap, under the same locks, on the data that it was decided on (P7)
//	C1–C3  contract of the core: one action in a slot; a fenced etcd is not released; a rewrite only to an ID that the survivor added
//	L1  with everything up the pair becomes whole, unless a reason names what only a person can do
//	L2  with only the store and one member up, that member leads if Eligible says that it may claim
//
// # Bounds
//
// Search makes every schedule up to a cost: a calm move (a tick, a done action, a cut, replication)
// costs one, a disturbance (a crash, a lost, late or failed action, a delayed message) two. It starts from the seeds,
// which stand in the middle of things: a claim, a return, a promotion. States are
// kept as 128-bit hashes of their canonical form (canon.go). Logs are no longer than Options.Longest above what
// everybody has. Walk goes further, at random, from states of the kinds that were seen least, and shortens what it finds.
//
// A violation is a Script, which names the seed, the rules that are off, the moves and the
// property; testdata has those that were found, TestReplay replays them.
//
// # Invariants
//
//  1. The canonical form hides nothing: a world rewritten into it after every move
//     and one that never is behave alike (TestCanonical).
//  2. Every schedule that is reported has been replayed in a world that was never rewritten.
//  3. The core has no switches: a rule is off by what the core is told, asks for or gets done (switches.go).
package explore
