package lab

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// CutKind is a way to take the two sites apart.
type CutKind string

// The kinds. A kill ends the site's agent and etcd together and its heal starts
// both; a one-way cut stalls what is sent towards that site, etcd's and the agent's.
const (
	CutLink             CutKind = "link"
	CutKillLeader       CutKind = "kill-leader"
	CutKillFollower     CutKind = "kill-follower"
	CutOneWayToLeader   CutKind = "one-way-to-leader"
	CutOneWayToFollower CutKind = "one-way-to-follower"
	CutRestartBoth      CutKind = "restart-both"
)

// CutKinds are all of them.
var CutKinds = []CutKind{CutLink, CutKillLeader, CutKillFollower, CutOneWayToLeader, CutOneWayToFollower, CutRestartBoth}

// ParseCut is the kind of that name.
func ParseCut(s string) (CutKind, error) {
	if k := CutKind(s); slices.Contains(CutKinds, k) {
		return k, nil
	}
	var names []string
	for _, k := range CutKinds {
		names = append(names, string(k))
	}
	return "", fmt.Errorf("no cut %q; choose one of %s", s, strings.Join(names, ", "))
}

// Claims says whether the cut leaves one member that has to claim.
func (k CutKind) Claims() bool { return k != CutRestartBoth }

// Cut makes the cut; leader is the site that leads now.
func (c *Cluster) Cut(k CutKind, leader string) error {
	follower := Other(leader)
	switch k {
	case CutLink:
		c.CutLink()
	case CutKillLeader:
		return c.sites[leader].Kill()
	case CutKillFollower:
		return c.sites[follower].Kill()
	case CutOneWayToLeader:
		c.Network.Cut(follower, leader)
	case CutOneWayToFollower:
		c.Network.Cut(leader, follower)
	case CutRestartBoth:
		return errors.Join(c.sites[leader].Kill(), c.sites[follower].Kill())
	default:
		return fmt.Errorf("no cut %q", k)
	}
	return nil
}

// Heal undoes any cut: the link is whole and everything runs.
func (c *Cluster) Heal() error {
	c.HealLink()
	return errors.Join(c.sites[Sites[0]].Start(), c.sites[Sites[1]].Start())
}
