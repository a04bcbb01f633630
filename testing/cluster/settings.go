package cluster

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"twok/internal/lab"
)

// ClaimAfter is the agents' --claim-after, as long as AgentFlags say nothing else.
func (c *Cluster) ClaimAfter() time.Duration {
	if c.Options.Real {
		return 20 * time.Second // their own default
	}
	return 800 * time.Millisecond
}

// named are etcd's flags for a member that is not called like its site. Of a flag that is given twice etcd takes the second.
func (c *Cluster) named(site string) []string {
	names := c.Options.Names
	if len(names) == 0 {
		return nil
	}
	var initial []string
	for _, s := range lab.Sites {
		initial = append(initial, names[s]+"="+c.Site(s).AdvertisedPeerURL)
	}
	return []string{"--name", names[site], "--initial-cluster", strings.Join(initial, ",")}
}

// localPeer is a peer URL of a site at loopback.
func (c *Cluster) localPeer(site string) (string, error) {
	if c.net == nil {
		return "", fmt.Errorf("a peer port at loopback that the other site does not reach: %w", ErrNoNamespaces)
	}
	u, err := url.Parse(c.Site(site).PeerURL)
	if err != nil {
		return "", err
	}
	u.Host = net.JoinHostPort("127.0.0.1", u.Port())
	return u.String(), nil
}
