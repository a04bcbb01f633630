// Package history is what was seen from outside during one run of a pair: each operation of each
// client with its invocation, completion and outcome, what each watch received, and what was found
// at the end, over the API and in the data directories. It is written to a directory as
// it is, so that a check can be made again.
//
// An operation reads some keys and writes some keys, all of one group, at one moment. What it read is
// what was there before its own writes. Values that clients write are unique in a run, so a value
// names its write.
//
// Invariants:
//
//  1. Call is taken before the request is made, Return after its answer came, by one
//     monotonic clock.
//  2. An outcome is OK only if etcd said so, and Failed only if etcd cannot have done it. All
//     else is Unknown, whatever the error said.
//  3. An operation without an answer when its client ended is in the history as Unknown.
package history
