package network

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// countTable counts what the rules let pass; it has a place behind theirs.
const countTable = "twokcount"

// Count begins to count, at zero, what each site sends to each other one.
func (n *Network) Count() error {
	var counters, rules strings.Builder
	for i, from := range n.cfg.Sites {
		for j, to := range n.cfg.Sites {
			if i == j {
				continue
			}
			name := counter(i, j)
			fmt.Fprintf(&counters, " counter %s { }\n", name)
			fmt.Fprintf(&rules, "  iifname %q oifname %q counter name %q\n", link(from), link(to), name)
		}
	}
	script := fmt.Sprintf("table inet %[1]s\ndelete table inet %[1]s\ntable inet %[1]s {\n%[2]s chain forward {\n  type filter hook forward priority 10; policy accept;\n%[3]s }\n}\n",
		countTable, counters.String(), rules.String())
	if err := run(context.Background(), script, "nft", "-f", "-"); err != nil {
		return fmt.Errorf("count what crosses the network: %w", err)
	}
	return nil
}

func counter(from, to int) string { return fmt.Sprintf("from%dto%d", from, to) }

// Crossed is how many bytes the site from has sent to the site to since Count: whole IP packets, those that were
// dropped not among them. Unlike Bytes it has nothing of what the program itself exchanges with the sites.
func (n *Network) Crossed(from, to string) (uint64, error) {
	i, j := slices.Index(n.cfg.Sites, from), slices.Index(n.cfg.Sites, to)
	if i < 0 || j < 0 || i == j {
		return 0, fmt.Errorf("network: nothing goes from %q to %q", from, to)
	}
	var stderr bytes.Buffer
	cmd := exec.Command("nft", "list", "counter", "inet", countTable, counter(i, j))
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("read what %s has sent to %s, which needs Count before: %w: %s", from, to, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return countedBytes(string(out))
}

// countedBytes reads nft's "packets N bytes M", which is there once.
func countedBytes(listing string) (uint64, error) {
	f := strings.Fields(listing)
	var found []string
	for i, w := range f[:max(0, len(f)-1)] {
		if w == "bytes" {
			found = append(found, f[i+1])
		}
	}
	if len(found) != 1 {
		return 0, fmt.Errorf("nft counts %d times: %s", len(found), listing)
	}
	return strconv.ParseUint(found[0], 10, 64)
}
