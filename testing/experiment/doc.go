// Package experiment measures what docs/experiments.md reports: one named experiment for each
// section, each in cells of a case and a release line of etcd, on real etcds and the built twok.
//
// A session makes some runs of one cell, and leaves below the output directory
//
//	NAME/VERSION/CASE/SESSION/     raw logs
//	NAME/VERSION/CASE/runs.jsonl   one JSON object (Run) for each run, appended as it ends
//	summary.json                   all cells, made again from all runs after each session
//
// so that runs add up over any number of invocations, and any number of them may be killed.
//
// Invariants:
//
//  1. A run that failed is a Run with Error set. It is in the summary, and in no distribution.
//  2. A value that was not measured is missing in Run.Values; it is never zero.
//  3. Nothing is asserted of a time.
package experiment
