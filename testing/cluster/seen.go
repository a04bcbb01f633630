package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"twok/testing/history"
	"twok/testing/network"
)

// Idle is an error if a cut was made and stopped nothing: between the same two sites, of the same kind, in either direction. Without
// namespaces nobody counts, and it is nil.
func (c *Cluster) Idle() error {
	if c.net == nil {
		return nil
	}
	dropped, err := c.net.Dropped()
	if err != nil {
		return err
	}
	return idle(dropped)
}

func idle(dropped map[network.Rule]uint64) error {
	sum := map[network.Rule]uint64{}
	for r, n := range dropped {
		if r.From > r.To {
			r.From, r.To = r.To, r.From
		}
		sum[r] += n
	}
	var none []string
	for r, n := range sum {
		if n == 0 {
			none = append(none, fmt.Sprintf("%s and %s (%s)", r.From, r.To, r.Kind))
		}
	}
	if len(none) == 0 {
		return nil
	}
	slices.Sort(none)
	return fmt.Errorf("the cut between %s dropped no packet: this showed nothing", strings.Join(none, ", "))
}

// Claims are the claims that the agents' traces show so far.
func (c *Cluster) Claims() ([]history.Claim, error) {
	var f history.Final
	err := c.traces(&f)
	return f.Claims, err
}

// Replaced are the sites whose agent put a copy with another owner in the place of the WAL, as the traces show so far.
func (c *Cluster) Replaced() (map[string]bool, error) {
	var f history.Final
	err := c.traces(&f)
	sites := map[string]bool{}
	for _, r := range f.Returns {
		if r.Kept {
			sites[r.Site] = true
		}
	}
	return sites, err
}

// Phases are the phases of each site's agent that the traces show so far.
func (c *Cluster) Phases() (map[string][]history.Phase, error) {
	var f history.Final
	err := c.traces(&f)
	return f.Phases, err
}

// Serves is an error if a member's client port does not show the certificate that is in its file now.
func (c *Cluster) Serves(ctx context.Context, site string) error {
	file, err := os.ReadFile(c.tls.Cert)
	if err != nil {
		return err
	}
	want, _ := pem.Decode(file)
	u, err := url.Parse(c.Site(site).ClientURL)
	if err != nil {
		return err
	}
	cfg, err := c.tls.Client()
	if err != nil {
		return err
	}
	conn, err := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return fmt.Errorf("look at the certificate of %s: %w", site, err)
	}
	defer conn.Close()
	have := conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
	if want == nil || !bytes.Equal(have.Raw, want.Bytes) {
		return fmt.Errorf("%s shows the certificate %s, which is not the one of %s", site, have.SerialNumber, c.tls.Cert)
	}
	return nil
}

// Running is an error if one of the sites has no etcd, or no agent: what is sent to it then meets nobody.
func (c *Cluster) Running(sites ...string) error {
	for _, name := range sites {
		pid, err := c.Site(name).EtcdPID()
		if err != nil {
			return err
		}
		if pid == 0 {
			return fmt.Errorf("no etcd runs at %s", name)
		}
		if !c.Site(name).AgentAlive() {
			return fmt.Errorf("no agent runs at %s", name)
		}
	}
	return nil
}
