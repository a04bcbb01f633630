package explore

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// Case is one rule that is switched off.
type Case struct {
	Off   Switches
	Opt   Options
	Text  string // what is off, in words
	Stays string // if no schedule is known: why the rule stays
}

// Cases lists the rules that can be switched off here, in the order of the protocol.
func Cases() []Case {
	o := Options{}
	rare := Options{Rare: true}
	third := Options{Third: true}
	ops := Options{Operators: true}
	back := Options{Seeds: []string{"learner", "promoting", "returned"}}
	late := Options{Operators: true, Seeds: []string{"late"}}
	return []Case{
		{Off: Without(A0), Opt: Options{Third: true, Rare: true}, Text: "a configuration is in force before its commit is on disk",
			Stays: "etcd promises it; the surgery's removal is committed on disk by the append itself"},
		{Off: Without(P1), Opt: o, Text: "the store takes every swap"},
		{Off: Without(P1Nonce), Opt: o, Text: "a claim of unknown outcome counts as won if the record names this member"},
		{Off: Without(P2), Opt: o, Text: "a claim keeps the generation"},
		{Off: Without(P4Gen), Opt: o, Text: "P4 (a): the token's generation"},
		{Off: Without(P4Applied), Opt: back, Text: "P4 (a): the token may be in the tail only",
			Stays: "whoever has the token's entry in its log has all before it, as P14 writes it; it guards against a token that P14 did not write"},
		{Off: Without(P4Names), Opt: late, Text: "P4 (a): the token's names (schedule made by hand)"},
		{Off: Without(P4Term, P14Conn), Opt: late, Text: "P4 (a): the token entry's term",
			Stays: "the names cover it, since an ID is never used twice"},
		{Off: Without(P4End, A2), Opt: rare, Text: "P4 (b): the claim's log end, on a disk that loses what it synced"},
		{Off: Without(P4Whole, A2), Opt: rare, Text: "P4 (b): the whole note, on such a disk"},
		{Off: Without(P4Tail), Opt: rare, Text: "operations on the token's key in the tail", Stays: "defence in depth: P4 (a) asks for the record's generation, P5 for the configuration"},
		{Off: Without(P5), Opt: third, Text: "the last configuration alone counts"},
		{Off: Without(P5Pair), Opt: third, Text: "a third voter does not matter"},
		{Off: Without(P5Log), Opt: Options{Third: true, Compaction: true}, Text: "the log need not reach back to the token's entry"},
		{Off: Without(P7Lock), Opt: o, Text: "data are read and the swap is made while etcd runs"},
		{Off: Without(P7Order), Opt: o, Text: "append, then swap"},
		{Off: Without(P7Own), Opt: o, Text: "one appends on any claim in the own name"},
		{Off: Without(P8Term), Opt: o, Text: "the append in the same term"},
		{Off: Without(P8Truncate), Opt: o, Text: "the append drops the tail"},
		{Off: Without(P10Confirm), Opt: rare, Text: "a learner before the first confirmation", Stays: "the confirmation is the evidence against rolled-back data (A2 broken)"},
		{Off: Without(P10Index, A2), Opt: rare, Text: "the confirmation, on a disk that loses what it synced"},
		{Off: Without(P13), Opt: rare, Text: "the log is always kept", Stays: "a loser commits nothing above a fork, unless a claim was forced (below) or a store rolled back"},
		{Off: Without(P14Leads, P14Lists), Opt: back, Text: "list and token through any member, without the members' local lists"},
		{Off: Without(P14Leads), Opt: back, Text: "list and token through any member", Stays: "the leader's local list covers it"},
		{Off: Without(P14Lists), Opt: back, Text: "without the members' local lists",
			Stays: "a linearizable list through the leading member has waited for that member's apply"},
		{Off: Without(P14Txn, P14Conn), Opt: late, Text: "without the transaction", Stays: "P4's names cover it"},
		{Off: Without(P14Conn), Opt: late, Text: "a connection that outlives etcd", Stays: "P4's names cover it"},
		{Off: Without(P15, A2), Opt: rare, Text: "the commit mark, on a disk that loses what it synced"},
		{Off: Without(P16), Opt: rare, Text: "a lone survivor does not look at the record", Stays: "against clones and forced claims (below), which the model has not"},
		{Off: Without(A1), Opt: o, Text: "A1: the store is rolled back (nothing closes it, P17 narrows it)"},
		{Off: Without(A1, P17), Opt: o, Text: "no memory of the highest generation"},
		{Off: Without(P19Flag), Opt: ops, Text: "a token in spite of the drain flag", Stays: "without it a drain is undone, no write is lost"},
		{Off: Without(P19Whole), Opt: ops, Text: "a drain claims though the pair is not whole"},
		{Off: Without(P19Leads), Opt: ops, Text: "the other member removes the survivor of a drain", Stays: "etcd refuses through a member without a quorum; the survivor's log then holds its own removal (P5)"},
	}
}

// Row is what was found for one case.
type Row struct {
	Case
	Found *Script
	Effort
	Err error
}

// Effort is what was spent on a case without a schedule.
type Effort struct {
	States int   `json:"states"`
	Moves  int64 `json:"moves"`
}

// Name is the case's name in files and in the table.
func (c Case) Name() string { return strings.ReplaceAll(c.Off.String(), " ", "_") }

// Hunt explores a case breadth first for a third of the time, then walks at random.
func (c Case) Hunt(d time.Duration, seed int64) (r Row) {
	r.Case = c
	if c.Off.has(A2) { // such a disk breaks the promise by itself; a schedule that shows the rule is made by hand
		r, err := c.Recorded()
		r.Err = err
		return r
	}
	o := c.Opt
	o.Off = c.Off
	o.Until = time.Now().Add(d / 3)
	res, err := NewSearch(o).Run()
	r.States, r.Moves = res.States, res.Steps
	if err != nil || res.Found != nil {
		r.Found, r.Err = res.Found, err
		return r
	}
	o.Longest = 14
	until := time.Now().Add(d * 2 / 3)
	// Several walks, the shortest schedule counts.
	for n := int64(0); n < 3 && time.Now().Before(until); n++ {
		o.Until = until
		w, err := Walk{Options: o, RandSeed: seed + n}.Run()
		r.Moves += w.Steps
		if err != nil {
			r.Err = err
			return r
		}
		if w.Found != nil && (r.Found == nil || len(w.Found.Moves) < len(r.Found.Moves)) {
			r.Found = w.Found
		}
	}
	return r
}

//go:embed testdata/off_*.txt testdata/effort.json
var recorded embed.FS

// Recorded is the table's row as testdata has it: the schedule, replayed, or the effort.
func (c Case) Recorded() (r Row, err error) {
	r.Case = c
	b, err := recorded.ReadFile("testdata/off_" + c.Name() + ".txt")
	if err == nil {
		s, err := ParseScript(bytes.NewReader(b))
		if err != nil {
			return r, fmt.Errorf("%s: %w", c.Name(), err)
		}
		w, err := s.Replay(nil)
		if err != nil || w.Prop != s.Ends || s.Off != c.Off {
			return r, fmt.Errorf("the recorded schedule for %s does not replay: %v", c.Name(), err)
		}
		r.Found = &s
		return r, nil
	}
	b, err = recorded.ReadFile("testdata/effort.json")
	if err != nil {
		return r, err
	}
	all := map[string]Effort{}
	if err := json.Unmarshal(b, &all); err != nil {
		return r, err
	}
	e, ok := all[c.Name()]
	if !ok {
		return r, fmt.Errorf("neither a schedule nor an effort is recorded for %s: go run ./testing/explore/cmd -hunt", c.Name())
	}
	r.Effort = e
	return r, nil
}

// WriteTable prints rows as markdown.
func WriteTable(out io.Writer, rows []Row) {
	fmt.Fprintln(out, "| Off | What is off | Schedule | Breaks |")
	fmt.Fprintln(out, "|---|---|---|---|")
	for _, r := range rows {
		if r.Found == nil {
			why := r.Stays
			if why == "" {
				why = "not found within this effort"
			}
			fmt.Fprintf(out, "| %s | %s | none in %s states and %s moves: %s | |\n", r.Off, r.Text, count(int64(r.States)), count(r.Moves), why)
			continue
		}
		fmt.Fprintf(out, "| %s | %s | %d moves from *%s* (%d from the beginning) | %s |\n", r.Off, r.Text, len(r.Found.Moves), r.Found.Seed, len(r.Found.Moves)+seedLength(r.Found.Seed), r.Found.Ends)
	}
}

// seedLength is the number of moves from a new pair to a seed.
func seedLength(name string) int {
	for _, s := range seeds {
		if s.name == name && s.from != "" {
			return strings.Count(s.moves, ";") + 1 + seedLength(s.from)
		}
	}
	return 0
}

func count(n int64) string {
	switch {
	case n >= 10_000_000:
		return fmt.Sprintf("%d million", n/1_000_000)
	case n >= 10_000:
		return fmt.Sprintf("%d thousand", n/1000)
	}
	return fmt.Sprint(n)
}
