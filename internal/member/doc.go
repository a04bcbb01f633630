// Package member is what an agent does to the data of its own member.
//
// # The locks
//
// Two locks together keep etcd out of a data directory (protocol.md, "the
// locks"): the flock of member/snap/db, which this package takes, and the locks
// of the WAL segments, which wal.Open takes. The first makes a restarted etcd
// wait; only the second proves that etcd is out.
//
// How etcd waits. bbolt 1.3.12, 1.4.3 and 1.5.0 (etcd 3.5, 3.6, 3.7) do not queue
// in the kernel: they call flock(LOCK_EX|LOCK_NB) every 50 ms, without a limit
// since etcd sets no Options.Timeout (bbolt bolt_unix.go, flock; etcd
// storage/backend/backend.go, newBackend). etcd opens the database before it reads the WAL.
// Hence:
//
//   - A flock(LOCK_EX) that sleeps in the kernel is woken when the old etcd ends, before a new one
//     gets as far as its first try (measured on three versions, etcd restarted by a shell at once:
//     granted 2 to 3 ms after SIGKILL, 16 ms at most; the next etcd seen to wait after 25 to 64 ms;
//     90 of 90). Polling at bbolt's own interval lost in the second round.
//   - The lock is not handed over, though: the kernel wakes the sleeper, which tries again. An etcd
//     that waited already may win that race. Stop it and wait again: see [Acquire].
//   - After Release a waiting etcd goes on within 50 ms, with the WAL as it is then.
//   - A waiting etcd listens on its ports already, accepts connections and answers nothing.
//   - A waiting etcd has opened the database and seen whether there is a WAL. If the
//     whole member directory is exchanged under it, it goes on with the old database
//     and the new WAL and serves the mixture (seen on 3.5.35, 3.6.16, 3.7.3). Who replaces more than the WAL ends every process that has the
//     locked inode open ([Lock.Inode], etcdproc.Evict) after the exchange and before Release.
//
// Invariants:
//
//  1. A *Lock is handed out only while its descriptor holds LOCK_EX and is the file at
//     the path. Otherwise the caller gets ErrReplaced, ErrHeld or ErrLost.
//  2. Nothing in this package writes to, creates or truncates the database.
//  3. No lock is granted unnoticed. A queued request that is abandoned ends at once: its
//     descriptor number is pointed at an O_PATH file and its thread gets SIGURG; the
//     kernel restarts the flock (Go's handlers have SA_RESTART), which then fails with EBADF.
//     Closing alone does not wake a sleeping flock(2).
//  4. Every descriptor is close-on-exec: no child of the agent inherits a lock. Release unlocks
//     explicitly, so a child between fork and exec cannot prolong it.
//  5. bbolt makes the lock shared while Lock.Backend is open (flock replaces the lock of the same
//     open file). Its Close makes it exclusive again, or fails with ErrLost.
//  6. Every wait ends with its context.
//  7. One agent per data directory (P20): AgentLock. The file moves with the directory, so set
//     aside <dataDir>/member, never the data directory itself.
//
// # What the data say
//
// [Read] fills failover.Data under both locks; [PeekDir] tells a starting agent who it is. Sources:
//
//   - WAL (walsurgery): member and cluster ID, hard state, end of the log, snapshot record.
//   - bbolt `meta`: consistent_index, the applied index. Never meta.confState: it is
//     set apart from the index, and lagged after a promotion (etcd-facts.md).
//   - bbolt `members` and `members_removed`: the applied configuration, in step with
//     consistent_index. Proof: apply sets the applying index first, the membership store takes the batch
//     transaction's lock, whose hook makes that index the consistent one, and puts the member before it
//     unlocks; a commit needs the lock and writes both (etcd 3.5.35, 3.6.16, 3.7.3: etcdserver/server.go apply
//     and getTxPostLockInsideApplyHook, membership store, backend/batch_tx.go, BackendHooks).
//     TestMembersMatchAppliedIndex shows it.
//   - bbolt `key`: the newest revision of [TokenKey], by a scan from the newest revision
//     backwards that compares the key alone.
//   - The entries after consistent_index: every operation on TokenKey and every configuration
//     change, committed or not.
//
// Invariants, continued:
//
//  8. Reading changes nothing (a torn end is cut off by walsurgery.Open, before).
//  9. What cannot be read, or contradicts itself, sets Data.Problem; what is not understood
//     sets Token.Bad, Tail.Bad or Confs.Unknown. Either denies (P11).
//  10. A damaged database ends in ErrDatabase: no panic, no fault, no endless walk, no
//     allocation beyond one value. bbolt's own cursor does not promise that (a page that points to an ancestor
//     uses up all memory), so bbolt opens the file and chooses its metadata page, and the
//     pages are read with checks (tree). They have no checksum: damage that leaves a
//     well-formed tree cannot be noticed here.
//  11. A lock that was lost while reading is ErrLockLost, whatever else was found.
package member
