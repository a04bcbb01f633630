// Package lostwrites lists what a member directory's own history had committed beyond the point at which another
// history overrode it: after a forced claim (P18) the directory of the overridden survivor is set aside whole, and an operator
// wants to know what is in it that nobody else has. `twok lost-writes` is its command.
//
// # What is lost
//
// The fork is the first index of the directory's log that the other history does not have ([Fork]). An entry from there on is
//
//   - committed, if it is not above max(HardState.Commit, consistent_index);
//   - possibly committed otherwise: the commit index reaches the disk late (etcd-facts: up to as many entries as clients were in
//     flight), and a lone voter commits whatever it has synced. Listing.Alone says whether the member was one.
//
// # Where the fork lies
//
// Three sources: the arbiter's record, the fork as an operator read it there, or the other side's data directory. The
// other side's log may be longer than the fork of a claim that this side made: with entries that never were committed. Hence this
// side's own claims since the pair was last whole count too, unless the record's claim end or the other log shows that both
// have them. Too low a fork lists too much, which Compare shows to be the same; too high a one would hide writes.
//
// # How entries become changes
//
//   - What was applied (up to consistent_index) is taken from the database's own MVCC history: exact values, leases, tombstones. The
//     revision at the fork is found by laying the log's entries against the revisions, backwards from consistent_index, whose
//     revision is known: each entry makes one main revision or none, and what it can have made is known without the
//     state that it met (align.go). Where permissions or identical writes leave a doubt, the older revision counts and the
//     changes between are marked Perhaps.
//   - What the database has compacted is taken from the WAL, where one entry can have made the revision in one way only. A
//     transaction that names a revision as a key's mod revision is taken at its word there. The rest is Unknown, or,
//     where the WAL was purged as well, a note.
//   - Where the WAL no longer reaches back to the fork, everything since its first entry is listed as lost and everything since the
//     pair token, which is older than the fork, as Perhaps.
//   - What was not yet applied is evaluated in order on top of the database, in memory, as etcd would: compares, nested
//     transactions, leases, users and roles, alarms (eval.go, auth.go; after etcd 3.7.3, which agrees with 3.5.35 and 3.6.16). Quotas are
//     not: etcd applies a write that exceeds its quota, and refuses only once the alarm is in the log.
//
// # Invariants
//
//  1. Nothing in the directory changes, bit for bit, nor does a modification time: no lock is taken, no bbolt opens the
//     database; it is read page by page (member.DBFile) and the WAL by walsurgery.Inspect.
//  2. Every write that was acknowledged beyond the fork is listed, or a note or Unknown says which could not be told. A write
//     before the fork is listed only as Perhaps.
//  3. A damaged directory is an error: of walsurgery for the WAL, member.ErrDatabase for the database. Damage that leaves well-formed
//     pages cannot be noticed.
//  4. The script never overwrites what the cluster wrote since it was looked at: each transaction is guarded by the key's
//     revision. twok's own keys are never replayed.
//
// Memory: some 200 bytes for each revision in the database, and the keys; values stay on disk.
package lostwrites
