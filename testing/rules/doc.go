// Command rules prints, for each rule P1–P20 and each assumption of
// docs/design/protocol.md, the tests that name it, and likewise the failures from the field F1–F38. It
// fails when a rule has no test and is not listed below as later work, and when a test names none.
//
// A test names its rules in the last paragraph of its doc comment:
//
//	// Rules: P4, P7; F11.
//	// Rules: none (why).
package main
