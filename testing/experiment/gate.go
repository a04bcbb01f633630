package experiment

import (
	"bytes"
	"errors"
	"net"
	"sync"
)

// gate carries the peers' connections and ends the connection between them at one place of the stream: after the
// read that holds a pattern in what goes to one side, and some more reads of that connection, nothing
// passes any more, either way, on any connection (a read that was being passed on at that moment still arrives). Connections of then stay open and silent until heal.
type gate struct {
	pattern []byte

	mu     sync.Mutex
	more   int // reads after the one with the pattern
	armed  bool
	found  net.Conn // the source in which the pattern was
	cut    bool
	fired  chan struct{} // closed with the cut
	healed chan struct{} // closed by heal
	conns  map[net.Conn]bool
	ls     []net.Listener
	wg     sync.WaitGroup
}

func newGate(pattern string) *gate {
	return &gate{pattern: []byte(pattern), fired: make(chan struct{}), healed: make(chan struct{}), conns: map[net.Conn]bool{}}
}

// open listens for connections to target and returns the address. requests says that what the side that connects sends
// is looked at; otherwise it is what it gets.
func (g *gate) open(target string, requests bool) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	g.ls = append(g.ls, l)
	g.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			g.wg.Go(func() { g.carry(c, target, requests) })
		}
	})
	return l.Addr().String(), nil
}

// arm lets the next pattern cut, after so many more reads.
func (g *gate) arm(more int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed, g.more = true, more
}

// heal ends what was cut; new connections pass.
func (g *gate) heal() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cut {
		g.cut, g.armed = false, false
		close(g.healed)
	}
}

// close ends everything and waits for it.
func (g *gate) close() error {
	g.heal()
	var errs []error
	for _, l := range g.ls {
		errs = append(errs, l.Close())
	}
	g.mu.Lock()
	for c := range g.conns {
		c.Close()
	}
	g.mu.Unlock()
	g.wg.Wait()
	return errors.Join(errs...)
}

func (g *gate) carry(c net.Conn, target string, requests bool) {
	g.mu.Lock()
	cut, healed := g.cut, g.healed
	g.conns[c] = true
	g.mu.Unlock()
	defer g.drop(c)
	if cut {
		<-healed
		return
	}
	t, err := net.Dial("tcp", target)
	if err != nil {
		return // and who connected sees it end
	}
	g.mu.Lock()
	g.conns[t] = true
	g.mu.Unlock()
	defer g.drop(t)
	done := make(chan struct{})
	go func() { g.pump(c, t, requests); close(done) }()
	g.pump(t, c, !requests)
	<-done
}

func (g *gate) drop(c net.Conn) {
	c.Close()
	g.mu.Lock()
	delete(g.conns, c)
	g.mu.Unlock()
}

// pump ends both connections with either.
func (g *gate) pump(src, dst net.Conn, look bool) {
	defer dst.Close()
	defer src.Close()
	buf := make([]byte, 32<<10)
	var tail []byte
	for {
		n, err := src.Read(buf)
		if n > 0 && !g.pass(src, dst, buf[:n], look, &tail) {
			return
		}
		if err != nil {
			g.mu.Lock()
			cut, healed := g.cut, g.healed
			g.mu.Unlock()
			if cut {
				<-healed // an end is news, too
			}
			return
		}
	}
}

// verdict is what becomes of a read.
type verdict int

const (
	passes verdict = iota
	passesLast
	stays
)

// decide looks at a read of src. tail is the end of what it has looked at in src before.
func (g *gate) decide(src net.Conn, b []byte, look bool, tail *[]byte) (verdict, chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.cut:
		return stays, g.healed
	case !look || !g.armed:
		return passes, nil
	case g.found == nil:
		all := append(*tail, b...)
		if !bytes.Contains(all, g.pattern) {
			*tail = bytes.Clone(all[max(0, len(all)-len(g.pattern)+1):])
			return passes, nil
		}
		g.found = src
	case g.found != src:
		return passes, nil
	default:
		g.more--
	}
	if g.more > 0 {
		return passes, nil
	}
	g.cut = true
	close(g.fired)
	return passesLast, g.healed
}

// pass passes b on, unless the gate is closed: then it waits for heal, and b is lost.
func (g *gate) pass(src, dst net.Conn, b []byte, look bool, tail *[]byte) bool {
	v, healed := g.decide(src, b, look, tail)
	if v != stays {
		if _, err := dst.Write(b); err != nil {
			return false
		}
	}
	if v == passes {
		return true
	}
	<-healed
	return false
}
