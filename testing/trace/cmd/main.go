package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"twok/testing/trace"
)

func main() {
	users := flag.Bool("users", false, "people add and remove members")
	disks := flag.Bool("disks", false, "disks are replaced, and etcd begins anew on them with the flags of its first start")
	edits := flag.String("edits", "", "what people did to the register, see trace.Edit")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: cmd [--users] [--disks] [--edits FILE] TRACE-OF-A TRACE-OF-B")
		os.Exit(2)
	}
	ls, err := trace.ReadFiles(flag.Arg(0), flag.Arg(1), *edits)
	if err == nil {
		began := time.Now()
		var r trace.Report
		r, err = trace.Check(ls, trace.Options{Users: *users, Disks: *disks})
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
