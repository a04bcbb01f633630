package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/arbiter"
	"twok/internal/freeport"
)

// Mode says who runs etcd.
type Mode string

// The modes.
const (
	Plain     Mode = "plain"     // etcd alone, no agent, no restarts
	Supervise Mode = "supervise" // the agent starts etcd
	External  Mode = "external"  // a loop restarts etcd, the agent signals it
)

// Timing is etcd's heartbeat interval and election timeout; zero: its defaults.
type Timing struct{ Heartbeat, Election time.Duration }

// The two profiles: etcd's defaults (100 ms, 1 s), and one for inner-loop tests.
var (
	Default = Timing{}
	Fast    = Timing{Heartbeat: 20 * time.Millisecond, Election: 200 * time.Millisecond}
)

// ArbiterSite is the site of the arbiter in the network.
const ArbiterSite = "arbiter"

// Sites are the two member sites. Each is its member's name, too.
var Sites = [2]string{"a", "b"}

// Config describes a pair. Dir, Etcd and Mode are required; Twok for every Mode but Plain.
type Config struct {
	Dir    string   // data, logs and traces go there, one directory a site; must exist
	Etcd   Binaries // of both sites
	Mode   Mode
	Timing Timing

	// EtcdOf replaces Etcd at some site (mixed versions).
	EtcdOf map[string]Binaries
	// TLS makes etcd's ports https. Nil: plain text.
	TLS *TLS
	// Place is where the sites are. Nil: on loopback, with Network in between.
	Place *Place
	// EtcdFlags are added at both sites.
	EtcdFlags []string

	// Twok is the path of the twok binary.
	Twok string
	// Arbiter is the URL that the agents use. Empty: Start runs the embedded
	// arbiter from Twok.
	Arbiter string
	// Register reads the record for Whole. Nil: an HTTP register at Arbiter.
	Register arbiter.Register
	// CutArbiter leads the agents to the arbiter through the network, so that
	// Network.Cut("a", ArbiterSite) and back reach it. Not for https; a Place needs none.
	CutArbiter bool
	// ClaimAfter, HeadStart and Tick of the agents; zero: their defaults.
	ClaimAfter, HeadStart, Tick time.Duration
	// AgentFlags are added at both sites, AgentEnv to the agents' environment.
	AgentFlags, AgentEnv []string
}

// Cluster is a pair of etcd members on loopback, with its network and, but in
// mode Plain, its agents and their arbiter. Whatever is sent to the other site
// passes the network; a site's own clients and its agent use the real ports.
type Cluster struct {
	// Network has the sites "a", "b" and ArbiterSite.
	Network *Network
	// Arbiter is the URL of the arbiter itself, not through the network.
	Arbiter string

	cfg   Config
	procs *procs
	sites map[string]*Site

	mu         sync.Mutex
	register   arbiter.Register
	arbiter    *proc
	arbiterCmd []string // nil: somebody else's arbiter
	closeOnce  sync.Once
	closeErr   error
}

// NewCluster chooses ports and makes directories. It starts nothing.
func NewCluster(cfg Config) (*Cluster, error) {
	if cfg.Mode != Plain && cfg.Twok == "" {
		return nil, fmt.Errorf("lab cluster: mode %s needs Config.Twok", cfg.Mode)
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, err
	}
	cfg.Dir = dir
	ports, err := freeport.Ports(7)
	if err != nil {
		return nil, err
	}
	p, err := newProcs(cfg.Place)
	if err != nil {
		return nil, err
	}
	c := &Cluster{cfg: cfg, procs: p, Network: NewNetwork(), Arbiter: cfg.Arbiter, sites: map[string]*Site{}}
	if err := c.layout(ports); err != nil {
		return nil, errors.Join(fmt.Errorf("lab cluster in %s: %w", dir, err), c.Close())
	}
	return c, nil
}

func (c *Cluster) layout(ports []int) error {
	if c.cfg.Mode != Plain && c.Arbiter == "" {
		addr := joinPort(c.cfg.Place.host(ArbiterSite), ports[6])
		dir := filepath.Join(c.cfg.Dir, "arbiter")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		c.Arbiter = "http://" + addr + "/pair"
		c.arbiterCmd = []string{c.cfg.Twok, "arbiter", "serve", "--listen", addr, "--dir", dir}
	}
	if c.cfg.Mode != Plain {
		var err error
		if c.register, err = openRegister(c.cfg, c.Arbiter); err != nil {
			return err
		}
	}
	for i, name := range Sites {
		host := c.cfg.Place.host(name)
		s := &Site{
			Name: name, c: c,
			Dir:       filepath.Join(c.cfg.Dir, name),
			DataDir:   filepath.Join(c.cfg.Dir, name, "data"),
			EtcdLog:   filepath.Join(c.cfg.Dir, name, "etcd.log"),
			AgentLog:  filepath.Join(c.cfg.Dir, name, "agent.log"),
			Trace:     filepath.Join(c.cfg.Dir, name, "trace.jsonl"),
			ClientURL: c.cfg.TLS.scheme() + "://" + joinPort(host, ports[3*i]),
			PeerURL:   c.cfg.TLS.scheme() + "://" + joinPort(host, ports[3*i+1]),
			HealthURL: "http://" + joinPort(host, ports[3*i+2]) + "/health",
			health:    joinPort(host, ports[3*i+2]),
			arbiter:   c.Arbiter,
		}
		if err := os.MkdirAll(s.Dir, 0o700); err != nil {
			return err
		}
		if c.cfg.Mode == External {
			s.restarter = newRestarter(s.runEtcd)
		}
		c.sites[name] = s
		if c.cfg.Place != nil {
			s.AdvertisedClientURL, s.AdvertisedPeerURL = s.ClientURL, s.PeerURL
			continue
		}
		other := Sites[1-i]
		for _, p := range []struct {
			own        string
			advertised *string
		}{{s.ClientURL, &s.AdvertisedClientURL}, {s.PeerURL, &s.AdvertisedPeerURL}} {
			k, err := c.Network.Link(other, name, p.own[len(c.cfg.TLS.scheme()+"://"):])
			if err != nil {
				return err
			}
			*p.advertised = c.cfg.TLS.scheme() + "://" + k.Addr()
		}
		if c.cfg.CutArbiter && c.Arbiter != "" {
			via, err := ArbiterVia(c.Arbiter, func(target string) (string, error) {
				k, err := c.Network.Link(name, ArbiterSite, target)
				if err != nil {
					return "", err
				}
				return k.Addr(), nil
			})
			if err != nil {
				return err
			}
			s.arbiter = via
		}
	}
	return nil
}

// Site returns site "a" or "b".
func (c *Cluster) Site(name string) *Site {
	s := c.sites[name]
	if s == nil {
		panic("lab: no site " + name)
	}
	return s
}

// Other is the site that name is not.
func Other(name string) string {
	if name == Sites[0] {
		return Sites[1]
	}
	return Sites[0]
}

// Start starts the arbiter, if it is the cluster's own, and both sites. It does
// not wait until they serve; see WaitServing.
func (c *Cluster) Start(ctx context.Context) error {
	if err := c.StartArbiter(ctx); err != nil {
		return err
	}
	for _, name := range Sites {
		if err := c.sites[name].Start(); err != nil {
			return err
		}
	}
	return nil
}

// StartArbiter starts the embedded arbiter, if it is the cluster's own and not
// running, and waits for its port.
func (c *Cluster) StartArbiter(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.arbiterCmd == nil || c.arbiter.alive() {
		return nil
	}
	var err error
	c.arbiter, err = c.procs.start(ArbiterSite, c.ArbiterLog(), nil, c.arbiterCmd...)
	if err != nil {
		return err
	}
	u, err := url.Parse(c.Arbiter)
	if err != nil {
		return err
	}
	for {
		conn, err := net.Dial("tcp", u.Host)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-c.arbiter.done:
			return fmt.Errorf("the embedded arbiter ended at once; see %s", c.ArbiterLog())
		case <-ctx.Done():
			return fmt.Errorf("wait for the embedded arbiter: %w; see %s", ctx.Err(), c.ArbiterLog())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// ArbiterLog is the log file of the embedded arbiter.
func (c *Cluster) ArbiterLog() string { return filepath.Join(c.cfg.Dir, "arbiter.log") }

// KillArbiter ends the embedded arbiter by SIGKILL. StartArbiter brings it back.
func (c *Cluster) KillArbiter() error {
	if err := c.procs.kill(ArbiterSite); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arbiter.reaped()
	return nil
}

// SignalArbiter sends sig to the embedded arbiter.
func (c *Cluster) SignalArbiter(sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.arbiter.alive() {
		return fmt.Errorf("send %s to the embedded arbiter: it does not run", sig)
	}
	return c.arbiter.cmd.Process.Signal(sig)
}

// WaitServing waits until both members answer a linearizable read.
func (c *Cluster) WaitServing(ctx context.Context) error {
	for _, name := range Sites {
		if err := c.sites[name].WaitServing(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Close kills every process of the cluster and closes its network. The
// directory stays. It may be called more than once.
func (c *Cluster) Close() error {
	c.closeOnce.Do(func() {
		for _, s := range c.sites {
			if s.restarter != nil {
				s.restarter.close()
			}
		}
		c.closeErr = c.procs.close()
		c.Network.Close()
	})
	return c.closeErr
}

// CutLink cuts both directions between the two sites.
func (c *Cluster) CutLink() {
	c.Network.Cut(Sites[0], Sites[1])
	c.Network.Cut(Sites[1], Sites[0])
}

// HealLink undoes CutLink, and any other cut between the two sites.
func (c *Cluster) HealLink() {
	c.Network.Heal(Sites[0], Sites[1])
	c.Network.Heal(Sites[1], Sites[0])
}

// Leader is the site whose member leads, by what the members say, as both must.
func (c *Cluster) Leader(ctx context.Context) (string, error) {
	for {
		site, err := c.leaderOnce(ctx)
		if err == nil {
			return site, nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("find the leader: %w: %w", ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (c *Cluster) leaderOnce(ctx context.Context) (string, error) {
	ids := map[uint64]string{}
	var leader uint64
	for i, name := range Sites {
		st, err := c.sites[name].Status(ctx)
		if err != nil {
			return "", fmt.Errorf("status of %s: %w", name, err)
		}
		ids[st.Header.MemberId] = name
		if i > 0 && st.Leader != leader {
			return "", fmt.Errorf("the members name different leaders, %x and %x", leader, st.Leader)
		}
		leader = st.Leader
	}
	if leader == 0 {
		return "", errors.New("the members know no leader")
	}
	if ids[leader] == "" {
		return "", fmt.Errorf("the leader %x is neither member", leader)
	}
	return ids[leader], nil
}

// Status asks a site's member through its real client port.
func (s *Site) Status(ctx context.Context) (*clientv3.StatusResponse, error) {
	cl, err := s.Client()
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return cl.Status(ctx, s.ClientURL)
}

func joinPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
