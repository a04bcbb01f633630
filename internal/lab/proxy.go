package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Network is a set of sites and of links between them. It stalls bytes by the
// site that sends them: a connection that b opened to a carries requests from b
// to a and responses from a to b, and cutting a to b stalls the responses only.
//
// What it cannot show: lost acknowledgements, SYN timeouts and TCP's backoff. A
// connection opened during a cut is accepted and stays silent, where in reality
// it would not be accepted. It is connected to its target only once both
// directions were open, as a handshake needs them.
type Network struct {
	mu     sync.Mutex
	closed bool
	dirs   map[[2]string]*direction
	links  []*Link

	ctx    context.Context // ends at Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// NewNetwork is a network without a cut.
func NewNetwork() *Network {
	ctx, cancel := context.WithCancel(context.Background())
	return &Network{dirs: map[[2]string]*direction{}, ctx: ctx, cancel: cancel}
}

// Link is a listener that the processes of one site use to reach one port of another.
type Link struct {
	// From is the site of whoever connects, To the site of the target.
	From, To string

	n      *Network
	l      net.Listener
	target string
}

// ErrClosed: the network was closed.
var ErrClosed = errors.New("the network is closed")

// Link listens on a free port of 127.0.0.1 for connections of site from to
// target, an address of site to. The target need not listen yet.
func (n *Network) Link(from, to, target string) (*Link, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("link %s to %s at %s: %w", from, to, target, err)
	}
	k := &Link{From: from, To: to, n: n, l: l, target: target}
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		l.Close()
		return nil, fmt.Errorf("link %s to %s at %s: %w", from, to, target, ErrClosed)
	}
	n.links = append(n.links, k)
	n.wg.Add(1)
	n.mu.Unlock()
	go k.serve()
	return k, nil
}

// Addr is the host and port to connect to.
func (k *Link) Addr() string { return k.l.Addr().String() }

// Cut stalls what site from sends to site to. When it returns no further byte,
// FIN or RST crosses. What the target's kernel already has, has arrived.
func (n *Network) Cut(from, to string) { n.direction(from, to).cutNow() }

// Heal lets what was stalled flow, in order.
func (n *Network) Heal(from, to string) { n.direction(from, to).heal() }

// HealAll heals every direction.
func (n *Network) HealAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range n.dirs {
		d.heal()
	}
}

// Bytes is how many bytes of site from arrived at site to so far.
func (n *Network) Bytes(from, to string) uint64 { return n.direction(from, to).bytes.Load() }

// Close ends every link and connection, cut or not, and waits for them.
func (n *Network) Close() {
	n.mu.Lock()
	n.closed = true
	links := n.links
	n.mu.Unlock()
	n.cancel()
	for _, k := range links {
		k.l.Close()
	}
	n.wg.Wait()
}

func (n *Network) direction(from, to string) *direction {
	n.mu.Lock()
	defer n.mu.Unlock()
	key := [2]string{from, to}
	d := n.dirs[key]
	if d == nil {
		d = &direction{active: map[*pump]struct{}{}, changed: make(chan struct{})}
		n.dirs[key] = d
	}
	return d
}

func (k *Link) serve() {
	defer k.n.wg.Done()
	for {
		c, err := k.l.Accept()
		if err != nil {
			if k.n.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of descriptors, or a connection that ended while it waited.
			select {
			case <-k.n.ctx.Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		k.n.wg.Add(1) // serve itself holds the count above zero
		go k.handle(c.(*net.TCPConn))
	}
}

// handle carries one connection until both its directions ended.
func (k *Link) handle(client *net.TCPConn) {
	defer k.n.wg.Done()
	defer client.Close()
	there, back := k.n.direction(k.From, k.To), k.n.direction(k.To, k.From)
	ctx := k.n.ctx
	if there.wait(ctx) != nil { // the SYN
		return
	}
	c, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", k.target)
	if back.wait(ctx) != nil { // its answer, be it a refusal
		if err == nil {
			c.Close()
		}
		return
	}
	if err != nil {
		reset(client)
		return
	}
	target := c.(*net.TCPConn)
	defer target.Close()
	if there.wait(ctx) != nil { // the third packet of the handshake
		return
	}
	stop := context.AfterFunc(ctx, func() { client.Close(); target.Close() })
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		(&pump{src: target, dst: client, d: back, reverse: there}).run(ctx)
	}()
	(&pump{src: client, dst: target, d: there, reverse: back}).run(ctx)
	<-done
}

func reset(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}

// direction is all that one site sends to another, over every link.
type direction struct {
	mu      sync.Mutex
	cut     bool
	changed chan struct{}      // closed and replaced when cut or active changed
	active  map[*pump]struct{} // pumps in a Write
	bytes   atomic.Uint64
}

func (d *direction) signal() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// past makes a Write return at once with what it got rid of so far.
var past = time.Unix(1, 0)

func (d *direction) cutNow() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.cut {
		d.cut = true
		d.signal()
	}
	for p := range d.active {
		p.dst.SetWriteDeadline(past)
	}
	for d.cut && len(d.active) > 0 {
		ch := d.changed
		d.mu.Unlock()
		<-ch
		d.mu.Lock()
	}
}

func (d *direction) heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cut {
		d.cut = false
		d.signal()
	}
}

// wait returns nil once the direction is open.
func (d *direction) wait(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waitLocked(ctx)
}

func (d *direction) waitLocked(ctx context.Context) error {
	for d.cut {
		ch := d.changed
		d.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
		}
		d.mu.Lock()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// pass runs act while the direction is open and keeps cutNow waiting for it.
func (d *direction) pass(ctx context.Context, act func()) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.waitLocked(ctx); err != nil {
		return err
	}
	act()
	return nil
}

// pump carries one direction of one connection through a buffer of 32 KiB.
type pump struct {
	src, dst   *net.TCPConn
	d, reverse *direction
}

func (p *pump) run(ctx context.Context) {
	buf := make([]byte, 32<<10)
	for {
		n, err := p.src.Read(buf)
		if n > 0 {
			if werr := p.write(ctx, buf[:n]); werr != nil {
				// The receiver is gone: that news travels the other way.
				p.reverse.pass(ctx, func() { reset(p.src) })
				return
			}
		}
		if errors.Is(err, io.EOF) {
			p.d.pass(ctx, func() { p.dst.CloseWrite() })
			return
		}
		if err != nil {
			p.d.pass(ctx, func() { reset(p.dst) })
			return
		}
	}
}

func (p *pump) write(ctx context.Context, b []byte) error {
	for len(b) > 0 {
		p.d.mu.Lock()
		if err := p.d.waitLocked(ctx); err != nil {
			p.d.mu.Unlock()
			return err
		}
		// Under the lock: a cut comes before this, or sees p in active.
		p.dst.SetWriteDeadline(time.Time{})
		p.d.active[p] = struct{}{}
		p.d.mu.Unlock()

		n, err := p.dst.Write(b)
		b = b[n:]
		p.d.bytes.Add(uint64(n))

		p.d.mu.Lock()
		delete(p.d.active, p)
		if p.d.cut {
			p.d.signal()
		}
		p.d.mu.Unlock()
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return nil
}
