package failover

import (
	"flag"
	"fmt"
	"math/rand"
	"strings"
	"testing"
)

var walks = flag.Int("walks", 160, "random walks of TestRandomWalks")
var walkSeed = flag.Int64("walk-seed", 0, "run this one random walk and print it")
var walkForce = flag.Bool("walk-force", false, "with -walk-seed: a walk of TestForcedWalks")

// Random commands in a world of two agents. World and site check after every
// step: an append has its own swap under the same locks, a claim is made under
// locks, no rewrite before the survivor added that ID, one action in each slot, no
// section phase without an action out that a tick does not move, no release of
// a fenced etcd; and of the etcds: never two leaders, no acknowledged write missing at a leader, no committed
// entry overwritten. In the end everything is healed, and the pair becomes whole
// again, unless it is in a state that names why only a person can go on.
//
// Rules: P1, P2, P7, P8, P12, P14, P16; F1, F8, F9, F19, F37.
func TestRandomWalks(t *testing.T) {
	if *walkSeed != 0 {
		w, cmds := walk(*walkSeed, false, *walkForce)
		t.Logf("%s\n%s", strings.Join(cmds, "\n"), w.out.String())
		for _, v := range w.violate {
			t.Error(v)
		}
		return
	}
	ends := map[string]int{}
	states, aside, generations, cells, did := 0, map[Reason]int{}, uint64(0), map[[2]string]int{}, map[ActionKind]int{}
	for seed := int64(1); seed <= int64(*walks); seed++ {
		w, _ := walk(seed, true, false)
		for _, v := range w.violate {
			t.Errorf("seed %d: %s", seed, v)
		}
		states += len(w.states)
		ends[w.end()]++
		generations += w.rec.Generation - min(1, w.rec.Generation)
		for c, n := range w.seen {
			cells[c] += n
		}
		for k, n := range w.did {
			did[k] += n
		}
		for _, s := range w.sites {
			for _, why := range s.aside {
				aside[why]++
			}
		}
	}
	t.Logf("%d walks: %d claims, %d cells of phase and event, actions %v, set aside %v, ends %v", *walks, generations, len(cells), did, aside, ends)
	// A walk that does nothing finds nothing.
	for _, k := range ActionKinds() {
		if did[k] == 0 && *walks >= 100 {
			t.Errorf("no walk ever did %s", k)
		}
	}
	if ends["whole"] < *walks*9/10 {
		t.Errorf("only %d of %d walks end whole: %v", ends["whole"], *walks, ends)
	}
}

// Forced claims at any time, for either member, removals by hand, and replaced disks: no two entries
// share an index and a term, no committed entry is overwritten where two members talk, each history loses nothing
// that it acknowledged, and only one of them is left in the end.
//
// Rules: P7, P8, P13, P16, P18.
func TestForcedWalks(t *testing.T) {
	ends, forks, joined := map[string]int{}, 0, 0
	for seed := int64(1); seed <= int64(2**walks); seed++ {
		w, _ := walk(seed, true, true)
		for _, v := range w.violate {
			t.Errorf("seed %d: %s", seed, v)
		}
		if w.apart() && w.sites[0].etcd.leads && w.sites[1].etcd.leads {
			t.Errorf("seed %d: two histories go on", seed)
		}
		ends[w.end()]++
		forks += w.forks
		joined += w.joins
	}
	t.Logf("%d walks, %d forced claims carried out, %d of them by a removed member, ends %v", 2**walks, forks, joined, ends)
	if forks < *walks/2 || joined == 0 || ends["whole"] < *walks {
		t.Error("a walk that does nothing finds nothing")
	}
}

// walk is one random walk: trouble, then quiet.
func walk(seed int64, quiet, force bool) (*world, []string) {
	r := rand.New(rand.NewSource(seed))
	w := newWorld()
	w.quiet = quiet
	if seed%16 == 0 {
		w.states = map[State]bool{}
	}
	var cmds []string
	do := func(line string) {
		cmds = append(cmds, line)
		if !quiet {
			fmt.Fprintf(&w.out, "> %s\n", line)
		}
		f := strings.Fields(line)
		if err := w.command(f[0], f[1:]); err != nil && !quiet {
			fmt.Fprintf(&w.out, "%v\n", err)
		}
	}
	// Some walks begin in the middle of a return.
	do("tick 30")
	if r.Intn(2) == 0 {
		do("cut")
		do("tick 15")
		do("heal")
		do(fmt.Sprintf("tick %d", r.Intn(6)))
	}
	kinds := []string{"read-record", "swap", "stop", "append", "release", "look-at-list", "remove-learner", "add-learner",
		"rewrite", "compare", "promote", "sample", "write-token", "preflight", "restart"}
	hows := []string{"fail", "lose", "nothing"}
	for range 60 {
		s := string("ab"[r.Intn(2)])
		if force && r.Intn(8) == 0 {
			if l := w.leader(); l != nil && w.joined() && l.other().alive() && r.Intn(4) == 0 {
				do(fmt.Sprintf("remove %x", l.other().etcd.id))
			} else if r.Intn(8) == 0 {
				do("wipe " + s)
				do("start " + s)
			} else {
				do("force " + s)
			}
		}
		k := kinds[r.Intn(len(kinds))]
		switch r.Intn(29) {
		case 0, 1:
			do("cut")
		case 2, 3:
			do("heal" + []string{"", " slow"}[r.Intn(2)])
		case 4:
			do("arbiter " + s + " " + []string{"down", "silent"}[r.Intn(2)])
		case 5, 6:
			do("arbiter a up")
			do("arbiter b up")
		case 7, 8:
			how := hows[r.Intn(3)]
			if k == "swap" && r.Intn(2) == 0 {
				how = []string{"late", "own-412"}[r.Intn(2)]
			}
			do("next " + s + " " + k + " " + how)
		case 9, 10:
			do("hold " + s + " " + k)
			do(fmt.Sprintf("tick %d", r.Intn(15)))
			if r.Intn(2) == 0 {
				do("carry " + s + " " + k)
				do(fmt.Sprintf("tick %d", r.Intn(8)))
			}
			do(fmt.Sprintf("write %d", 1+r.Intn(3)))
			switch r.Intn(5) {
			case 0:
				do("kill " + s)
				do(fmt.Sprintf("tick %d", r.Intn(15)))
				do("start " + s)
			case 1, 2:
				do("go " + s)
			case 3:
				do("crash " + s)
				do("go " + s)
			}
		case 11:
			do("kill " + s)
		case 12, 13:
			do("start " + s + []string{"", " forget"}[r.Intn(2)])
		case 14:
			do("crash " + s)
		case 15, 16:
			do("boot a")
			do("boot b")
		case 17:
			do("apply-late")
		case 18:
			do(fmt.Sprintf("write %d", 1+r.Intn(3)))
		case 19:
			do("flag " + []string{"drain", "pause"}[r.Intn(2)] + []string{" on", " off"}[r.Intn(2)])
		case 20:
			if !force { // a removed member is no voter
				do("prefer " + s)
			}
		case 21:
			do("blind " + s + []string{" on", " off"}[r.Intn(2)])
		case 22:
			if w.leader() == nil && !force { // a former leader's entries that nobody else has
				do(fmt.Sprintf("tail %s %d", s, 1+r.Intn(3)))
			}
		default:
			do(fmt.Sprintf("tick %d", 1+r.Intn(25)))
		}
	}
	for _, s := range w.sites {
		do("go " + s.name)
		do("arbiter " + s.name + " up")
		clear(s.next)
		if !s.up {
			do("start " + s.name)
		}
		do("boot " + s.name)
		do("blind " + s.name + " off")
	}
	do("flag drain off")
	do("flag pause off")
	do("heal slow")
	do("tick 300")
	if !quiet {
		w.show()
	}
	return w, cmds
}

// end says in which state a walk ended.
func (w *world) end() string {
	a, b := &w.sites[0].s, &w.sites[1].s
	if a.Whole() && b.Whole() && (a.Phase == Leading) != (b.Phase == Leading) && w.rec.WholeGeneration == w.rec.Generation {
		return "whole"
	}
	return fmt.Sprintf("%s/%s+%s/%s", a.Phase, a.Why, b.Phase, b.Why)
}
