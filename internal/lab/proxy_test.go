package lab

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// listen returns the address of a server that gives every connection to serve.
func listen(t *testing.T, serve func(*net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); serve(c.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

func echo(c *net.TCPConn) { io.Copy(c, c) }

// link returns a network and a link from a to b.
func link(t *testing.T, target string) (*Network, *Link) {
	t.Helper()
	n := NewNetwork()
	t.Cleanup(n.Close)
	k, err := n.Link("a", "b", target)
	if err != nil {
		t.Fatal(err)
	}
	return n, k
}

func dial(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// silent fails if a byte, an end or an error arrives within a tenth of a second.
func silent(t *testing.T, c *net.TCPConn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	defer c.SetReadDeadline(time.Time{})
	n, err := c.Read(make([]byte, 64))
	if n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("during the cut: read %d bytes, %v; want nothing at all", n, err)
	}
}

func say(t *testing.T, c *net.TCPConn, s string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, c *net.TCPConn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v; want %q", got, err, want)
	}
}

// TestCutStallsEachDirection cuts one direction of an open connection at a time.
//
// Rules: none (proxy).
func TestCutStallsEachDirection(t *testing.T) {
	n, k := link(t, listen(t, echo))
	c := dial(t, k.Addr())
	say(t, c, "one")
	hear(t, c, "one")
	for _, dir := range [][2]string{{"a", "b"}, {"b", "a"}} {
		n.Cut(dir[0], dir[1])
		before := n.Bytes(dir[0], dir[1])
		say(t, c, "two")
		say(t, c, "three")
		silent(t, c)
		if got := n.Bytes(dir[0], dir[1]); got != before {
			t.Errorf("cut %v: %d bytes crossed", dir, got-before)
		}
		n.Heal(dir[0], dir[1])
		hear(t, c, "twothree")
	}
	if got := n.Bytes("a", "b"); got != 19 {
		t.Errorf("%d bytes from a to b, want 19", got)
	}
}

// TestOneWayCutLetsRequestsThrough: responses stall, requests do not.
//
// Rules: none (proxy).
func TestOneWayCutLetsRequestsThrough(t *testing.T) {
	got := make(chan string, 1)
	n, k := link(t, listen(t, func(c *net.TCPConn) {
		io.WriteString(c, "hi") // so that the client knows it is through
		buf := make([]byte, 5)
		io.ReadFull(c, buf)
		got <- string(buf)
		io.WriteString(c, "reply")
		io.Copy(io.Discard, c)
	}))
	c := dial(t, k.Addr())
	hear(t, c, "hi")
	n.Cut("b", "a")
	say(t, c, "query")
	if s := <-got; s != "query" {
		t.Fatalf("the server read %q", s)
	}
	silent(t, c)
	n.Heal("b", "a")
	hear(t, c, "reply")
}

// TestNewConnectionDuringCut is accepted, silent, and works after the heal. The
// target is not even dialled, as a SYN would not arrive; with the other direction
// cut it is dialled and gets no byte.
//
// Rules: none (proxy).
func TestNewConnectionDuringCut(t *testing.T) {
	var accepted atomic.Int64
	var bytes atomic.Int64
	n, k := link(t, listen(t, func(c *net.TCPConn) {
		accepted.Add(1)
		buf := make([]byte, 64)
		for {
			n, err := c.Read(buf)
			bytes.Add(int64(n))
			c.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}))
	n.Cut("a", "b")
	c := dial(t, k.Addr())
	say(t, c, "hello")
	silent(t, c)
	if accepted.Load() != 0 {
		t.Error("the target was dialled across a cut")
	}
	n.Cut("b", "a")
	n.Heal("a", "b")
	silent(t, c)
	if bytes.Load() != 0 {
		t.Error("a request crossed before the handshake could be complete")
	}
	n.HealAll()
	hear(t, c, "hello")
}

// TestCloseIsStalled: an end of either kind travels, but not across a cut.
//
// Rules: none (proxy).
func TestCloseIsStalled(t *testing.T) {
	for _, kind := range []string{"fin", "rst"} {
		t.Run(kind, func(t *testing.T) {
			server := make(chan *net.TCPConn)
			hold := make(chan struct{})
			n, k := link(t, listen(t, func(c *net.TCPConn) { server <- c; <-hold }))
			defer close(hold)
			c := dial(t, k.Addr())
			s := <-server
			n.Cut("a", "b")
			if kind == "rst" {
				reset(c)
			} else {
				c.Close()
			}
			silent(t, s)
			n.Heal("a", "b")
			_, err := s.Read(make([]byte, 1))
			if kind == "fin" && !errors.Is(err, io.EOF) {
				t.Errorf("after the heal: %v, want EOF", err)
			}
			if kind == "rst" && (err == nil || errors.Is(err, io.EOF)) {
				t.Errorf("after the heal: %v, want a reset", err)
			}
		})
	}
}

// TestRefusedTargetResets: where nobody listens the client hears so, after the heal only.
//
// Rules: none (proxy).
func TestRefusedTargetResets(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	n, k := link(t, addr)
	n.Cut("b", "a")
	c := dial(t, k.Addr())
	silent(t, c)
	n.Heal("b", "a")
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the refusal did not arrive")
	}
}

// TestHalfClose: a FIN in one direction leaves the other one open.
//
// Rules: none (proxy).
func TestHalfClose(t *testing.T) {
	_, k := link(t, listen(t, func(c *net.TCPConn) {
		data, _ := io.ReadAll(c)
		c.Write(bytes.ToUpper(data))
	}))
	c := dial(t, k.Addr())
	say(t, c, "abc")
	c.CloseWrite()
	got, err := io.ReadAll(c)
	if err != nil || string(got) != "ABC" {
		t.Errorf("read %q, %v", got, err)
	}
}

// TestCutInterruptsBlockedWrite: bytes that wait for a slow receiver when the
// cut comes stay behind, and a cut does not wait for that receiver.
//
// Rules: none (proxy).
func TestCutInterruptsBlockedWrite(t *testing.T) {
	release := make(chan struct{})
	sum := make(chan string, 1)
	n, k := link(t, listen(t, func(c *net.TCPConn) {
		<-release
		h := sha256.New()
		io.Copy(h, c)
		sum <- fmt.Sprintf("%x", h.Sum(nil))
	}))
	data := make([]byte, 32<<20) // more than all socket buffers
	r := rand.NewChaCha8([32]byte{1})
	r.Read(data)
	c := dial(t, k.Addr())
	go func() { c.Write(data); c.Close() }()
	for prev := uint64(1); ; { // until the pump is blocked
		now := n.Bytes("a", "b")
		time.Sleep(50 * time.Millisecond)
		if now == prev && now > 0 {
			break
		}
		prev = now
	}
	n.Cut("a", "b")
	before := n.Bytes("a", "b")
	close(release)
	time.Sleep(100 * time.Millisecond)
	if got := n.Bytes("a", "b"); got != before {
		t.Errorf("%d bytes crossed the cut", got-before)
	}
	n.Heal("a", "b")
	if got, want := <-sum, fmt.Sprintf("%x", sha256.Sum256(data)); got != want {
		t.Errorf("the bytes differ: %s, want %s", got, want)
	}
}

// TestStorm: random cuts and heals of both directions change no byte.
//
// Rules: none (proxy).
func TestStorm(t *testing.T) {
	n, k := link(t, listen(t, echo))
	stop := make(chan struct{})
	var storm sync.WaitGroup
	storm.Go(func() {
		r := rand.New(rand.NewPCG(7, 7))
		for {
			select {
			case <-stop:
				n.HealAll()
				return
			case <-time.After(time.Duration(r.IntN(3000)) * time.Microsecond):
			}
			from, to := "a", "b"
			if r.IntN(2) == 0 {
				from, to = to, from
			}
			if r.IntN(2) == 0 {
				n.Cut(from, to)
			} else {
				n.Heal(from, to)
			}
		}
	})
	var conns sync.WaitGroup
	for i := range 8 {
		conns.Go(func() {
			c, err := net.Dial("tcp", k.Addr())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			const size = 4 << 20
			sent, got := sha256.New(), sha256.New()
			done := make(chan struct{})
			go func() {
				defer close(done)
				src := rand.NewChaCha8([32]byte{byte(i)})
				r := rand.New(rand.NewPCG(uint64(i), 1))
				for left := size; left > 0; {
					b := make([]byte, min(left, 1+r.IntN(100_000)))
					src.Read(b)
					sent.Write(b)
					if _, err := c.Write(b); err != nil {
						t.Error(err)
						break
					}
					left -= len(b)
				}
				c.(*net.TCPConn).CloseWrite()
			}()
			m, err := io.Copy(got, c)
			<-done
			if err != nil || m != size || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
				t.Errorf("connection %d: %d of %d bytes, %v", i, m, size, err)
			}
		})
	}
	conns.Wait()
	close(stop)
	storm.Wait()
}

// TestCloseEndsCutConnections: Close does not wait for a heal.
//
// Rules: none (proxy).
func TestCloseEndsCutConnections(t *testing.T) {
	n, k := link(t, listen(t, echo))
	c := dial(t, k.Addr())
	say(t, c, "x")
	hear(t, c, "x")
	n.Cut("a", "b")
	n.Cut("b", "a")
	say(t, c, "y")
	d := dial(t, k.Addr())
	n.Close()
	for _, c := range []*net.TCPConn{c, d} {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("the connection lives on after Close")
		}
	}
	if _, err := n.Link("a", "b", "127.0.0.1:1"); !errors.Is(err, ErrClosed) {
		t.Errorf("link after Close: %v", err)
	}
}
