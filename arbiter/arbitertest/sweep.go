package arbitertest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"twok/arbiter"
)

// Sweep makes swaps over connections that are cut after 0, step, 2 step, …
// bytes of the request and then of the reply, and insists that every outcome
// says no more than is known (C2): applied is there; everything but unknown is not,
// and does not come later. It returns how often it saw what, and an error if the cuts did not reach
// all of these: nothing sent, sent and not applied, applied and not answered.
func Sweep(f Fixture, step int) (seen map[string]int, err error) {
	cut, err := newCutter(f.Addr)
	if err != nil {
		return nil, err
	}
	defer cut.close()
	direct, err := f.Open()
	if err != nil {
		return nil, err
	}
	through, err := f.OpenVia(cut.l.Addr().String())
	if err != nil {
		return nil, err
	}
	if err := swap(direct, arbiter.Absent, []byte("first")); err != nil {
		return nil, err
	}
	seen = map[string]int{}
	var errs []error
	for _, reply := range []bool{false, true} {
		whole, err := undisturbed(cut, reply, direct, through)
		if err != nil {
			return seen, err
		}
		for n := 0; n <= whole+2*step; n += step {
			cut.set(n, reply)
			what, err := cutOnce(direct, through, fmt.Appendf(nil, "reply %v, %d", reply, n))
			if err != nil {
				errs = append(errs, fmt.Errorf("cut after %d bytes (of the reply %v): %w", n, reply, err))
			}
			seen[fmt.Sprintf("cut the reply %v: %s", reply, what)]++
		}
	}
	for _, must := range []string{
		"cut the reply false: class unknown, applied false", "cut the reply true: class unknown, applied true",
		"cut the reply false: class none, applied true", "cut the reply true: class none, applied true",
	} {
		if seen[must] == 0 {
			errs = append(errs, fmt.Errorf("never seen: %s; seen: %v", must, seen))
		}
	}
	return seen, errors.Join(errs...)
}

// undisturbed counts the bytes of one swap in one direction.
func undisturbed(cut *cutter, reply bool, direct, through arbiter.Register) (int, error) {
	cut.set(-1, reply)
	if what, err := cutOnce(direct, through, fmt.Appendf(nil, "whole %v", reply)); err != nil || what != "class none, applied true" {
		return 0, fmt.Errorf("undisturbed: %s: %w", what, err)
	}
	return cut.count(), nil
}

func cutOnce(direct, through arbiter.Register, next []byte) (what string, err error) {
	value, v, err := read(direct)
	if err != nil {
		return "", err
	}
	serr := swap(through, v, next)
	time.Sleep(settled / 10)
	now, _, err := read(direct)
	if err != nil {
		return "", err
	}
	applied := bytes.Equal(now, next)
	if !applied && !bytes.Equal(now, value) {
		return "", fmt.Errorf("the store holds %.60q, neither %q nor %q", now, value, next)
	}
	names := map[error]string{
		nil: "none", arbiter.ErrConflict: "conflict", arbiter.ErrUnknown: "unknown",
		arbiter.ErrUnavailable: "unavailable", arbiter.ErrForbidden: "forbidden", arbiter.ErrMisconfigured: "misconfigured",
	}
	class := arbiter.Class(serr)
	what = fmt.Sprintf("class %s, applied %v", names[class], applied)
	if applied && class != nil && class != arbiter.ErrUnknown || !applied && class == nil || class == arbiter.ErrConflict {
		return what, fmt.Errorf("%s: %w", what, serr)
	}
	return what, nil
}

// cutter passes bytes and cuts a connection once so many have passed one way.
type cutter struct {
	l      net.Listener
	target string
	wg     sync.WaitGroup
	mu     sync.Mutex
	after  int // bytes; negative: never
	reply  bool
	passed int
}

func newCutter(target string) (*cutter, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &cutter{l: l, target: target, after: -1}
	c.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.wg.Go(func() { c.carry(conn) })
		}
	})
	return c, nil
}

// close waits for the connections, which their clients have closed by now.
func (c *cutter) close() {
	c.l.Close()
	c.wg.Wait()
}

func (c *cutter) set(after int, reply bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.after, c.reply, c.passed = after, reply, 0
}

func (c *cutter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.passed
}

func (c *cutter) carry(client net.Conn) {
	defer client.Close()
	store, err := net.Dial("tcp", c.target)
	if err != nil {
		return
	}
	defer store.Close()
	c.mu.Lock()
	after, reply := c.after, c.reply
	c.mu.Unlock()
	pass := func(dst, src net.Conn, counted bool) {
		defer client.Close()
		defer store.Close()
		buf := make([]byte, 4096)
		total := 0
		for {
			n, err := src.Read(buf)
			if counted && after >= 0 && total+n > after {
				dst.Write(buf[:after-total])
				return
			}
			total += n
			if counted {
				c.mu.Lock()
				c.passed = max(c.passed, total)
				c.mu.Unlock()
			}
			if _, werr := dst.Write(buf[:n]); werr != nil || err != nil {
				return
			}
		}
	}
	done := make(chan struct{})
	go func() { defer close(done); pass(client, store, reply) }()
	pass(store, client, !reply)
	<-done
}
