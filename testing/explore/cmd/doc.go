// Command cmd explores the core of twok (package explore).
//
//	go run ./testing/explore/cmd -proof -for 2m       what make proof runs; exit code 1 after a violation
//	go run ./testing/explore/cmd -proof -for 60m -state FILE   adds up the totals of several runs in FILE
//	go run ./testing/explore/cmd -table -for 40s      switch each rule off, print what was found as markdown
//	go run ./testing/explore/cmd -replay FILE         a schedule, state by state
//	go run ./testing/explore/cmd [-walk] [-live] [-off "P4.names"] [-seeds whole,returned] …   one exploration
package main
