// Package sim runs two agents on the real raft library, deterministically.
//
// What is real: go.etcd.io/raft/v3 (RawNode and MemoryStorage, configured as
// etcd's raftConfig does), internal/failover (Step, Eligible, KeepLog, FoldConfs), the record's codec,
// and a linearizability checker. What is modelled: the etcd server around raft, after its source
// (etcdserver/raft.go, server.go, bootstrap.go), the shell around the core, after internal/agent, the
// network, disks, clocks, processes and the arbiter.
//
// # The model of etcd
//
//   - A Ready is worked off in etcd's order: hand to apply; the leader sends; snapshot record, sync; entries,
//     then HardState, synced only if entries, term or vote are new (wal.Save); memory storage; a follower sends, after the
//     configuration changes in it were applied; Advance. Raft steps messages meanwhile. A crash can come between any two.
//   - The WAL is a sequence of records; a crash keeps a prefix of those not yet synced.
//   - Apply runs beside it and can lag. The database is committed in batches; consistent_index, members and
//     token travel in one. Restarts replay from the WAL's newest valid snapshot, as 3.7 does or as 3.5 and 3.6 do.
//   - Log compaction, merged snapshots with the database in them, learners, publication before the client port opens, the end of a
//     process that learns that it was removed.
//   - A message may be lost, late, reordered, or come twice, but for proposals, which no transport of etcd repeats.
//
// # What is checked
//
//  1. Committed histories are prefixes of one another: every entry that any member applies is compared with what was applied at
//     that index before. Hence no acknowledged write is lost.
//  2. One writer: no leader commits after another site's leader of a later term has committed.
//  3. Reads and writes of clients are linearizable, unknown outcomes included.
//  4. Raft never panics, etcd can start on what it finds, records decode.
//  5. With forced claims (P18) 1 to 3 hold in each history: a forced append begins a new one, of which the log before it is a part
//     (history.go). Over all of them: no two entries of any two logs share index and term; each began with its own claim in the record; no
//     unforced claim and no token of the record's generation comes out of one that was given up; nothing is given up that a pair acknowledged that was
//     whole under the order; an overridden survivor stops answering soon after its agent has read the record, and does not return
//     with its log. What other histories acknowledged is counted.
//  6. When the faults end the pair becomes whole within a bound, its key spaces and member lists are equal; or it ends in a state
//     of testdata/refusals, which names why only an operator can go on.
//
// # What is left out
//
// Drains, pauses and rolled-back stores (the explorer has them); a third member beside forced claims (-sim.third); mixed versions, alarms and defrags; etcd's refusal of work
// when its apply is far behind, and the stalled publication after it; torn sectors within a record. Users wait with a
// membership change until the leader has applied what it committed: a lone leader with a lagging apply would take two on top of
// each other, which is plain etcd's own way to split (etcd-facts). Log compaction stays behind what raft has advanced to.
//
// # Determinism
//
// A schedule (seed, start, events) decides everything: no goroutine, no clock, no map iteration; raft's election timeouts are drawn from
// crypto/rand.Reader, which a run replaces. So only one run at a time in a process.
//
// # Switches
//
// Off takes a rule away in the shell or in the data that the core is shown. The core has no
// switches. Each must lead to a violation.
package sim
