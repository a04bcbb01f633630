package explore

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Script is a schedule: which rules are off, where it starts, the moves, and how it ends.
//
//	# text for people
//	off P14.lists            rules that are off; may be missing
//	seed returned            a named start, see Seeds
//	cut
//	do a site lose
//	...
//	ends S4                  the property that is violated, or none
type Script struct {
	Head  []string
	Off   Switches
	Seed  string
	Moves []Move
	Ends  string
}

// ParseScript reads a script.
func ParseScript(r io.Reader) (s Script, err error) {
	sc := bufio.NewScanner(r)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		word, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "":
		case word == "#":
			s.Head = append(s.Head, rest)
		case word == "off":
			s.Off, err = ParseSwitches(rest)
		case word == "seed":
			s.Seed = rest
		case word == "ends":
			s.Ends = rest
		default:
			var m Move
			m, err = ParseMove(line)
			s.Moves = append(s.Moves, m)
		}
		if err != nil {
			return s, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if s.Ends == "" {
		return s, fmt.Errorf("a script says how it ends")
	}
	return s, sc.Err()
}

// String writes what ParseScript reads.
func (s Script) String() string {
	var b strings.Builder
	for _, h := range s.Head {
		fmt.Fprintf(&b, "# %s\n", h)
	}
	if s.Off != 0 {
		fmt.Fprintf(&b, "off %s\n", s.Off)
	}
	if s.Seed != "" {
		fmt.Fprintf(&b, "seed %s\n", s.Seed)
	}
	for _, m := range s.Moves {
		fmt.Fprintln(&b, m)
	}
	fmt.Fprintf(&b, "ends %s\n", s.Ends)
	return b.String()
}

// Replay makes the moves of a script in one world that is never rewritten. It
// fails on a move that is not possible.
func (s Script) Replay(trace io.Writer) (*World, error) {
	w, err := Seed(s.Seed, s.Off)
	if err != nil {
		return nil, err
	}
	w.Max = 1 << 20
	for i, m := range s.Moves {
		if w.Broken() {
			return w, fmt.Errorf("%s is violated before move %d: %s", w.Prop, i+1, w.Text)
		}
		if !w.Apply(m) {
			return w, fmt.Errorf("move %d, %s, is not possible", i+1, m)
		}
		if trace != nil {
			fmt.Fprintf(trace, "%-24s %s\n", m, w)
		}
	}
	return w, nil
}

// String is a world in one line.
func (w *World) String() string {
	var b strings.Builder
	link := "linked"
	if !w.Link {
		link = "cut"
	}
	fmt.Fprintf(&b, "%s rec(g%d names %d", link, w.Rec.Generation, w.Rec.Survivor.ID)
	if w.Rec.WholeGeneration == w.Rec.Generation && w.Ver > 0 {
		b.WriteString(" whole")
	}
	if w.Rec.Drain {
		b.WriteString(" drain")
	}
	fmt.Fprintf(&b, ") committed %d", len(w.Hist))
	for i := range w.Nodes {
		n := &w.Nodes[i]
		if n.ID == 0 {
			continue
		}
		idx, last := n.last()
		role := ""
		switch {
		case n.Dead:
			role = " dead"
		case n.Leader:
			role = " leads"
		}
		fmt.Fprintf(&b, " | %s: id %d%s t%d log %d/%d commit %d applied %d disk %d/%d token g%d", w.name(i), n.ID, role, n.Term, idx, last, n.Commit, n.Applied, n.HS, n.DB, w.token(n, n.Applied).Gen)
		if i > 1 {
			continue
		}
		s := &w.Sites[i]
		fmt.Fprintf(&b, " %s/%s", s.S.Phase, s.S.Why)
		if s.Locked {
			b.WriteString(" locked")
		}
		for _, a := range s.Out {
			if a != nil {
				fmt.Fprintf(&b, " ->%s", a.Kind)
			}
		}
	}
	if w.Broken() {
		fmt.Fprintf(&b, " | %s: %s", w.Prop, w.Text)
	}
	return b.String()
}
