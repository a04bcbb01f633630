// Package trace validates traces: what the agents wrote down while they ran on real etcds is
// explained by the explorer's model, or refused. So the model cannot drift from the program, nor from etcd.
//
// # The method
//
// A trace (twok agent --trace) holds every event that an agent's core was given and every action
// that it asked for. The traces of both agents, merged by time, are observations of one run.
// Check looks for a behaviour of explore.World of which they are the observations:
//
//   - Exactly: failover.Step is given each event again, with the values of the trace, and must ask for
//     the same actions, in the same phase, for the same reason.
//   - In the model: a set of behaviours (at most 24; before a trace is refused, 192) is followed from line to line. For a line, hidden moves
//     are put in until the model's agent can make this very step: elections, messages, applied
//     entries, crashes, cuts, clients' writes, the effects of actions that are out. The effect of an
//     action lies anywhere between the line that asks for it and the line with its reply. What the
//     model's agent then asks for, its phase and its reason must be those of the line. If no behaviour goes on,
//     the trace is refused, with the line, the model's state and what it could do instead.
//
// The model keeps its own properties (S1 to S5, C1 to C3 of package explore): a behaviour that breaks one
// explains nothing.
//
// # How values compare
//
// Generations and member IDs are the real ones. Indices are compressed: those that occur in records, in
// data and in confirmations keep their order and their neighbours, and what lies between two of them has at most 8 places
// in the model. Terms keep their order, and neighbours stay neighbours if both occur. Versions of the store and
// nonces of claims are bound one to one. Time and ticks are the agents' own, so are their settings.
// What is chosen by looking ahead in the trace is only which hidden moves are tried (how long a log gets,
// how much of it is on disk when etcd ends, which ID a new member has); what is checked is the same.
//
// # What is checked
//
// Exactly, in these values: every swap (the whole record but texts and times, the version that it
// expects, when it is applied and when it conflicts), every record that was read, the data as read under
// the locks (term, commit and applied index, end and beginning of the log, the term of the entry
// that was asked for, the token with its entry, the tail, every configuration, the changes since the token),
// the append with its term and whom it removes, each change of members with its ID and the order of all of them,
// comparisons, rewrites (the ID, whether the log is kept, why not), confirmations, tokens
// (generation, names, terms), lists of the survivor, leaders with their terms.
//
// With slack: what a watcher shows may be up to 2.5 s old, part by part, and may show less than there is
// (no etcd, no leader, no peer, no list): its calls have deadlines. An etcd that waits for the agent's locks may be seen started. A leader's term may be
// the one before, as etcd reads it apart. Else it
// never shows what was not there. An action that
// failed, or whose outcome is unknown, may have had no effect, for a reason that the model does not know. A commit index that
// is seen is not above what was committed. A read of the record shows what the register held at some time since it was asked for.
//
// Not at all: names, texts and clocks; versions and flags of etcd; the NOSPACE alarm; the last snapshot in the WAL; the
// changes that came before the token (no rule asks for them); the other member's ID in an
// observation (it chooses who wakes up first).
package trace
