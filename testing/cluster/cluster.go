package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"twok/arbiter"
	"twok/arbiter/configmap"
	etcdstore "twok/arbiter/etcd"
	"twok/arbiter/s3"
	"twok/internal/lab"
	"twok/testing/network"
	"twok/testing/workload"
)

// Arbiters are the kinds of arbiter.
var Arbiters = []string{"serve", "s3", "etcd", "configmap"}

// Modes of the agent, with or without etcd as its child.
var Modes = map[string]lab.Mode{"supervise": lab.Supervise, "signal": lab.External, "bare": lab.Plain}

// ErrNoNamespaces: what was asked for needs namespaces, and this is the proxy's subset.
var ErrNoNamespaces = errors.New("needs network namespaces: run as root without TWOK_HARNESS=proxy")

// Proxy says whether the subset without namespaces was asked for.
func Proxy() bool { return os.Getenv("TWOK_HARNESS") == "proxy" }

// Options describe a pair.
type Options struct {
	Dir     string // of everything; must exist
	Twok    string // the program
	Minor   string // etcd's release line
	Arbiter string // of Arbiters
	Mode    string // of Modes
	// Real is etcd's own timing and the agents' own claim-after. Otherwise both are fast.
	Real bool
	// TLS makes etcd's ports ask for certificates. Auth turns authentication on, by their common names.
	TLS, Auth bool
	// Tokens makes the workload's clients log in with a user and a password, and a certificate that names nobody: "simple" or "jwt", etcd's kinds of
	// tokens. It takes Auth. Agents go on with their certificates.
	Tokens string
	V6     bool
	// EtcdFlags and AgentFlags are added at both sites, AgentEnv to the agents' environment.
	EtcdFlags, AgentFlags, AgentEnv []string
	// MinorOf replaces Minor at some site, SiteEtcdFlags are added at some site, as long as nothing else is said there (lab.Site.EtcdFlags).
	MinorOf       map[string]string
	SiteEtcdFlags map[string][]string
	// Names are the members' names by site; they are those of the sites otherwise.
	Names map[string]string
	// LocalPeer lets the agents ask their etcd's peer port at loopback, where nobody else reaches it; etcd advertises the site's address as ever.
	LocalPeer bool
	// SmallDisk mounts a file system of so many bytes for the data of this site.
	SmallDisk map[string]int64
	// Lies: the arbiter is a store that can be made to lie (Liar), whatever Arbiter says.
	// Lie is the one that it tells from the start.
	Lies bool
	Lie  Lie
	// Syncs takes down which files the agents and the etcds sync (Synced).
	Syncs bool
	// Unarmed: Start does not wait until the pair is whole, which it never will be.
	Unarmed bool
	// Log is told what takes long: tools that are built.
	Log io.Writer
}

// Cluster is a pair.
type Cluster struct {
	*lab.Cluster
	Options Options
	Liar    *Liar // with Options.Lies

	net     *network.Network // nil: proxy
	tls     *lab.TLS
	pki     *pki
	store   *lab.Store
	kube    *lab.Kubernetes
	closers []func() error
	mounts  []string
}

// New makes networks, stores and directories. Start starts the pair.
func New(ctx context.Context, o Options) (c *Cluster, err error) {
	c = &Cluster{Options: o}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make the cluster in %s: %w", o.Dir, err), c.Close())
		}
	}()
	mode, ok := Modes[o.Mode]
	if !ok || !slices.Contains(Arbiters, o.Arbiter) {
		return c, fmt.Errorf("no mode %q, or no arbiter %q", o.Mode, o.Arbiter)
	}
	if o.Auth && !o.TLS {
		return c, errors.New("authentication goes by the names of certificates: Auth needs TLS")
	}
	if o.Tokens != "" && !o.Auth {
		return c, errors.New("tokens need Auth")
	}
	cfg := lab.Config{
		Dir: o.Dir, Mode: mode, Twok: o.Twok, CutArbiter: true, EtcdFlags: o.EtcdFlags, AgentEnv: o.AgentEnv,
		// One loss follows another here.
		AgentFlags: append([]string{"--hold-down", "0", "--min-run", "3s", "--record-interval", "1s"}, o.AgentFlags...),
	}
	if cfg.Etcd, err = lab.Etcd(ctx, o.Minor, o.Log); err != nil {
		return c, err
	}
	cfg.EtcdOf = map[string]lab.Binaries{}
	for site, minor := range o.MinorOf {
		if cfg.EtcdOf[site], err = lab.Etcd(ctx, minor, o.Log); err != nil {
			return c, err
		}
	}
	if !o.Real {
		cfg.Timing, cfg.ClaimAfter = lab.Fast, c.ClaimAfter()
	}
	hosts := []string{"127.0.0.1"}
	if !Proxy() {
		if cfg.Place, err = c.place(ctx); err != nil {
			return c, err
		}
		for _, s := range lab.Sites {
			hosts = append(hosts, cfg.Place.Hosts[s])
		}
	} else if o.V6 {
		return c, fmt.Errorf("IPv6: %w", ErrNoNamespaces)
	}
	if o.TLS {
		if c.pki, c.tls, err = certificates(filepath.Join(o.Dir, "tls"), hosts); err != nil {
			return c, err
		}
		cfg.TLS = c.tls
	}
	if o.Tokens != "" {
		flags, err := tokens(filepath.Join(o.Dir, "tls"), o.Tokens)
		if err != nil {
			return c, err
		}
		cfg.EtcdFlags = append(slices.Clone(cfg.EtcdFlags), flags...)
	}
	if err := c.arbiter(ctx, &cfg); err != nil {
		return c, err
	}
	if o.Syncs {
		if err := c.strace(&cfg); err != nil {
			return c, err
		}
	}
	if c.Cluster, err = lab.NewCluster(cfg); err != nil {
		return c, err
	}
	for _, site := range lab.Sites {
		flags := append(c.named(site), o.SiteEtcdFlags[site]...)
		if o.LocalPeer {
			local, err := c.localPeer(site)
			if err != nil {
				return c, err
			}
			flags = append(flags, "--listen-peer-urls", c.Site(site).PeerURL+","+local)
			c.Site(site).AgentFlags("--peer-url", local)
		}
		c.Site(site).EtcdFlags(flags...)
	}
	for site, size := range o.SmallDisk {
		if err := c.mount(site, size); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (c *Cluster) place(ctx context.Context) (*lab.Place, error) {
	sites := append(lab.Sites[:], lab.ArbiterSite)
	n, err := network.New(ctx, network.Config{Sites: sites, V6: c.Options.V6})
	if err != nil {
		return nil, err
	}
	c.net = n
	p := &lab.Place{Hosts: map[string]string{}, In: n.In}
	for _, s := range sites {
		p.Hosts[s] = n.Host(s)
	}
	return p, nil
}

// arbiter starts the store, but for the embedded one, which is lab's.
func (c *Cluster) arbiter(ctx context.Context, cfg *lab.Config) (err error) {
	dir := filepath.Join(c.Options.Dir, "store")
	if c.Options.Lies {
		return c.liar(cfg)
	}
	switch c.Options.Arbiter {
	case "serve":
		return nil
	case "configmap":
		if c.kube, err = lab.StartKubernetes(ctx, dir, "", c.Options.Log); err != nil {
			return err
		}
		if err := setenv(c.kube.Env); err != nil {
			return err
		}
		cfg.CutArbiter = false
		cfg.Arbiter, cfg.AgentEnv = c.kube.URL, append(slices.Clone(cfg.AgentEnv), c.kube.Env...)
		cfg.Register, err = configmap.New(configmap.Config{Namespace: "twok", Name: "pair"})
		return errors.Join(err, c.apiserver(c.kube.Addr()))
	}
	if c.store, err = lab.StartStoreAt(ctx, c.Options.Arbiter, dir, c.Options.Log, cfg.Place); err != nil {
		return err
	}
	cfg.Arbiter, cfg.AgentEnv = c.store.URL, append(slices.Clone(cfg.AgentEnv), c.store.Env...)
	if err := setenv(c.store.Env); err != nil {
		return err
	}
	cfg.Register, err = register(c.Options.Arbiter, c.store.URL)
	return err
}

func setenv(env []string) error {
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}

// register reads the record for the harness itself.
func register(kind, raw string) (arbiter.Register, error) {
	if kind == "etcd" {
		addr, key, _ := strings.Cut(strings.TrimPrefix(raw, "etcd://"), "/")
		return etcdstore.New(etcdstore.Config{Endpoints: []string{addr}, Key: key})
	}
	u, err := url.Parse(raw)
	if err != nil {
		return nil, err
	}
	return s3.New(s3.Config{Bucket: u.Host, Key: strings.TrimPrefix(u.Path, "/"), Endpoint: u.Query().Get("endpoint"), PathStyle: true})
}

// apiserver leads from its port on each member site's loopback to the arbiter's site, and from there to
// the apiserver, whose certificate is for loopback alone. Between the sites it is an ordinary connection.
func (c *Cluster) apiserver(addr string) error {
	if c.net == nil {
		return nil
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	at := net.JoinHostPort(c.net.Host(lab.ArbiterSite), port)
	err = c.forward(lab.ArbiterSite, at, func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", addr)
	})
	for _, s := range lab.Sites {
		err = errors.Join(err, c.forward(s, net.JoinHostPort("127.0.0.1", port), func(ctx context.Context) (net.Conn, error) {
			return c.net.Dial(ctx, s, at)
		}))
	}
	return err
}

// forward carries connections from a port of a site to wherever to leads.
func (c *Cluster) forward(site, addr string, to func(context.Context) (net.Conn, error)) error {
	l, err := c.net.Listen(site, addr)
	if err != nil {
		return fmt.Errorf("forward %s of site %s: %w", addr, site, err)
	}
	c.closers = append(c.closers, l.Close)
	go func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer a.Close()
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				b, err := to(ctx)
				cancel()
				if err != nil {
					return // and the caller sees its connection end
				}
				defer b.Close()
				done := make(chan struct{}, 2)
				for _, x := range [][2]net.Conn{{a, b}, {b, a}} {
					go func() {
						io.Copy(x[0], x[1]) // it ends with either connection
						x[0].(*net.TCPConn).CloseWrite()
						done <- struct{}{}
					}()
				}
				<-done
				<-done
			}()
		}
	}()
	return nil
}

func (c *Cluster) mount(site string, size int64) error {
	if c.net == nil {
		return fmt.Errorf("a small disk: %w", ErrNoNamespaces) // only there mounts are nobody else's
	}
	dir := c.Site(site).DataDir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", size)); err != nil {
		return fmt.Errorf("mount a file system of %d bytes at %s: %w", size, dir, err)
	}
	c.mounts = append(c.mounts, dir)
	return nil
}

// Start starts the pair and waits until both members serve; with agents, until it is whole.
func (c *Cluster) Start(ctx context.Context) error {
	if err := c.Cluster.Start(ctx); err != nil {
		return err
	}
	if err := c.WaitServing(ctx); err != nil {
		return err
	}
	if c.Options.Auth {
		if err := c.enableAuth(ctx); err != nil {
			return fmt.Errorf("turn authentication on: %w", err)
		}
	}
	if c.Options.Mode == "bare" || c.Options.Unarmed {
		return nil
	}
	_, err := c.WaitWhole(ctx, nil)
	return err
}

// Clients are the sites as the workload's clients use them.
func (c *Cluster) Clients() (sites []workload.Site, err error) {
	tc, err := c.clientTLS()
	if err != nil {
		return nil, err
	}
	for _, name := range lab.Sites {
		s := workload.Site{Name: name, URL: c.Site(name).ClientURL, TLS: tc}
		if c.Options.Tokens != "" {
			s.User, s.Password = clientUser, clientPassword
		}
		if c.net != nil {
			s.Dial = func(ctx context.Context, addr string) (net.Conn, error) { return c.net.Dial(ctx, name, addr) }
		}
		sites = append(sites, s)
	}
	return sites, nil
}

// Cut forbids what the rules say. Without namespaces there is network.All only, and a cut stalls what it would drop.
func (c *Cluster) Cut(rules ...network.Rule) error {
	if c.net != nil {
		return c.net.Cut(rules...)
	}
	for _, r := range rules {
		if r.Kind != network.All {
			return fmt.Errorf("cut %s: %w", r.Kind, ErrNoNamespaces)
		}
		c.Network.Cut(r.From, r.To)
	}
	return nil
}

// Heal undoes every cut between two sites.
func (c *Cluster) Heal(a, b string) error {
	if c.net != nil {
		return c.net.Heal(a, b)
	}
	c.Network.Heal(a, b)
	c.Network.Heal(b, a)
	return nil
}

// HealAll undoes every cut.
func (c *Cluster) HealAll() error {
	if c.net != nil {
		return c.net.Set()
	}
	c.Network.HealAll()
	return nil
}

// Bytes is what crossed the link of a site so far; without namespaces it is what the other member sent and got.
func (c *Cluster) Bytes(site string) (from, to uint64, err error) {
	if c.net != nil {
		return c.net.Bytes(site)
	}
	other := lab.Other(site)
	return c.Network.Bytes(site, other), c.Network.Bytes(other, site), nil
}

// KillArbiter ends the arbiter's process by SIGKILL. StartArbiter starts it again on its data.
func (c *Cluster) KillArbiter() error {
	switch {
	case c.kube != nil:
		return c.kube.Kill()
	case c.store != nil:
		return c.store.Kill()
	}
	return c.Cluster.KillArbiter()
}

// StartArbiter starts the arbiter after KillArbiter.
func (c *Cluster) StartArbiter(ctx context.Context) error {
	switch {
	case c.kube != nil:
		return c.kube.Start(ctx)
	case c.store != nil:
		return c.store.Start(ctx)
	}
	return c.Cluster.StartArbiter(ctx)
}

// SignalArbiter sends sig to the arbiter's process; not to an apiserver.
func (c *Cluster) SignalArbiter(sig syscall.Signal) error {
	switch {
	case c.kube != nil:
		return errors.New("an apiserver is not signalled")
	case c.store != nil:
		return c.store.Signal(sig)
	}
	return c.Cluster.SignalArbiter(sig)
}

// Close ends everything. It may be called more than once.
func (c *Cluster) Close() error {
	var errs []error
	if c.Cluster != nil {
		errs = append(errs, c.Cluster.Close())
	}
	for _, f := range c.closers {
		errs = append(errs, f())
	}
	if c.store != nil {
		errs = append(errs, c.store.Close())
	}
	if c.kube != nil {
		errs = append(errs, c.kube.Close())
	}
	for _, dir := range c.mounts {
		err := unix.Unmount(dir, 0)
		for range 100 { // a process that was killed a moment ago may not have let go of its files yet
			if !errors.Is(err, unix.EBUSY) {
				break
			}
			time.Sleep(50 * time.Millisecond)
			err = unix.Unmount(dir, 0)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", dir, err))
		}
	}
	if c.net != nil {
		errs = append(errs, c.net.Close())
	}
	c.Cluster, c.closers, c.store, c.kube, c.mounts, c.net = nil, nil, nil, nil, nil, nil
	return errors.Join(errs...)
}
