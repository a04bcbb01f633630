package etcd

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"twok/arbiter"
)

// byteCutter passes bytes between its clients and an etcd and cuts a connection
// once so many bytes have passed in one direction.
type byteCutter struct {
	l       net.Listener
	target  string
	mu      sync.Mutex
	after   int  // bytes; negative: never
	replies bool // count the direction from the store
	passed  int  // in the counted direction, by the last connection
}

func newByteCutter(t *testing.T, target string) *byteCutter {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &byteCutter{l: l, target: target, after: -1}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go c.carry(conn)
		}
	}()
	return c
}

func (c *byteCutter) set(after int, replies bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.after, c.replies, c.passed = after, replies, 0
}

func (c *byteCutter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.passed
}

func (c *byteCutter) carry(client net.Conn) {
	defer client.Close()
	store, err := net.Dial("tcp", c.target)
	if err != nil {
		return
	}
	defer store.Close()
	c.mu.Lock()
	after, replies := c.after, c.replies
	c.mu.Unlock()
	limited := func(dst, src net.Conn, counted bool) {
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
				c.passed = total
				c.mu.Unlock()
			}
			if _, werr := dst.Write(buf[:n]); werr != nil || err != nil {
				return
			}
		}
	}
	go limited(client, store, replies)
	limited(store, client, !replies)
	io.Copy(io.Discard, client)
}

// A connection that is cut after any number of bytes, in either direction,
// leaves an outcome that says no more than is known: applied is there, everything
// but unknown is not, and what is not there does not come later.
// Rules: P1; F29.
func TestCutAtEveryByte(t *testing.T) {
	c := startCluster(t, "3.7", 1)
	cut := newByteCutter(t, c.members[0].client)
	direct := open(t, Config{Endpoints: c.endpoints(), Key: "k"})
	through := open(t, Config{Endpoints: []string{cut.l.Addr().String()}, Key: "k"})
	if err := direct.CompareAndSwap(t.Context(), arbiter.Absent, []byte("0")); err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]int{}
	for _, replies := range []bool{false, true} {
		cut.set(-1, replies)
		whole := 0
		for n := 0; ; n += 7 {
			value, v, err := direct.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if whole == 0 {
				n = 0
			} else {
				cut.set(n, replies)
			}
			next := fmt.Appendf(nil, "%v-%d-%d", replies, whole, n)
			err = through.CompareAndSwap(t.Context(), v, next)
			if whole == 0 {
				if err != nil {
					t.Fatal(err)
				}
				whole = cut.count() // what an undisturbed swap needs, about
				continue
			}
			time.Sleep(5 * time.Millisecond)
			now, _, rerr := direct.Read(t.Context())
			if rerr != nil {
				t.Fatal(rerr)
			}
			applied := bytes.Equal(now, next)
			if !applied && !bytes.Equal(now, value) {
				t.Fatalf("the store holds %q, neither %q nor %q", now, value, next)
			}
			class := arbiter.Class(err)
			if applied && class != nil && class != arbiter.ErrUnknown || !applied && class == nil || class == arbiter.ErrConflict {
				t.Errorf("cut after %d bytes (replies %v): %v, and applied is %v", n, replies, err, applied)
			}
			outcomes[fmt.Sprintf("replies %v, %v, applied %v", replies, class, applied)]++
			if n > whole+64 {
				break
			}
		}
		cut.set(-1, false)
	}
	for o, n := range outcomes {
		t.Logf("%3d %s", n, o)
	}
	for _, must := range []string{
		fmt.Sprintf("replies false, %v, applied false", arbiter.ErrUnknown), fmt.Sprintf("replies true, %v, applied true", arbiter.ErrUnknown),
		fmt.Sprintf("replies false, %v, applied false", arbiter.ErrUnavailable),
	} {
		if outcomes[must] == 0 {
			t.Errorf("never seen: %s", must)
		}
	}
}
