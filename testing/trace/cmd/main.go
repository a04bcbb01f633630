package main

import (
	"fmt"
	"os"
	"time"

	"twok/testing/trace"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: cmd TRACE-OF-A TRACE-OF-B")
		os.Exit(2)
	}
	ls, err := trace.ReadFiles(os.Args[1], os.Args[2])
	if err == nil {
		began := time.Now()
		var r trace.Report
		r, err = trace.Check(ls)
		for _, m := range r.Moves {
			fmt.Printf("%s; before %s\n", m.What, &ls[m.Line])
		}
		fmt.Printf("%s; %.2f s\n", r, time.Since(began).Seconds())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
