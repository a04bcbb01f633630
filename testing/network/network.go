package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Config describes a network.
type Config struct {
	// Sites are their names: letters, at most eight.
	Sites []string
	// V6 gives the sites IPv6 addresses only.
	V6 bool
}

// Network is a router and its sites. Its methods may be called by several goroutines at a time.
type Network struct {
	cfg  Config
	home int // the router's namespace
	ns   map[string]int

	mu      sync.Mutex
	rules   []Rule
	dropped map[Rule]uint64 // packets, by rules of before
}

// New makes the sites. The program must be inside (Enter).
func New(ctx context.Context, cfg Config) (n *Network, err error) {
	n = &Network{cfg: cfg, ns: map[string]int{}, home: -1, dropped: map[Rule]uint64{}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make the network: %w", err), n.Close())
		}
	}()
	if n.home, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return n, err
	}
	for _, f := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/net/"+f, []byte("1"), 0); err != nil {
			return n, fmt.Errorf("let the router forward: %w", err)
		}
	}
	if err := run(ctx, "", "ip", "link", "set", "lo", "up"); err != nil {
		return n, err
	}
	for i, s := range cfg.Sites {
		if err := n.add(ctx, i, s); err != nil {
			return n, fmt.Errorf("site %s: %w", s, err)
		}
	}
	return n, n.Set()
}

// prefix is the network between the router (.1) and site i (.2).
func (n *Network) prefix(i int) (router, site netip.Addr, bits int) {
	if n.cfg.V6 {
		p := fmt.Sprintf("fd77:7477:6f6b:%x::", i+1)
		return netip.MustParseAddr(p + "1"), netip.MustParseAddr(p + "2"), 64
	}
	p := fmt.Sprintf("10.77.%d.", i+1)
	return netip.MustParseAddr(p + "1"), netip.MustParseAddr(p + "2"), 24
}

func (n *Network) add(ctx context.Context, i int, name string) error {
	err := n.thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("%w: %w", ErrNotAllowed, err)
		}
		fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		n.ns[name] = fd
		return err
	})
	if err != nil {
		return err
	}
	router, site, bits := n.prefix(i)
	dev := link(name)
	// One segment a packet, so that a packet's length is what crosses the wire.
	err = run(ctx, fmt.Sprintf(`link add %[1]s gso_max_segs 1 type veth peer name eth0 netns /proc/%[2]d/fd/%[3]d
addr add %[4]s/%[5]d dev %[1]s nodad
link set %[1]s up
`, dev, os.Getpid(), n.ns[name], router, bits), "ip", "-batch", "-")
	if err != nil {
		return err
	}
	return n.In(name, func() error {
		return run(ctx, fmt.Sprintf(`link set lo up
link set eth0 gso_max_segs 1
addr add %s/%d dev eth0 nodad
link set eth0 up
route add default via %s
`, site, bits, router), "ip", "-batch", "-")
	})
}

// link is the router's end of a site's link.
func link(site string) string { return "tw-" + site }

// run runs a tool in the namespace of this thread.
func run(ctx context.Context, stdin string, argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// Host is a site's address.
func (n *Network) Host(site string) string {
	i := slices.Index(n.cfg.Sites, site)
	if i < 0 {
		panic("network: no site " + site)
	}
	_, a, _ := n.prefix(i)
	return a.String()
}

// thread runs f on a thread of its own. The thread ends if it cannot go back to the router's namespace.
func (n *Network) thread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := f()
		if back := unix.Setns(n.home, unix.CLONE_NEWNET); back != nil {
			done <- errors.Join(err, fmt.Errorf("leave the site: %w", back))
			return // and the thread with it
		}
		runtime.UnlockOSThread()
		done <- err
	}()
	return <-done
}

// In runs f on a thread that is in the site's network: what f starts or opens there stays there.
// f must not hand that work to another goroutine.
func (n *Network) In(site string, f func() error) error {
	fd, ok := n.ns[site]
	if !ok {
		return fmt.Errorf("network: no site %q", site)
	}
	return n.thread(func() error {
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter site %s: %w", site, err)
		}
		return f()
	})
}

// Dial connects from a site to an IP address with its port.
func (n *Network) Dial(ctx context.Context, site, addr string) (c net.Conn, err error) {
	err = n.In(site, func() error {
		var d net.Dialer
		c, err = d.DialContext(ctx, "tcp", addr)
		return err
	})
	return c, err
}

// Listen listens in a site.
func (n *Network) Listen(site, addr string) (l net.Listener, err error) {
	err = n.In(site, func() error {
		l, err = net.Listen("tcp", addr)
		return err
	})
	return l, err
}

// Close removes rules and links. The sites' namespaces end with the last process in them.
func (n *Network) Close() error {
	var errs []error
	for s, fd := range n.ns {
		errs = append(errs, run(context.Background(), "", "ip", "link", "del", link(s)), unix.Close(fd))
	}
	if n.home >= 0 {
		errs = append(errs, run(context.Background(), "table inet twok\ndelete table inet twok\ntable inet "+countTable+"\ndelete table inet "+countTable+"\n", "nft", "-f", "-"), unix.Close(n.home))
	}
	n.ns, n.home = nil, -1
	return errors.Join(errs...)
}

// Bytes is what crossed the site's link so far, as the router counts it.
func (n *Network) Bytes(site string) (fromSite, toSite uint64, err error) {
	data, err := os.ReadFile("/proc/thread-self/net/dev")
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(data)) {
		name, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		if f := strings.Fields(rest); ok && name == link(site) && len(f) > 8 {
			fromSite, err = strconv.ParseUint(f[0], 10, 64)
			if err == nil {
				toSite, err = strconv.ParseUint(f[8], 10, 64)
			}
			return fromSite, toSite, err
		}
	}
	return 0, 0, fmt.Errorf("the link of site %s is not in /proc/net/dev", site)
}
