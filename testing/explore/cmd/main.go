package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"twok/testing/explore"
)

type command struct {
	o                                     explore.Options
	seeds, off, only, save, replay, state string
	d                                     time.Duration
	seed                                  int64
	proof, walk, live, table, hunts       bool
}

func main() {
	var c command
	flag.StringVar(&c.seeds, "seeds", "", "names of starts, with commas; empty: all")
	flag.StringVar(&c.off, "off", "", "rules that are off")
	flag.BoolVar(&c.o.Third, "third", false, "a user adds and removes a third member")
	flag.BoolVar(&c.o.Operators, "operators", false, "drains, removals by hand")
	flag.BoolVar(&c.o.Rare, "rare", false, "lost memory, lost votes, databases ahead of the hard state, confirmations that become due")
	flag.BoolVar(&c.o.Compaction, "compaction", false, "logs that are read from a snapshot")
	flag.IntVar(&c.o.Depth, "depth", 0, "the highest cost of a schedule")
	flag.IntVar(&c.o.States, "states", 8_000_000, "how many states at most (about 0.5 kB each)")
	flag.IntVar(&c.o.Longest, "longest", 14, "log entries above what everybody has")
	flag.DurationVar(&c.d, "for", time.Minute, "how long; with -hunt, for each rule")
	flag.BoolVar(&c.walk, "walk", false, "walk at random")
	flag.Int64Var(&c.seed, "seed", 1, "of walks")
	flag.BoolVar(&c.live, "live", false, "check liveness, from every state or where each walk ends")
	flag.BoolVar(&c.table, "table", false, "print what is recorded for each rule that is taken away, as markdown")
	flag.BoolVar(&c.hunts, "hunt", false, "look for schedules for each rule that is taken away; -save testing/explore/testdata records them")
	flag.StringVar(&c.only, "only", "", "with -hunt: rules whose names begin so; missing: those without a schedule")
	flag.StringVar(&c.save, "save", "", "directory for the schedules that are found")
	flag.StringVar(&c.replay, "replay", "", "replay this schedule")
	flag.BoolVar(&c.proof, "proof", false, "everything, within -for")
	flag.StringVar(&c.state, "state", "", "with -proof: a file with the totals, to go on from")
	flag.Parse()
	if err := c.run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "explore:", err)
		os.Exit(1)
	}
}

func (c *command) run(out io.Writer) (err error) {
	if c.o.Off, err = explore.ParseSwitches(c.off); err != nil {
		return err
	}
	if c.seeds != "" {
		c.o.Seeds = strings.Split(c.seeds, ",")
	}
	switch {
	case c.replay != "":
		return replay(out, c.replay)
	case c.proof:
		return c.prove(out)
	case c.table:
		return c.tabulate(out)
	case c.hunts:
		return c.hunt(out)
	}
	c.o.Until = time.Now().Add(c.d)
	if c.walk {
		return c.wander(out)
	}
	return c.search(out)
}

func replay(out io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	s, err := explore.ParseScript(f)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	_, err = s.Replay(out)
	return err
}

var errViolation = errors.New("a property is violated, see the schedule")

func (c *command) found(out io.Writer, s *explore.Script) error {
	fmt.Fprint(out, s)
	if _, err := s.Replay(out); err != nil {
		return err
	}
	return errViolation
}

func (c *command) search(out io.Writer) error { return c.searchInto(out, &explore.Result{}) }

func (c *command) searchInto(out io.Writer, r *explore.Result) error {
	live := explore.NewLiveness(c.o.Off)
	live.ByHand = c.o.Operators
	if c.live {
		c.o.Each = live.Check
	}
	c.o.Level = func(depth int, r *explore.Result) {
		fmt.Fprintf(out, "cost %2d: %9d states, %10d moves, %6.1fs\n", depth, r.States, r.Steps, r.Took.Seconds())
	}
	s := explore.NewSearch(c.o)
	res, err := s.Run()
	*r = res
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d states, %d moves; every schedule of cost up to %d; %d states not entered, their logs are too long; %.1fs\n", r.States, r.Steps, r.Depth, r.CutOff, r.Took.Seconds())
	if c.live {
		fmt.Fprintf(out, "the pair becomes whole from %d states, a single member leads in %d\n%s", live.Whole, live.Leads, live.Ends())
		for _, b := range live.Bad {
			way, err := s.Way(b.ID)
			if err != nil {
				return err
			}
			way.Ends, way.Head = b.Prop, []string{b.Prop + ": " + b.Text}
			if err := c.found(out, way); !errors.Is(err, errViolation) {
				return err
			}
		}
		if len(live.Bad) > 0 {
			return errViolation
		}
	}
	if r.Found != nil {
		return c.found(out, r.Found)
	}
	return nil
}

func (c *command) wander(out io.Writer) error {
	begin := time.Now()
	r, err := explore.Walk{Options: c.o, RandSeed: c.seed, Live: c.live}.Run()
	fmt.Fprintf(out, "seed %d: %d walks, %d moves, %d kinds of states, %.1fs\n", c.seed, r.Walks, r.Steps, r.Cells, time.Since(begin).Seconds())
	if err != nil {
		return err
	}
	if r.Found != nil {
		return c.found(out, r.Found)
	}
	return nil
}

func (c *command) tabulate(out io.Writer) error {
	var rows []explore.Row
	for _, k := range explore.Cases() {
		row, err := k.Recorded()
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	explore.WriteTable(out, rows)
	return nil
}

// hunt looks for a schedule for each rule that is taken away. What is shorter than the
// recorded one is saved; where there is none, the effort adds up.
func (c *command) hunt(out io.Writer) error {
	path := filepath.Join(c.save, "effort.json")
	efforts := map[string]explore.Effort{}
	if b, err := os.ReadFile(path); err == nil {
		if err := json.Unmarshal(b, &efforts); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, k := range explore.Cases() {
		old, err := k.Recorded()
		known := err == nil && old.Found != nil
		if (c.only != "missing" && !strings.HasPrefix(k.Off.String(), c.only)) || (c.only == "missing" && known) {
			continue
		}
		row := k.Hunt(c.d, c.seed)
		if row.Err != nil {
			return row.Err
		}
		explore.WriteTable(out, []explore.Row{row})
		if c.save == "" {
			continue
		}
		switch {
		case row.Found != nil && (!known || len(row.Found.Moves) < len(old.Found.Moves)):
			row.Found.Head = append([]string{"Off: " + k.Text + "."}, row.Found.Head...)
			delete(efforts, k.Name())
			if err := os.WriteFile(filepath.Join(c.save, "off_"+k.Name()+".txt"), []byte(row.Found.String()), 0o644); err != nil {
				return err
			}
		case row.Found == nil && !known:
			e := efforts[k.Name()]
			efforts[k.Name()] = explore.Effort{States: max(e.States, row.States), Moves: e.Moves + row.Moves}
		}
	}
	if c.save == "" {
		return nil
	}
	b, err := json.MarshalIndent(efforts, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
