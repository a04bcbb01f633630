// Package fault is what goes wrong: a catalogue of scripts, each of which takes a whole pair
// under load, does something to it, waits for what has to follow, and undoes it.
//
// A script asserts what no time can change: that writes are acknowledged again (it waits as
// long as its context lets it), that a write which began while nobody may write was not acknowledged, that a
// record or a membership is as before. Whether anything was lost is for package check to say,
// afterwards and of the whole run.
//
// Invariants:
//
//  1. When a script returned without an error its fault is undone: links are open, processes may run.
//  2. What a script chooses follows from [Stage.Rand] alone.
//  3. A fault that cannot be made here is an error, never left out.
//  4. A fault shows that it was in force: by the claims that have to be won (Fault.Claims), by the packets that its cuts dropped, by
//     the processes that its signals met. One that met nobody is an error.
//  5. A fault that breaks an assumption of docs/design/protocol.md says which, and fails if it did not.
package fault
