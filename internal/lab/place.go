package lab

// Place puts the sites into networks of their own instead of on loopback. Whoever holds the
// cluster must reach every host, cut or not. What comes between the sites is the place's
// part: they reach each other at these hosts, and Cluster.Network carries nothing.
type Place struct {
	// Hosts are the IP addresses of the two sites and of ArbiterSite.
	Hosts map[string]string
	// In runs start, which starts a process, in a site's network.
	In func(site string, start func() error) error
}

func (p *Place) host(site string) string {
	if p == nil {
		return "127.0.0.1"
	}
	return p.Hosts[site]
}

func (p *Place) in(site string, start func() error) error {
	if p == nil {
		return start()
	}
	return p.In(site, start)
}
