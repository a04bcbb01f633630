package arbitertest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Proxy passes HTTP/1 between a client and a store, byte for byte, counts the
// requests and disturbs them. Since the bytes are not changed, signatures over
// the Host header stay valid. GET and HEAD are reads, everything else is a swap.
type Proxy struct {
	listener net.Listener
	dial     func() (net.Conn, error)

	mu       sync.Mutex
	faults   [2]struct{ fault, left int }
	requests [2]int
	held     []chan chan struct{} // of each held request
	conns    map[net.Conn]bool
	closed   chan struct{}
	wg       sync.WaitGroup
}

var _ Faults = (*Proxy)(nil)

// NewProxy listens on loopback and passes to addr (host:port).
func NewProxy(addr string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy for %s: %w", addr, err)
	}
	return NewProxyOn(l, func() (net.Conn, error) { return net.DialTimeout("tcp", addr, 10*time.Second) }), nil
}

// NewProxyOn uses l and dial: with tls.NewListener and tls.Dial it disturbs a
// store that speaks TLS.
func NewProxyOn(l net.Listener, dial func() (net.Conn, error)) *Proxy {
	p := &Proxy{listener: l, dial: dial, conns: map[net.Conn]bool{}, closed: make(chan struct{})}
	p.wg.Go(p.accept)
	return p
}

// Addr is where the proxy listens (host:port).
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Inject implements Faults. Refuse ends the listener and every connection at once.
func (p *Proxy) Inject(op Op, f Fault, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults[op].fault, p.faults[op].left = int(f), n
	if f == Refuse {
		p.listener.Close()
		for c := range p.conns {
			c.Close()
		}
	}
}

// Requests implements Faults.
func (p *Proxy) Requests(op Op) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests[op]
}

// Release implements Faults.
func (p *Proxy) Release() {
	p.mu.Lock()
	held := p.held
	p.held = nil
	p.mu.Unlock()
	for _, h := range held {
		done := make(chan struct{})
		select {
		case h <- done:
			<-done
		case <-p.closed:
		}
	}
}

// Close ends the proxy and waits for its goroutines.
func (p *Proxy) Close() {
	p.mu.Lock()
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	p.listener.Close()
	for c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		if !p.track(c) {
			continue
		}
		p.wg.Go(func() {
			defer p.untrack(c)
			p.serve(c)
		})
	}
}

// track remembers a connection for Close; after Close it closes it.
func (p *Proxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.closed:
		c.Close()
		return false
	default:
	}
	p.conns[c] = true
	return true
}

func (p *Proxy) untrack(c net.Conn) {
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
	c.Close()
}

// arrived counts a request and says which fault it gets.
func (p *Proxy) arrived(op Op) (f Fault, held chan chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests[op]++
	if s := &p.faults[op]; s.left > 0 {
		s.left--
		f = Fault(s.fault)
	}
	if f == Hold {
		held = make(chan chan struct{})
		p.held = append(p.held, held)
	}
	return f, held
}

// serve passes the requests of one connection, one after the other.
func (p *Proxy) serve(client net.Conn) {
	in := newRecorder(client)
	var store *recorder
	defer func() {
		if store != nil {
			p.untrack(store.conn)
		}
	}()
	for {
		req, raw, err := in.request()
		if err != nil {
			return // the client left, or sent no HTTP
		}
		op := Swap
		if req.Method == http.MethodGet || req.Method == http.MethodHead {
			op = Read
		}
		fault, held := p.arrived(op)
		var delivered chan struct{}
		switch fault {
		case CutBefore, Refuse:
			return
		case Stall:
			p.waitGone(client)
			return
		case Fail:
			const body = "internal error\n"
			fmt.Fprintf(client, "HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			continue
		case Hold:
			select {
			case delivered = <-held:
			case <-p.closed:
				return
			}
		}
		if store == nil {
			conn, err := p.dial()
			if err != nil || !p.track(conn) {
				finish(delivered)
				return
			}
			store = newRecorder(conn)
		}
		resp, err := store.exchange(raw, req)
		finish(delivered)
		if err != nil || fault == LoseReply || fault == Hold {
			return
		}
		if fault == TearReply {
			client.Write(resp.raw[:len(resp.raw)/2])
			return
		}
		if _, err := client.Write(resp.raw); err != nil || resp.close || req.Close {
			return
		}
	}
}

func finish(delivered chan struct{}) {
	if delivered != nil {
		close(delivered)
	}
}

// waitGone returns when the client hangs up or the proxy closes, which closes c.
func (p *Proxy) waitGone(c net.Conn) { io.Copy(io.Discard, c) }

// recorder reads HTTP messages and keeps their bytes.
type recorder struct {
	conn net.Conn
	buf  bytes.Buffer // what r has read since the last message
	r    *bufio.Reader
}

func newRecorder(c net.Conn) *recorder {
	rec := &recorder{conn: c}
	rec.r = bufio.NewReaderSize(io.TeeReader(c, &rec.buf), 4096)
	return rec
}

// take returns the bytes of the message just read.
func (rec *recorder) take() []byte {
	n := rec.buf.Len() - rec.r.Buffered() // the rest belongs to the next message
	return bytes.Clone(rec.buf.Next(n))
}

// request reads one whole request.
func (rec *recorder) request() (*http.Request, []byte, error) {
	req, err := http.ReadRequest(rec.r)
	if err != nil {
		return nil, nil, err
	}
	if strings.EqualFold(req.Header.Get("Expect"), "100-continue") {
		if _, err := io.WriteString(rec.conn, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
			return nil, nil, err
		}
	}
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		return nil, nil, err
	}
	return req, rec.take(), nil
}

type response struct {
	raw   []byte
	close bool
}

// exchange sends a request and reads the whole final answer.
func (rec *recorder) exchange(raw []byte, req *http.Request) (response, error) {
	if _, err := rec.conn.Write(raw); err != nil {
		return response{}, err
	}
	for {
		resp, err := http.ReadResponse(rec.r, req)
		if err != nil {
			return response{}, err
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return response{}, err
		}
		b := rec.take()
		if resp.StatusCode >= 200 {
			return response{b, resp.Close}, nil
		}
		// 1xx: the client has had its own, if it asked for one.
	}
}
