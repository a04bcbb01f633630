// Package arbiter is the contract between twok and the one record that decides
// which member of a pair survives: Register (an atomic compare-and-swap on one
// value), its five error classes, and Record with its codec.
//
// Nothing here logs, and nothing here knows a store. Each store is a package
// below this one, and all of them pass the one suite in arbitertest.
package arbiter
