// Command cmd validates the traces of a pair's two agents, which have to have run on one machine:
//
//	go run ./testing/trace/cmd A.jsonl B.jsonl
//
// It prints the hidden moves of the explanation that it found, and counts. A trace that the model does not
// allow ends it with status 1 and the line. See package trace.
package main
