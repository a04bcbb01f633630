package experiment

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

// TestGate: the read with the pattern passes, and so many more, and nothing after it, until heal ends the connections; a
// pattern in two reads is found, one in the other direction is not looked for.
//
// Rules: none (a tool of experiments).
func TestGate(t *testing.T) {
	for more, want := range map[int]string{0: "before pattern", 2: "before pattern12"} {
		g := newGate("pattern")
		target, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer target.Close()
		addr, err := g.open(target.Addr().String(), true)
		if err != nil {
			t.Fatal(err)
		}
		g.arm(more)
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s, err := target.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		got := make(chan []byte, 1)
		var buf bytes.Buffer
		write := func(to net.Conn, b string) {
			if _, err := to.Write([]byte(b)); err != nil {
				t.Fatal(err)
			}
		}
		read := func(from net.Conn, n int) {
			b := make([]byte, n)
			if err := from.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			defer from.SetReadDeadline(time.Time{})
			if _, err := io.ReadFull(from, b); err != nil {
				t.Fatal(err)
			}
			buf.Write(b)
		}
		write(s, "the pattern") // an answer
		read(c, len("the pattern"))
		buf.Reset()
		for _, b := range []string{"before pat", "tern", "1", "2", "3"}[:3+more] {
			write(c, b)
			if buf.Len() < len(want) {
				read(s, len(b))
			}
		}
		select {
		case <-g.fired:
		case <-time.After(10 * time.Second):
			t.Fatal("the gate did not close")
		}
		write(s, "a late answer")
		go func() {
			rest, _ := io.ReadAll(s)
			late, _ := io.ReadAll(c)
			got <- append(rest, late...)
		}()
		select {
		case b := <-got:
			t.Fatalf("%q passed, or the connection ended", b)
		case <-time.After(50 * time.Millisecond): // how long is nothing? A mistake shows in the next lines, too
		}
		g.heal()
		if b := <-got; buf.String() != want || len(b) > 0 {
			t.Errorf("with %d more %q passed, and after the cut %q; want %q", more, buf.String(), b, want)
		}
		if err := g.close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFreeURLs: etcds that start at the same time get no port twice; if one had another's, the other's data would be read for its own.
//
// Rules: none (a tool of experiments).
func TestFreeURLs(t *testing.T) {
	seen := map[string]bool{}
	for range 200 {
		urls, err := freeURLs(2)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range urls {
			if seen[u] {
				t.Fatalf("%s twice", u)
			}
			seen[u] = true
		}
	}
}
