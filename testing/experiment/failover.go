package experiment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"twok/internal/lab"
	"twok/testing/cluster"
	"twok/testing/trace"
)

// failovers cuts a pair in every way, with every arbiter, and lets it come back.
func failovers() Experiment {
	return Experiment{
		Name:     "failover",
		About:    "every kind of cut and arbiter, claim-after 3 s and 20 s: cut to first write, heal to whole",
		Cases:    failoverCases(),
		Batch:    5,
		Programs: []Program{Twok},
		Run:      runFailover,
		Table:    tableFailover,
	}
}

var failoverAfter = []string{"3s", "20s"}

// failoverCases are CLAIM-AFTER-ARBITER-CUT.
func failoverCases() (out []string) {
	for _, after := range failoverAfter {
		for _, a := range cluster.Arbiters {
			for _, k := range lab.CutKinds {
				out = append(out, after+"-"+a+"-"+string(k))
			}
		}
	}
	return out
}

// runFailover runs one demo with n rounds, on a new store.
func runFailover(ctx context.Context, s *Session, n int) (err error) {
	after, rest, _ := strings.Cut(s.Case, "-")
	kind, cut, _ := strings.Cut(rest, "-")
	ctx, cancel := context.WithTimeout(ctx, 8*time.Minute)
	defer cancel()
	dir, store := filepath.Join(s.Dir, "demo"), filepath.Join(s.Dir, "store")
	args := []string{"demo", "--json", "--json-events", "--dir", dir, "--etcd-version", s.Version, "--cut", cut, "--rounds", fmt.Sprint(n), "--claim-after", after}
	at, env, end, err := startArbiter(ctx, kind, store, s.Log)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, end()); err == nil {
			err = errors.Join(os.RemoveAll(store), os.RemoveAll(filepath.Join(dir, "a", "data")), os.RemoveAll(filepath.Join(dir, "b", "data")))
		}
	}()
	if at != "" {
		args = append(args, "--arbiter", at)
	}
	cmd := exec.CommandContext(ctx, s.Program(Twok), args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	failed := cmd.Run()
	for name, b := range map[string][]byte{"demo.json": stdout.Bytes(), "events.jsonl": stderr.Bytes()} {
		if err := os.WriteFile(filepath.Join(s.Dir, name), b, 0o644); err != nil {
			return err
		}
	}
	if failed != nil {
		failed = fmt.Errorf("twok demo: %w; see events.jsonl", failed)
	}
	found, err := demoRounds(stdout.Bytes(), stderr.Bytes())
	if err != nil {
		return errors.Join(failed, err)
	}
	if failed == nil && len(found) != n {
		failed = fmt.Errorf("twok demo: %d good rounds of %d, and status 0", len(found), n)
	}
	if failed == nil { // what the agents did must be what the model allows
		ls, err := trace.ReadFiles(filepath.Join(dir, "a", "trace.jsonl"), filepath.Join(dir, "b", "trace.jsonl"), "")
		if err == nil {
			_, err = trace.Check(ls, trace.Options{})
		}
		if err != nil {
			return err
		}
	}
	for _, r := range found {
		if err := s.Add(r.Values, r.Notes); err != nil {
			return err
		}
	}
	return failed
}

// startArbiter starts a store of this kind; of kind serve the demo has its own, and the URL is empty.
func startArbiter(ctx context.Context, kind, dir string, log io.Writer) (url string, env []string, end func() error, err error) {
	switch kind {
	case "serve":
		return "", nil, func() error { return nil }, nil
	case "configmap":
		k, err := lab.StartKubernetes(ctx, dir, "", log)
		if err != nil {
			return "", nil, nil, err
		}
		return k.URL, k.Env, k.Close, nil
	}
	st, err := lab.StartStore(ctx, kind, dir, log)
	if err != nil {
		return "", nil, nil, err
	}
	return st.URL, st.Env, st.Close, nil
}

// demoSteps are the steps of which the time since the cut is kept, if the survivor made them.
var demoSteps = []lab.EventKind{lab.EventClaim, lab.EventStop, lab.EventNamed, lab.EventAppend, lab.EventLead}

// demoRounds are the rounds of a demo that ended well, and those that lost something, from its result and its events.
func demoRounds(result, events []byte) (out []Run, err error) {
	var d struct {
		Rounds []struct {
			Round    int
			Leader   string
			Survivor *string
			Acked    int64
			Lost     int64
			First    *float64 `json:"first_write_after_cut_s"`
			Whole    *float64 `json:"whole_after_heal_s"`
			Hashes   bool     `json:"hashes_equal"`
			Error    string
		}
	}
	if err := json.Unmarshal(result, &d); err != nil {
		return nil, fmt.Errorf("the demo's result: %w: %s", err, result)
	}
	type step struct {
		round int
		site  string
		kind  lab.EventKind
	}
	first := map[step]float64{}
	for line := range bytes.Lines(events) {
		var e struct {
			Event lab.EventKind
			Site  string
			Round int
			Since *float64 `json:"since_cut_s"`
		}
		if json.Unmarshal(line, &e) != nil || e.Since == nil { // people are told things there, too
			continue
		}
		k := step{e.Round, e.Site, e.Event}
		if _, ok := first[k]; !ok {
			first[k] = *e.Since
		}
	}
	for _, x := range d.Rounds {
		if x.Lost > 0 { // it has an error, too, and counts all the more
			out = append(out, Run{Values: map[string]float64{"acked": float64(x.Acked), "lost": float64(x.Lost)}, Notes: map[string]string{"survivor": "not counted"}})
			continue
		}
		if x.Error != "" || x.First == nil || x.Whole == nil || !x.Hashes || x.Acked == 0 {
			continue
		}
		r := Run{Values: map[string]float64{"first_write": *x.First, "whole": *x.Whole, "acked": float64(x.Acked), "lost": float64(x.Lost)},
			Notes: map[string]string{"survivor": "nobody claimed"}}
		if x.Survivor != nil {
			r.Notes["survivor"] = "the follower"
			if *x.Survivor == x.Leader {
				r.Notes["survivor"] = "the former leader"
			}
			for _, k := range demoSteps {
				if at, ok := first[step{x.Round, *x.Survivor, k}]; ok {
					r.Values[string(k)] = at
				}
			}
		}
		out = append(out, r)
	}
	return out, nil
}

// spread is a distribution of times: least, quartiles with the median in the middle, nine tenths, most.
func spread(d Dist) string {
	if d.N == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f · %.2f **%.2f** %.2f · %.2f · %.2f", d.Min, d.P25, d.P50, d.P75, d.P90, d.Max)
}

// tableFailover is, for each claim-after, what all runs of a kind show together, the steps of those, and each cell.
func tableFailover(s Summary) string {
	var b strings.Builder
	for _, after := range failoverAfter {
		cells := slices.DeleteFunc(s.Of("failover"), func(c Cell) bool { return !strings.HasPrefix(c.Case, after+"-") })
		if len(cells) == 0 {
			continue
		}
		const columns = "Runs | Cut → first write | Heal → whole | The former leader survives | Lost |\n"
		fmt.Fprintf(&b, "Claim-after %s; seconds: least · quartiles (**median**) · 90 of 100 · most.\n\n| All runs of | %s|---|---|---|---|---|---|\n", after, columns)
		pooled := poolFailover(cells)
		for _, c := range pooled {
			fmt.Fprintf(&b, "| %s | %s\n", c.Case, failoverRow(c))
		}
		b.WriteString("\nMedians of the steps, seconds after the cut:\n\n| All runs of | The claim begins | etcd is stopped | The record names it | The log has it | It leads | First write |\n|---|---|---|---|---|---|---|\n")
		for _, c := range pooled {
			if c.Values["named"].N > 0 {
				fmt.Fprintf(&b, "| %s | %s\n", c.Case, stepsRow(c))
			}
		}
		fmt.Fprintf(&b, "\nEach cell:\n\n| Arbiter | Cut | etcd | %s|---|---|---|---|---|---|---|---|\n", columns)
		for _, c := range cells {
			arb, cut := arbiterCut(c)
			fmt.Fprintf(&b, "| %s | %s | %s | %s\n", arb, cut, c.Etcd, failoverRow(c))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// arbiterCut are the parts of a case.
func arbiterCut(c Cell) (arbiter, cut string) {
	_, rest, _ := strings.Cut(c.Case, "-")
	arbiter, cut, _ = strings.Cut(rest, "-")
	return arbiter, cut
}

func failoverRow(c Cell) string {
	return fmt.Sprintf("%s | %s | %s | %d of %d | %.0f of %.0f |", runs(c), spread(c.Values["first_write"]), spread(c.Values["whole"]),
		c.Notes["survivor"]["the former leader"], c.Runs-c.Notes["survivor"]["nobody claimed"], c.Values["lost"].Sum, c.Values["acked"].Sum)
}

func stepsRow(c Cell) string {
	var b strings.Builder
	for _, k := range append(slices.Clone(demoSteps), "first_write") {
		if d := c.Values[string(k)]; d.N > 0 {
			fmt.Fprintf(&b, "%.2f | ", d.P50)
		} else {
			b.WriteString("– | ")
		}
	}
	return strings.TrimSuffix(b.String(), " ")
}

// poolFailover is a cell a cut, over all arbiters and etcds, and one an arbiter and an etcd, over the cuts that the leader lives through.
func poolFailover(cells []Cell) (out []Cell) {
	add := func(what string, has func(arbiter, cut, etcd string) bool) {
		of := slices.DeleteFunc(slices.Clone(cells), func(c Cell) bool {
			arb, cut := arbiterCut(c)
			return !has(arb, cut, c.Etcd)
		})
		if len(of) > 0 {
			all := pool(of)
			all.Case = what
			out = append(out, all)
		}
	}
	for _, k := range lab.CutKinds {
		add(string(k), func(_, cut, _ string) bool { return cut == string(k) })
	}
	leads := func(cut string) bool { return cut != string(lab.CutKillLeader) && cut != string(lab.CutRestartBoth) }
	for _, a := range cluster.Arbiters {
		add(a+", the leader lives", func(arb, cut, _ string) bool { return arb == a && leads(cut) })
	}
	var etcds []string
	for _, c := range cells {
		etcds = append(etcds, c.Etcd)
	}
	slices.Sort(etcds)
	for _, v := range slices.Compact(etcds) {
		add("etcd "+v+", the leader lives", func(_, cut, etcd string) bool { return etcd == v && leads(cut) })
	}
	return out
}
