package sim

import (
	"testing"

	"twok/arbiter"
)

// What clients of one history saw is judged without the others: an answer of a history that was given up counts where it
// lies before the fork and was given before that; a write beyond the fork that another history's clients read is found.
//
// Rules: P18.
func TestHistoriesJudged(t *testing.T) {
	chain := func(terms ...uint64) (c []link) {
		for _, x := range terms {
			c = append(c, link{term: x})
		}
		return c
	}
	write := func(val uint64, call, ret int64, line int, index, term uint64) *op {
		return &op{write: true, val: val, call: call, ret: ret, line: line, at: arbiter.Position{Index: index, Term: term}}
	}
	read := func(val uint64, call, ret int64, line int, index, term uint64) *op {
		o := write(val, call, ret, line, index, term)
		o.write = false
		return o
	}
	const forced = 3 << 32
	for _, c := range []struct {
		name string
		ops  []*op
		bad  bool
		lost int // acknowledged writes that are not of history 1
	}{
		{"each its own", []*op{write(1, 1, 2, 0, 2, 1), write(2, 3, 9, 0, 4, 2), write(3, 11, 12, 1, 4, forced), read(3, 13, 14, 1, 4, forced), read(2, 15, 16, 0, 4, 2)}, false, 1},
		{"a write before the fork is lost", []*op{write(1, 1, 2, 0, 2, 1), read(0, 13, 14, 1, 3, forced)}, true, 0},
		{"a write beyond the fork is read", []*op{write(1, 1, 2, 0, 2, 1), write(2, 3, 9, 0, 4, 2), read(2, 13, 14, 1, 3, forced)}, true, 1},
		{"a write beyond the fork is not read", []*op{write(1, 1, 2, 0, 2, 1), write(2, 3, 9, 0, 4, 2), read(1, 13, 14, 1, 3, forced)}, false, 1},
		{"the overridden one reads what was, after the fork", []*op{write(1, 1, 2, 0, 2, 1), write(3, 11, 12, 1, 4, forced), read(1, 13, 14, 0, 2, 1)}, false, 0},
		{"the same in one history", []*op{write(1, 1, 2, 0, 2, 1), write(3, 11, 12, 0, 4, 2), read(1, 13, 14, 0, 4, 2)}, true, 1},
		{"a write of before the fork, answered after it", []*op{write(1, 1, 20, 0, 2, 1), read(0, 5, 6, 0, 1, 1), read(1, 13, 14, 1, 3, forced)}, false, 0},
		{"and lost", []*op{write(1, 1, 2, 0, 2, 1), write(4, 3, 20, 0, 2, 1), read(4, 13, 14, 1, 3, forced), read(1, 15, 16, 1, 3, forced)}, true, 0},
		{"one history reads back", []*op{write(3, 11, 12, 1, 4, forced), read(0, 13, 14, 1, 4, forced)}, true, 0},
	} {
		w := &world{ops: c.ops, sites: [3]*site{{name: "a"}}, lines: []*history{
			{chain: chain(0, 1, 1, 2, 2, 2)},
			{fork: arbiter.Position{Index: 3, Term: forced}, born: 10, chain: chain(0, 1, 1, forced, forced)},
		}}
		w.judge([keys]uint64{})
		if bad := len(w.violations) > 0; bad != c.bad {
			t.Errorf("%s: violations %v, want some: %v", c.name, w.violations, c.bad)
		}
		if got := w.givenUp(1); got != c.lost {
			t.Errorf("%s: %d writes given up, want %d", c.name, got, c.lost)
		}
	}
}
