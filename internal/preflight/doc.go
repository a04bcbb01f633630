// Package preflight judges whether a member can be armed: everything that a claim, or the return after
// one, will need, looked at while nothing is wrong yet.
//
// # Structure
//
// [Facts] are what somebody saw: plain values and errors. [Run] judges them by a fixed list of checks, each a
// function of the facts alone, and gives one [Result] a check, in the list's order. The functions whose names begin with Look
// see those facts that need no agent: directories, locks, certificates, a port. internal/agent adds what
// it sees of etcd and of the arbiter, once for `twok agent --check` and again and again while an agent runs.
//
// # Invariants
//
//  1. A fact that could not be seen refuses: "not checked" is never a pass. Where another check refuses for
//     the same cause already (the other member does not answer, so its certificates were not seen) it is a warning.
//  2. Nothing here decides a claim. What the core knows (internal/failover) it judges by itself, and its
//     reasons are shown in their own words. A check that [Check.Bars] is about what the core does not look at.
//  3. Looking disturbs no etcd: no lock is taken on a file that etcd locks, `wal` and `member` are not
//     touched. What has to be tried is tried in a scratch directory beside them, which is removed afterwards. One that a killed
//     look has left is removed by the next one that is made there a minute later; it holds nothing but names of ours.
//  4. Every refusal and warning has a remedy, and every check an anchor in docs/operations.md (testing/docs).
package preflight
