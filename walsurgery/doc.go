// Package walsurgery reads, appends to and rewrites the write-ahead log of a
// stopped etcd member. It is the only code outside tests that knows raftpb and
// walpb; its API has types of its own, because those two change between etcd's
// minor versions. One build handles the logs of etcd 3.5, 3.6 and 3.7.
//
// # Format (etcd server/storage/wal)
//
// A WAL is a directory of segments "<seq>-<first index>.wal", 16 hex digits
// each. A segment is a sequence of frames: 8 bytes little-endian, of which the
// low 56 bits are the record's length and the top byte is 0x80|padding if the
// record is padded to 8; the record (walpb.Record: type, crc, data); padding. A
// zero length ends a segment, preallocated space follows. The CRC-32C runs over
// the data of all records but the crc records; a crc record at the head of each
// segment carries the running value, a metadata record (member and cluster ID)
// follows it. Entries, hard states and snapshot records come in the order in
// which they were saved: a later entry overwrites those from its index on.
//
// # Operations
//
//   - Inspect: read only, also beside a running etcd.
//   - Open, Plan, Apply: the survivor's append (P8, P9).
//   - Open, Plan, ApplyStaged: that of a forced claim, in a copy, in one step (P18).
//   - RewriteID: the same log under another member ID (P12).
//   - CreateEmpty: the prepared log of an empty member (P13).
//
// # Invariants
//
//  1. Inspect, ReadMetadata, Locked and FreeSpace never create, repair, lock or
//     change anything.
//  2. No input makes this package panic or exit the process. etcd's storage
//     code may call logger.Fatal or Panic; both become an error here.
//  3. A failure is one of the sentinels below or an error of the operating
//     system. A CRC error or a malformed record is ErrCorrupt, except in the
//     last frames of the last segment where etcd itself takes it for a torn
//     write. Nothing that could not be read is passed over: an entry that cannot
//     be decoded is reported as KindOther, and callers deny.
//     etcd takes a frame longer than its file, or a zero length, for the end of the
//     log wherever it is in the last segment. Here it is ErrCorrupt when records
//     follow that can only have been written after a sync (damage.go). Damage with
//     nothing but one unsynced save behind it cannot be told from a torn write.
//  4. Apply appends only. At every instant the log on disk is one that Raft
//     could have written itself: etcd started on it neither panics nor loses a
//     committed entry, and a new Open, Plan, Apply completes it (P9). A log on
//     which an append would not be legal is refused by Plan (Summary.Inconsistent).
//  5. RewriteID and ApplyStaged leave either the old log or the complete new one under the
//     WAL's name, never neither, never a mixture. They delete nothing but their own
//     unfinished copies; the replaced log stays as "<wal>.before-<old ID>".
//     RewriteID called again after a kill at any step completes; what a killed ApplyStaged
//     leaves beside the log the next one settles, or Settle; SettleRewrite does so for RewriteID.
//  6. Open, ApplyStaged, RewriteID and CreateEmpty take etcd's own WAL lock, which proves
//     that etcd is out; they do not keep a restarted etcd waiting. The caller
//     holds the flock of member/snap/db for that (protocol.md, "the locks").
//     After an error they are released too. But where etcd's code cannot stat or
//     seek a file that it has just locked, the garbage collector does it, within two
//     minutes; and where it cannot open the directory, the end of the process. Until
//     then Open returns ErrLocked.
//  7. Files made here belong to the owner of the files beside them, so that an
//     etcd under another user still opens them.
package walsurgery
