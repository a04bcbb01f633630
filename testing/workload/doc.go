// Package workload is the clients: some at each site, each asking its own site's member only and
// connecting from that site's network. Each makes one operation at a time, chosen by a seeded
// generator, and takes it down in a history. Each site also has a watch of the whole key space.
//
// Keys:
//
//	u/CLIENT/N    written once
//	l/CLIENT/N    written once, under a lease that is later revoked, or kept
//	r0/v … r3/v   registers: put, compare-and-swap, delete, read
//	t0/x … t1/z   groups of three keys: transactions and reads
//
// Invariants:
//
//  1. Values are unique in a run.
//  2. What each operation of a client is follows from the seed, the client's number and what it
//     read before; when it is made follows from the machine.
//  3. No operation is repeated: an error ends it, and the client goes on with the next one.
package workload
