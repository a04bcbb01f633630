// Package layout has no code, only the test of the repository's layout:
//
//  1. Every package has a doc.go whose comment is its contract.
//  2. Imports point inwards: cmd, internal/agent, internal/failover, arbiter.
//     internal/failover imports the standard library, arbiter and nothing else.
//  3. Stores, the packages below arbiter/, import of this module arbiter only;
//     their tests arbitertest as well.
//  4. Nothing outside testing/ imports testing/.
//  5. Outside tests only walsurgery imports raftpb and walpb.
//  6. internal/lab is imported by cmd/twok/demo*.go, tests and testing/ only.
package layout
