// Package agent is the loop around the pure core: it watches one member's etcd,
// feeds internal/failover with what it sees, and carries out what that decides.
//
// # Structure
//
// One goroutine (loop) owns the core's state. The watcher keeps looking at etcd and at the
// other member and hands over its latest observation at each tick. Each action
// runs in a goroutine of its own, with a deadline, and answers with exactly one event. At most one
// arbiter action and one site action run at a time; the section (the locks and
// the open WAL) belongs to whichever site action runs.
//
// # Invariants
//
//  1. Every action is answered, whatever happens, within its deadline and a bit.
//  2. A claim is stored beside the data before its swap is sent (P16). When that
//     fails, no swap is sent.
//  3. The agent's end changes no membership (F4). A section that is open when the
//     agent is told to stop is completed first, as far as its deadline allows.
//  4. The memory file may be lost: no role depends on it (F9).
//
// What is written for people decides nothing and delays nothing: a post-mortem file after each surgery and each return
// (PostMortemDir).
package agent
