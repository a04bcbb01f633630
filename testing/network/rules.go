package network

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Kind is what a rule forbids.
type Kind string

// The kinds.
const (
	All      Kind = "all"   // every packet
	NewConns Kind = "new"   // what begins a connection; established ones live on
	Large    Kind = "large" // packets of more than LargeBytes
	Loss     Kind = "loss"  // 30 of 100 packets, at random
)

// LargeBytes is the longest IP packet that passes Large: a heartbeat does, a full segment does not.
const LargeBytes = 1000

var matches = map[Kind]string{
	All:      "",
	NewConns: "ct state new ",
	Large:    fmt.Sprintf("meta length > %d ", LargeBytes),
	Loss:     "numgen random mod 100 < 30 ",
}

// Rule forbids what one site sends to another.
type Rule struct {
	From, To string
	Kind     Kind
}

// Both are the rules for both directions.
func Both(a, b string, k Kind) []Rule { return []Rule{{a, b, k}, {b, a, k}} }

// Cut adds rules to those that there are.
func (n *Network) Cut(rules ...Rule) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	next := slices.Clone(n.rules)
	for _, r := range rules {
		if !slices.Contains(next, r) {
			next = append(next, r)
		}
	}
	return n.set(next)
}

// Heal removes every rule between the two sites, in both directions.
func (n *Network) Heal(a, b string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.set(slices.DeleteFunc(slices.Clone(n.rules), func(r Rule) bool {
		return r.From == a && r.To == b || r.From == b && r.To == a
	}))
}

// Set replaces all rules; none: everything passes.
func (n *Network) Set(rules ...Rule) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.set(rules)
}

// set holds n.mu.
func (n *Network) set(rules []Rule) error {
	var b strings.Builder
	// The first line makes the second one possible where there was no table. nft applies a file as a whole.
	b.WriteString("table inet twok\ndelete table inet twok\ntable inet twok {\n chain forward {\n  type filter hook forward priority 0; policy accept;\n")
	// Connections are tracked from the beginning, so that NewConns knows which ones are old.
	b.WriteString("  ct state new counter\n")
	for _, r := range rules {
		m, ok := matches[r.Kind]
		if !ok || !slices.Contains(n.cfg.Sites, r.From) || !slices.Contains(n.cfg.Sites, r.To) {
			return fmt.Errorf("network: no rule %+v", r)
		}
		fmt.Fprintf(&b, "  iifname %q oifname %q %scounter drop\n", link(r.From), link(r.To), m)
	}
	b.WriteString(" }\n}\n")
	before, err := n.count()
	if err != nil {
		return err
	}
	if err := run(context.Background(), b.String(), "nft", "-f", "-"); err != nil {
		return fmt.Errorf("set the rules %v: %w", rules, err)
	}
	for i, r := range n.rules {
		n.dropped[r] += before[i]
	}
	n.rules = slices.Clone(rules)
	for _, r := range rules {
		n.dropped[r] += 0 // it was in force
	}
	return nil
}

// Dropped is how many packets each rule has dropped, of all rules that ever were in force.
func (n *Network) Dropped() (map[Rule]uint64, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now, err := n.count()
	if err != nil {
		return nil, err
	}
	all := maps.Clone(n.dropped)
	for i, r := range n.rules {
		all[r] += now[i]
	}
	return all, nil
}

// count is how many packets the rules of now have dropped, in their order. It holds n.mu.
func (n *Network) count() ([]uint64, error) {
	if len(n.rules) == 0 {
		return nil, nil
	}
	var stderr bytes.Buffer
	cmd := exec.Command("nft", "list", "chain", "inet", "twok", "forward")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("count what the rules %v have dropped: %w: %s", n.rules, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return droppedPackets(string(out), len(n.rules))
}

var drops = regexp.MustCompile(`(?m)counter packets ([0-9]+) bytes [0-9]+ drop$`)

// droppedPackets reads the counters of nft's list, of which there must be so many.
func droppedPackets(listing string, want int) (out []uint64, err error) {
	for _, m := range drops.FindAllStringSubmatch(listing, -1) {
		x, err := strconv.ParseUint(m[1], 10, 64)
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	if len(out) != want {
		return nil, fmt.Errorf("nft lists %d rules that drop, not %d: %s", len(out), want, listing)
	}
	return out, nil
}
