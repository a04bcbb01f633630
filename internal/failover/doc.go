// Package failover is the decision core of twok: what an agent does next, as a
// function of values.
//
//	Step(State, Event) (State, []Action)
//
// There is no clock, no network, no file and no goroutine here; time comes as
// ticks, randomness and nonces as fields of events. State, Event and Action are
// comparable values, so that a state can be a map key: the same code runs in the
// agent, in a simulation and in an exhaustive explorer.
//
// # What is decided here
//
//   - Eligible: whether a member may claim, from its own data and the record (P4, P5, P6, P11).
//   - Claim, Confirm, NoteWhole, …: every content the record may be given (P2, P10, P14, P15, P17).
//   - KeepLog: whether a loser may keep its log (P13).
//   - Step: when to look, stop, claim, append, fence, and how to come back (P7, P12, P14, P16).
//
// # Contract with the shell
//
//   - Every Action gets exactly one reply event, of the kind its documentation
//     names; a deadline that passes is a reply too (outcome Unknown). At most one
//     arbiter action (ReadRecord, Swap) and one site action (all others) is out at a time.
//     A reply that is not expected is ignored.
//   - Stop is answered after the locks are held (or not); they stay held until Release.
//   - Before a Swap whose Claim field is set the shell stores State.Mine beside
//     the data, durably (P16); if that fails the swap is not sent.
//   - Tick comes at a steady rate; Params count in ticks.
//
// # Invariants
//
//  1. Append is emitted only directly after this section's own Swap is known to
//     be applied, on data read in this section (P7).
//  2. Swap with Claim set is emitted only while the locks are held, on a record
//     read after they were taken, and only if Eligible says so; the one exception is
//     Reassert (P17), which appends nothing.
//  3. Between Stop and Release no other member's call is made, except to return (P12).
//  4. No action that destroys or hides data (Rewrite) is emitted before
//     the survivor has added the new member ID (P12).
//  5. Time decides when, never whether (P20): no Reason is granted or lifted by a counter alone,
//     except the rate limits, which only delay.
package failover
