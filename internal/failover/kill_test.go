package failover

import (
	"fmt"
	"slices"
	"testing"
)

// The agent of either site dies at each action of a whole failover, just before
// it is carried out or just after; it starts again, with its state directory or
// without, and the pair becomes whole without a violation.
//
// Rules: P1, P7, P9, P12, P16; F4, F8, F9, F19.
func TestKilledAtEveryAction(t *testing.T) {
	hit := map[ActionKind]int{}
	for _, k := range ActionKinds() {
		for _, who := range []int{0, 1} {
			for _, after := range []bool{false, true} {
				for _, forget := range []string{"", "forget"} {
					t.Run(fmt.Sprintf("%s/%d/after=%v/%s", k, who, after, forget), func(t *testing.T) {
						w := newWorld()
						s := w.sites[who]
						run := func(lines ...[]string) {
							for _, l := range lines {
								if err := w.command(l[0], l[1:]); err != nil {
									t.Fatal(l, err)
								}
							}
						}
						killed := false
						kill := func() {
							i := slices.IndexFunc(s.queue, func(a Action) bool { return a.Kind == k })
							if killed || i < 0 {
								return
							}
							killed = true
							hit[k]++
							if after {
								s.perform(s.queue[i])
							}
							run([]string{"kill", s.name}, []string{"tick", "7"}, []string{"start", s.name, forget})
						}
						run([]string{"tick", "60"}, []string{"write", "3"})
						if k == Restart { // nobody claims, the healed pair is woken
							run([]string{"arbiter", "a", "down"}, []string{"arbiter", "b", "down"})
						}
						run([]string{"cut"}, []string{"hold", s.name, k.String()}, []string{"tick", "25"})
						kill()
						run([]string{"tick", "25"}, []string{"write", "3"})
						if l := w.leader(); l != nil {
							run([]string{"add", "e1", "learner", "at", l.other().name}) // left over from an aborted return
						}
						run([]string{"heal", "slow"}, []string{"tick", "20"})
						kill()
						run([]string{"tick", "20"})
						kill()
						run([]string{"arbiter", "a", "up"}, []string{"arbiter", "b", "up"}, []string{"go", "a"}, []string{"go", "b"}, []string{"tick", "200"})
						for _, v := range w.violate {
							t.Error(v)
						}
						if end := w.end(); end != "whole" {
							t.Errorf("ends in %s\n%s", end, w.out.String())
						}
					})
				}
			}
		}
	}
	for _, k := range ActionKinds() {
		if hit[k] == 0 {
			t.Errorf("nobody was ever killed at %s", k)
		}
	}
}
