// Package probe tries whether a store keeps the promise that a pair rests on: an atomic
// compare-and-swap (A1, P1). It works on a scratch register of its own, never on the record.
//
// A probe can only disprove. It looks for what real stores were seen to do: ignore the
// conditions; take two of many swaps from one version; answer "changed" to a swap that they applied; store
// other bytes than were sent; show half a value; show one client less than another one was
// acknowledged. Sequential checks alone do not find a store that fails under concurrency
// (docs/design/arbiter-facts.md), so it races: several clients, one version, one winner a round. Then a
// storm: all clients read and swap as fast as they can, and no two swaps from one version may be acknowledged.
//
// Measured on lighttpd, which checks and writes in two steps when it has several processes: ten races alone missed it in
// 30 of 40 probes with two processes and in 20 with four; with the 100 swaps of its storm in 7 and in 1. More rounds make
// a longer storm.
//
// # Outcomes
//
//	Report.Problem == nil, err == nil   nothing speaks against the store
//	Report.Problem != nil, err == nil   the store did what it must not do: do not use it
//	err != nil                          it could not be tried; err keeps its class (arbiter.Class), or is
//	                                    ErrBusy (somebody else writes the scratch register) or ErrInconclusive
//
// # Invariants
//
//  1. The scratch register is overwritten, never removed, and nothing else is written.
//  2. A swap whose outcome is unknown is settled by reading, never counted as lost.
//  3. A round that nobody won is repeated; it says nothing, and its swaps may still be applied
//     until another one from that version is.
//  4. Run ends by its context.
package probe
