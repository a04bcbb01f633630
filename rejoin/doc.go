// Package rejoin is the way back of a loser, as far as it touches the world: the
// calls to the survivor and the change of the local data. What is done when, and
// whether, is decided by internal/failover; every call here is one of its actions.
//
// # At the survivor (its client port, for the hash its peer port)
//
//   - List: a linearizable member list, with what it says of this site (P12).
//   - AddLearner, Remove, Promote: membership calls. They are sent once; what became of
//     them is found out by List, never assumed (F6).
//   - Compare: writes a small key through the survivor until the learner has that revision,
//     then compares the key-space hashes of both at that one revision (P12, F24). The write also cures a
//     learner that waits for ever after a snapshot (etcd-facts, "Stall").
//
// # Here (under the locks)
//
//   - Reset: the member directory is set aside, whole, and replaced in one exchange by
//     one with an empty prepared log under the new member ID (P13). Keeping the log is
//     walsurgery.RewriteID.
//
// Invariants:
//
//  1. Agents never talk to each other: everything goes through etcd's own ports.
//  2. Nothing is deleted: Reset moves the old directory to member.set-aside-….
//  3. At every moment there is a directory `member` with a WAL in it: etcd started in the
//     middle of Reset never takes itself for a new member.
package rejoin
