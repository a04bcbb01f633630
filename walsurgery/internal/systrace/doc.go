// Package systrace runs a program under ptrace, lists what it changes below one
// directory, and kills it or makes a call fail at any of these calls. It is for
// tests of crash safety: the list of places is what the program really does, not
// what somebody wrote down.
//
// # Calls
//
// An Op is one system call that can change a file or directory below the root, or
// one that makes such changes durable: writes and copies of all kinds, truncation,
// allocation, fsync and its kin, rename, link, unlink, mkdir, a change of owner or
// mode, an open that may create or truncate, a shared writable mapping. With
// Config.Reads it is also one that looks below the root. A write to the standard
// output is listed too, as a reply: it shows what had been done before the program
// said so. Linux on amd64 and arm64.
//
// # Invariants
//
//  1. Every thread and child of the program is traced, from its first instruction
//     to its end. None outlives Run or the process that called it.
//  2. An Op is named by call, path and the number of its occurrence there
//     (Op.Key), not by its place in the list: threads run in any order, but each
//     file is worked on in one order. A fault whose key does not come up is
//     reported (Result.Fired).
//  3. KillBefore: the call is not made. KillAfter: it is made and the program does
//     not run another instruction in that thread. Other threads die wherever they are.
//  4. Fail: the call is not made and returns the error. Short: a smaller length
//     is passed to the kernel, and what the kernel does with it is real.
//  5. Where tracing is not permitted Run returns an error that says so.
package systrace
