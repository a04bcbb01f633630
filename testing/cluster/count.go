package cluster

import "fmt"

// Count begins to count what one site sends to another; Crossed is how much that is by now.
func (c *Cluster) Count() error {
	if c.net == nil {
		return fmt.Errorf("count bytes: %w", ErrNoNamespaces)
	}
	return c.net.Count()
}

// Crossed is network.Crossed.
func (c *Cluster) Crossed(from, to string) (uint64, error) {
	if c.net == nil {
		return 0, fmt.Errorf("count bytes: %w", ErrNoNamespaces)
	}
	return c.net.Crossed(from, to)
}
