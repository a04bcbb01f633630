// Package bind ties a pair to a record: it writes the pair token (P14), for the agents and for
// `twok arbiter init`, and does what else the latter does (P3).
//
// # Binding
//
// A pair is bound to one record by the record ID in its token. Init creates a record, create-if-absent, and
// only then the token, through the member that leads:
//
//	the data hold                       the new record
//	no token, a running pair            generation 1, names nobody; then the token of 1
//	a token, a running pair             one generation above the token's and the old record's, names nobody; then its token
//	a token, a survivor alone           the same, names the survivor; then a token of the generation below it
//
// The token of a survivor alone names the members of the old one and speaks for no claim: it tells the
// survivor's agent which record is its own. The loser's token is of another record: it returns
// from an empty log (P13).
//
// # Invariants
//
//  1. No record is overwritten but one of this cluster that no token speaks of: what an Init that was interrupted left.
//  2. A token of another record is replaced only if the caller asks for it.
//  3. Between record and token nobody may claim by the new record; by the old one as before: whoever
//     has the new token in its log, applied or not, may not (P4), and who has not, lacks nothing that was acknowledged.
//  4. Init again, after any interruption, completes or says that it is done.
package bind
