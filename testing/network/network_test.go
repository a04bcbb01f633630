package network_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"twok/testing/network"
)

// helper makes the test binary a program that enters and then sleeps, for TestKilled.
const helper = "TWOK_NETWORK_TEST_SLEEP"

// wanted says that root's tests are to run, which make test does not need; proxy leaves out what needs namespaces, which are all of them.
var (
	proxy  = os.Getenv("TWOK_HARNESS") == "proxy"
	wanted = os.Getenv("TWOK_SAFETY") != "" && !proxy
)

func root(t *testing.T) {
	t.Helper()
	if proxy {
		t.Skip("left out: TWOK_HARNESS=proxy, and this needs namespaces")
	}
	if !wanted {
		t.Skip("needs root: make test-safety, or TWOK_SAFETY=1 go test ./testing/network")
	}
}

func TestMain(m *testing.M) {
	if !wanted && os.Getenv(helper) == "" {
		os.Exit(m.Run())
	}
	inside, status, err := network.Enter()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case !inside:
		os.Exit(status)
	case os.Getenv(helper) != "":
		if err := sleeper(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func sleeper() error {
	n, err := network.New(context.Background(), network.Config{Sites: []string{"a"}})
	if err != nil {
		return err
	}
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := n.In("a", cmd.Start); err != nil {
		return err
	}
	fmt.Println("ready")
	time.Sleep(time.Hour)
	return nil
}

func sites(t *testing.T, v6 bool) *network.Network {
	t.Helper()
	root(t)
	n, err := network.New(t.Context(), network.Config{Sites: []string{"a", "b", "arbiter"}, V6: v6})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// echo answers at the site; what it got is sent back.
func echo(t *testing.T, n *network.Network, site string) string {
	t.Helper()
	l, err := n.Listen(site, net.JoinHostPort(n.Host(site), "7"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); io.Copy(c, c) }()
		}
	}()
	return l.Addr().String()
}

const patience, refusal = 20 * time.Second, 700 * time.Millisecond

func dial(t *testing.T, n *network.Network, from, addr string, d time.Duration) (net.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	return n.Dial(ctx, from, addr)
}

// talk sends size bytes and wants them back within d.
func talk(c net.Conn, size int, d time.Duration) error {
	c.SetDeadline(time.Now().Add(d))
	if _, err := c.Write(make([]byte, size)); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, size))
	return err
}

// Each kind of rule stops what it names and lets the rest pass; healed, everything passes.
//
// Rules: F34.
func TestRules(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("v6=%t", v6), func(t *testing.T) {
			n := sites(t, v6)
			at := echo(t, n, "b")
			open := func() net.Conn {
				t.Helper()
				c, err := dial(t, n, "a", at, patience)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				return c
			}
			want := func(what string, err error, passes bool) {
				t.Helper()
				if passes != (err == nil) {
					t.Errorf("%s: passes should be %t: %v", what, passes, err)
				}
			}
			cut := func(rules ...network.Rule) {
				t.Helper()
				if err := n.Set(rules...); err != nil {
					t.Fatal(err)
				}
			}
			for _, r := range [][]network.Rule{
				network.Both("a", "b", network.All), {{From: "a", To: "b", Kind: network.All}}, {{From: "b", To: "a", Kind: network.All}},
			} {
				c := open()
				want("before", talk(c, 10, patience), true)
				cut(r...)
				want(fmt.Sprint("through ", r), talk(c, 10, refusal), false)
				_, err := dial(t, n, "a", at, refusal)
				want(fmt.Sprint("a new one through ", r), err, false)
				if err := n.Heal("b", "a"); err != nil {
					t.Fatal(err)
				}
				want("healed", talk(open(), 10, patience), true)
			}
			c := open()
			want("before", talk(c, 10, patience), true)
			cut(network.Both("a", "b", network.NewConns)...)
			want("an old connection", talk(c, 5000, patience), true)
			_, err := dial(t, n, "a", at, refusal)
			want("a new connection", err, false)
			cut(network.Both("a", "b", network.Large)...)
			want("small packets", talk(c, 100, patience), true)
			want("large packets", talk(c, 5000, refusal), false)
			cut()
			cut(network.Both("a", "b", network.Loss)...)
			want("with loss, TCP gets through", talk(open(), 3000, 10*patience), true)
			cut(network.Both("a", "arbiter", network.All)...)
			want("another pair of sites", talk(open(), 10, patience), true)
			if _, to, err := n.Bytes("b"); err != nil || to < 3000 {
				t.Errorf("%d bytes to b: %v", to, err)
			}
			dropped, err := n.Dropped()
			if err != nil {
				t.Fatal(err)
			}
			ab := network.Rule{From: "a", To: "b"}
			for _, ab.Kind = range []network.Kind{network.All, network.NewConns, network.Large, network.Loss} {
				if dropped[ab] == 0 {
					t.Errorf("rule %v dropped nothing", ab)
				}
			}
			idle := network.Rule{From: "a", To: "arbiter", Kind: network.All}
			if n, ok := dropped[idle]; !ok || n != 0 {
				t.Errorf("rule %v, which nobody met, dropped %d packets (%t)", idle, n, ok)
			}
			if _, ok := dropped[network.Rule{From: "arbiter", To: "b", Kind: network.All}]; ok {
				t.Error("a rule that never was in force is counted")
			}
			if err := n.Set(network.Rule{From: "a", To: "c", Kind: network.All}); err == nil {
				t.Error("a rule for a site that is not there was taken")
			}
		})
	}
}

// What one site sends to another is counted, and nothing else: not the answers, not what the program sends, not what
// is dropped.
//
// Rules: none (the harness).
func TestCount(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("v6=%t", v6), func(t *testing.T) {
			n := sites(t, v6)
			if _, err := n.Crossed("a", "b"); err == nil {
				t.Error("there is a number before anything is counted")
			}
			at := echo(t, n, "b")
			between := func(what, from, to string, least, most uint64) error {
				got, err := n.Crossed(from, to)
				if err != nil || got < least || got > most {
					return fmt.Errorf("%s: %d bytes from %s to %s, want %d to %d: %v", what, got, from, to, least, most, err)
				}
				return nil
			}
			const sent = 1 << 20
			// At most a tenth more for headers, acknowledgements and what TCP sends twice; a busy machine that reads little by little has more of
			// them, and gets another try.
			var c net.Conn
			var err error
			for range 3 {
				if err := n.Count(); err != nil {
					t.Fatal(err)
				}
				if c, err = dial(t, n, "a", at, patience); err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				back := make(chan error, 1)
				go func() { _, err := io.ReadFull(c, make([]byte, sent)); back <- err }()
				if _, err := c.Write(make([]byte, sent)); err != nil {
					t.Fatal(err)
				}
				if err := <-back; err != nil {
					t.Fatal(err)
				}
				if err = errors.Join(between("an echo", "a", "b", sent, sent*11/10), between("an echo", "b", "a", sent, sent*11/10)); err == nil {
					break
				}
			}
			if err != nil {
				t.Error(err)
			}
			check := func(err error) {
				t.Helper()
				if err != nil {
					t.Error(err)
				}
			}
			check(between("an echo", "a", "arbiter", 0, 0))
			own, err := net.DialTimeout("tcp", at, patience)
			if err != nil {
				t.Fatal(err)
			}
			defer own.Close()
			if err := talk(own, 5000, patience); err != nil {
				t.Fatal(err)
			}
			if err := n.Set(network.Both("a", "b", network.All)...); err != nil {
				t.Fatal(err)
			}
			if err := n.Count(); err != nil {
				t.Fatal(err)
			}
			if talk(c, 5000, refusal) == nil {
				t.Error("a cut link carries")
			}
			check(between("what is dropped", "a", "b", 0, 0))
			if _, err := n.Crossed("a", "a"); err == nil {
				t.Error("a site sends to itself")
			}
		})
	}
}

// A third of the packets is lost, not none and not all.
//
// Rules: F34.
func TestLoss(t *testing.T) {
	n := sites(t, false)
	var l net.PacketConn
	var c net.Conn
	err := n.In("b", func() (err error) { l, err = net.ListenPacket("udp", n.Host("b")+":9"); return err })
	if err == nil {
		err = n.In("a", func() (err error) { c, err = net.Dial("udp", n.Host("b")+":9"); return err })
	}
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	defer c.Close()
	// The neighbours' addresses are found first: packets that wait for that are dropped.
	if _, err := c.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	l.SetReadDeadline(time.Now().Add(patience))
	if _, _, err := l.ReadFrom(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if err := n.Set(network.Both("a", "b", network.Loss)...); err != nil {
		t.Fatal(err)
	}
	const sent = 1000
	arrived := make(chan int)
	go func() {
		got := 0
		for l.SetReadDeadline(time.Now().Add(patience)); ; got++ {
			if got > 0 {
				l.SetReadDeadline(time.Now().Add(time.Second))
			}
			if _, _, err := l.ReadFrom(make([]byte, 10)); err != nil {
				break
			}
		}
		arrived <- got
	}()
	for i := range sent {
		if _, err := c.Write([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Microsecond) // the receiver's buffer holds 256
	}
	got := <-arrived
	if got < 600 || got > 800 {
		t.Errorf("%d of %d packets arrived, want about 700", got, sent)
	}
}

// Where namespaces are not allowed the error says so.
//
// Rules: none (the harness).
func TestNotAllowed(t *testing.T) {
	root(t)
	if os.Getuid() != 0 {
		t.Fatal("not root, and yet inside")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tmp, err := os.MkdirTemp("", "twok-network-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	data, err := os.ReadFile(exe)
	if err == nil {
		err = os.WriteFile(tmp+"/harness", data, 0o755)
	}
	if err == nil {
		err = os.Chmod(tmp, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(tmp + "/harness")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "TWOK_HARNESS=proxy") {
		t.Errorf("a user without rights: %v: %s", err, out)
	}
}
