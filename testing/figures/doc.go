// Figures runs the demo many times and prints tables.
//
//	go run ./testing/figures [flags]
//
// It runs twok demo (--twok, default bin/twok) once for each of --versions and
// --cuts, with --rounds rounds of one pair and etcd's default timing, and prints
// for each the medians and maxima of the time from the cut to the first write and
// from the heal to whole, and how often the former leader won. With --rest it
// measures a whole pair's agents instead: memory and CPU of a minute without load. On a real store:
//
//	go run ./testing/tools/store s3 go run ./testing/figures --versions 3.7 --cuts link --rounds 20
//
// The agents' trace of every run is held against the model (testing/trace). The status is 1 if
// any run lost a write, did not become whole, did what the model does not allow or failed otherwise; the others still run, and the failed run's timeline is printed.
package main
