package httpcas

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"twok/arbiter"
)

const childDir = "TWOK_TEST_SERVE" // set in the child: the directory to serve

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		os.Exit(child(dir))
	}
	os.Exit(m.Run())
}

// child serves dir, prints its address, and ends by SIGTERM.
func child(dir string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	s, err := NewServer(dir)
	if err == nil {
		var l net.Listener
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err == nil {
			fmt.Println(l.Addr())
			err = s.Serve(ctx, l, 5*time.Second, log.New(os.Stderr, "", 0))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

type process struct {
	cmd  *exec.Cmd
	addr string
}

func startChild(t *testing.T, dir string) process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the child did not start: %v", err)
	}
	return process{cmd, strings.TrimSpace(addr)}
}

// The value of the kill test is the list of all swaps ever applied, one a line.
type entry struct {
	key   string
	place int // in the list
	name  string
}

// stormOnce lets writers append to the keys until the server is gone, and
// returns what was acknowledged and which may have been applied.
func stormOnce(t *testing.T, addr string, round, writers int, keys []string, kill func()) (acked []entry, doubt map[string]bool) {
	var mu sync.Mutex
	doubt = map[string]bool{}
	count := 0
	var wg sync.WaitGroup
	for w := range writers {
		key := keys[w%len(keys)]
		r := open(t, "http://"+addr+"/"+key)
		wg.Go(func() {
			for i := 0; ; i++ {
				value, v, err := r.Read(t.Context())
				if err != nil {
					return // the server is gone
				}
				name := fmt.Sprintf("r%d-w%d-%d", round, w, i)
				next := append(value, name+"\n"...)
				if len(next) > MaxValue {
					return
				}
				err = r.CompareAndSwap(t.Context(), v, next)
				mu.Lock()
				switch arbiter.Class(err) {
				case nil:
					acked = append(acked, entry{key, strings.Count(string(value), "\n"), name})
				case arbiter.ErrUnknown:
					doubt[name] = true
				}
				count++
				mu.Unlock()
			}
		})
	}
	// Killed in the middle of the storm, wherever that is.
	goal := 60 + rand.Intn(120)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		mu.Lock()
		n := count
		mu.Unlock()
		if n >= goal {
			break
		}
	}
	kill()
	wg.Wait()
	return acked, doubt
}

// A server killed under a storm of writers loses no acknowledged swap, and
// applies nothing that was refused.
// Rules: P1.
func TestKillUnderStorm(t *testing.T) {
	const rounds, writers = 5, 6
	dir := filepath.Join(t.TempDir(), "arbiter")
	keys := []string{"pair/a", "pair/b"}
	var acked []entry
	doubt := map[string]bool{}
	for round := range rounds {
		p := startChild(t, dir)
		a, d := stormOnce(t, p.addr, round, writers, keys, func() {
			if err := p.cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
		})
		if err := p.cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("the child ended by itself: %v", err)
		}
		if len(a) < 20 {
			t.Fatalf("only %d swaps before the kill: no storm", len(a))
		}
		acked = append(acked, a...)
		for name := range d {
			doubt[name] = true
		}
		checkLists(t, dir, keys, acked, doubt)
	}
	t.Logf("%d acknowledged swaps, %d unknown, %d kills", len(acked), len(doubt), rounds)
}

// checkLists reads through a fresh process, which is stopped by SIGTERM.
func checkLists(t *testing.T, dir string, keys []string, acked []entry, doubt map[string]bool) {
	t.Helper()
	p := startChild(t, dir)
	defer func() {
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("SIGTERM: %v", err)
		}
	}()
	place := map[entry]bool{}
	for _, e := range acked {
		place[e] = true
	}
	applied := 0
	for _, key := range keys {
		value, _, err := open(t, "http://"+p.addr+"/"+key).Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, name := range strings.Fields(string(value)) {
			if place[entry{key, i, name}] {
				applied++
			} else if !doubt[name] {
				t.Errorf("%s: %s is at place %d: it was neither acknowledged there nor in doubt", key, name, i)
			}
		}
	}
	if applied != len(acked) {
		t.Errorf("%d swaps were acknowledged, %d of them are there", len(acked), applied)
	}
}

// Rules: none (shutdown).
func TestServeFinishesRequests(t *testing.T) {
	p := startChild(t, t.TempDir())
	c, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in := bufio.NewReader(c)
	// The server is in the middle of this request when the signal comes.
	io.WriteString(c, "PUT /k HTTP/1.1\r\nHost: x\r\nIf-None-Match: *\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, "100") {
		t.Fatalf("%q %v", line, err)
	}
	in.ReadString('\n')
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for { // until it accepts no more
		extra, err := net.Dial("tcp", p.addr)
		if err != nil {
			break
		}
		extra.Close()
		time.Sleep(time.Millisecond)
	}
	io.WriteString(c, "done")
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, "201") {
		t.Errorf("the request going on: %q %v", line, err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("exit: %v", err)
	}
}
