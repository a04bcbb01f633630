// Package arbitertest is the conformance suite of arbiter.Register (A1, P1), the
// tools to run it on a real store, real web servers with their documented
// configurations, and a reference register in memory.
//
// A store's test calls Run with a function that makes a Fixture: a fresh
// register without a value, and the ways to reach and to disturb it. What a store
// cannot do is said in Fixture.Cannot with the reason and skips the cases that
// need it; a way that is neither given nor excused fails them.
//
// Each case is a function that returns an error, so that the suite itself can be
// tested: bite_test.go runs it on registers with one fault each.
//
// The suite can only disprove. It races because there are stores that answer
// every sequential request rightly and lose half the writes under concurrency.
//
// # What the suite asserts
//
//   - C1 A swap is applied if and only if the register was at prev; of many from
//     one version exactly one is, and only that one gets nil.
//   - C2 The class never says more than is known: a lost reply is unknown, never
//     conflict and never nil for somebody else's value; conflict, unavailable,
//     forbidden and misconfigured were not applied and never are later.
//   - C3 A value that any client was told about is read by every client from then
//     on, whole and byte for byte, with the version that belongs to it.
//   - C4 Absent, empty, white space, garbage and forbidden stay five answers.
//   - C5 One call is one request: nothing is retried.
//   - C6 A call ends when its context does.
package arbitertest
