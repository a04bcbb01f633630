// Command cmd explores the core of twok (package explore).
//
//	go run ./testing/explore/cmd -proof -for 2m       what make proof runs; exit code 1 after a violation
//	go run ./testing/explore/cmd -proof -for 60m -state FILE   adds up the totals of several runs in FILE
//	go run ./testing/explore/cmd -table               what is recorded for each rule that is taken away, as markdown
//	go run ./testing/explore/cmd -hunt -for 60s -save testing/explore/testdata   look for it again, record what is shorter
//	go run ./testing/explore/cmd -replay FILE         a schedule, state by state
//	go run ./testing/explore/cmd [-walk] [-live] [-off "P4.names"] [-seeds whole,returned] …   one exploration
package main
