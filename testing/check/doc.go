// Package check judges a history.
//
// # What is checked
//
//	acknowledged   every write that etcd acknowledged is there, at its revision and with its value: in a
//	               linearizable read, in each member's own data over the API, in each member's database on
//	               disk; what is there was written by somebody, once; leases that were granted are known to
//	               both members and on both disks, and those that were revoked are not
//	linearizable   registers and groups of keys, by porcupine, each group by itself
//	reads          whatever an answer showed, of serializable reads too, was there at its revision, as both
//	               disks have it: the same value, revision and version; no answer has a revision that is
//	               nowhere in the end
//	revisions      whoever asks after a write was acknowledged gets a higher revision for a write, no
//	               lower one for a read; no two writes share one; a member's own never go back; a write without an
//	               answer that is on a disk is above what was known when it was asked for
//	watch          each site's stream is in order and without a gap to the end, both are equal, and they
//	               show what was acknowledged and what is on disk, all of it and nothing else
//	equal          both members are voters, of the same list; key spaces hash equal at one
//	               revision, are equal over the API, to a linearizable read and to what is on disk, and
//	               on disk revision by revision
//	record         the record's generations are the claims that the agents' traces show, each by the
//	               member that the trace says
//	replaced       what the last return of each site has replaced stands beside what took its place, with its log,
//	               and nobody has written to it since
//
// Besides, how many serializable reads were stale, and how old, is reported; that is no promise.
//
// # Invariants
//
//  1. What could not be checked, or had nothing to check, is [NotChecked], and not OK.
//  2. A check that takes too long is NotChecked.
//  3. An operation of unknown outcome may have happened at any time after its call, or never;
//     one that failed did not happen.
package check
