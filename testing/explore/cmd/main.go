// Command cmd explores the core (package explore).
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime/pprof"
	"strings"
	"time"

	"twok/testing/explore"
)

func main() {
	var o explore.Options
	seeds := flag.String("seeds", "", "names of starts, with commas; empty: all")
	off := flag.String("off", "", "rules that are off")
	flag.BoolVar(&o.Third, "third", false, "a user adds and removes a third member")
	flag.BoolVar(&o.Operators, "operators", false, "drains, removals by hand")
	flag.BoolVar(&o.Rare, "rare", false, "lost memory, confirmations that become due")
	flag.BoolVar(&o.Compaction, "compaction", false, "logs that are read from a snapshot")
	flag.IntVar(&o.Depth, "depth", 0, "moves after the start")
	flag.IntVar(&o.States, "states", 0, "how many states at most")
	flag.IntVar(&o.Longest, "longest", 12, "log entries above what everybody has")
	d := flag.Duration("for", time.Minute, "how long")
	prof := flag.String("profile", "", "write a CPU profile")
	walk := flag.Bool("walk", false, "walk at random")
	liveness := flag.Bool("live", false, "check liveness from every state")
	rseed := flag.Int64("seed", 1, "of the walk")
	table := flag.Bool("table", false, "switch each rule off and print what was found as markdown; -for is the time for each")
	only := flag.String("only", "", "with -table: rules whose names begin so")
	save := flag.String("save", "", "with -table: write the schedules to this directory")
	flag.Parse()
	var err error
	if o.Off, err = explore.ParseSwitches(*off); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if *seeds != "" {
		o.Seeds = strings.Split(*seeds, ",")
	}
	if *prof != "" {
		f, _ := os.Create(*prof)
		pprof.StartCPUProfile(f)
		defer pprof.StopCPUProfile()
	}
	if *table {
		var rows []explore.Row
		for _, c := range explore.Cases() {
			if !strings.HasPrefix(c.Off.String(), *only) {
				continue
			}
			row := c.Try(*d, *rseed)
			rows = append(rows, row)
			if row.Found != nil && *save != "" {
				row.Found.Head = append([]string{"Off: " + c.Text + "."}, row.Found.Head...)
				name := *save + "/off_" + strings.ReplaceAll(c.Off.String(), " ", "_") + ".txt"
				if err := os.WriteFile(name, []byte(row.Found.String()), 0o644); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
			}
			explore.WriteTable(os.Stderr, rows[len(rows)-1:])
		}
		explore.WriteTable(os.Stdout, rows)
		return
	}
	o.Until = time.Now().Add(*d)
	if *walk {
		begin := time.Now()
		o.Longest = 14
		r, err := explore.Walk{Options: o, RandSeed: *rseed, Live: *liveness}.Run()
		fmt.Printf("%d walks, %d moves, %d cells, %.1fs\n", r.Walks, r.Steps, r.Cells, time.Since(begin).Seconds())
		if err != nil {
			fmt.Println(err)
		}
		if r.Found != nil {
			fmt.Print(r.Found)
			r.Found.Replay(os.Stdout)
		}
		return
	}
	live := explore.NewLiveness(o.Off)
	if *liveness {
		o.Each = live.Check
	}
	o.Level = func(depth int, r *explore.Result) {
		fmt.Printf("depth %2d: %9d states, %10d moves, %6.1fs\n", depth, r.States, r.Steps, r.Took.Seconds())
	}
	search := explore.NewSearch(o)
	r, err := search.Run()
	fmt.Printf("%d states, %d moves, %d complete levels, %d cut off, %.1fs, complete %v\n", r.States, r.Steps, r.Depth, r.CutOff, r.Took.Seconds(), r.Complete)
	if err != nil {
		fmt.Println(err)
	}
	if *liveness {
		fmt.Printf("%d whole, %d lead alone\n%s", live.Whole, live.Leads, live.Ends())
		for _, b := range live.Bad {
			fmt.Println(b.Prop, b.Text)
			if way, err := search.Way(b.ID); err == nil {
				way.Ends = b.Prop
				fmt.Print(way)
				way.Replay(os.Stdout)
			}
		}
	}
	if r.Found != nil {
		fmt.Print(r.Found)
		r.Found.Replay(os.Stdout)
	}
}
