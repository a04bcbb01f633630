package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"twok/arbiter"
	"twok/arbiter/httpcas"
	"twok/internal/etcdapi"
	"twok/internal/etcdproc"
	"twok/internal/failover"
	"twok/internal/member"
)

// As long as an agent runs, another one of the same data directory does not: neither in this process nor in another one.
//
// Rules: P20.
func TestOneAgentRuns(t *testing.T) {
	data := t.TempDir()
	reg, err := httpcas.New(httpcas.Config{URL: "http://127.0.0.1:1/pair"})
	if err != nil {
		t.Fatal(err)
	}
	agent := func() *Agent {
		etcd, err := etcdproc.NewSignal(etcdproc.Config{DataDir: data})
		if err != nil {
			t.Fatal(err)
		}
		a, err := New(Config{DataDir: data, ClientURL: "http://127.0.0.1:1", PeerURL: "http://127.0.0.1:1", Arbiter: reg, Etcd: etcd})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first, run := agent(), make(chan error, 1)
	go func() { run <- first.Run(ctx) }()
	for end := time.Now().Add(20 * time.Second); first.alive.Load() == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the first agent does not run")
		}
	}
	short, stop := context.WithTimeout(t.Context(), 5*time.Second) // one that is let in goes on
	defer stop()
	if err := agent().Run(short); !errors.Is(err, member.ErrHeld) {
		t.Errorf("a second agent: %v, want %q", err, member.ErrHeld)
	}
	cancel()
	if err := <-run; err != nil {
		t.Error(err)
	}
	lock, err := member.AgentLock(data)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Error(err)
	}
}

// peeking is a register that looks, at each swap, at what is in the memory file by then.
type peeking struct {
	path string
	own  ownFile
	err  error
}

func (n *peeking) Read(context.Context) ([]byte, arbiter.Version, error) {
	return nil, arbiter.Absent, nil
}

func (n *peeking) CompareAndSwap(context.Context, arbiter.Version, []byte) error {
	var d memoryFile
	b, err := os.ReadFile(n.path)
	if err == nil {
		err = json.Unmarshal(b, &d)
	}
	n.own, n.err = d.Own, err
	return nil
}

// A claim is in the memory file before its swap is sent: who is killed in between knows its nonce. If it cannot be written nothing is sent.
//
// Rules: P1, P16.
func TestClaimIsNotedBeforeItsSwap(t *testing.T) {
	data := t.TempDir()
	mem, _, err := loadMemory(data)
	if err != nil {
		t.Fatal(err)
	}
	reg := &peeking{path: mem.path}
	a := &Agent{cfg: Config{DataDir: data, Arbiter: reg, Logger: zap.NewNop()}.Default(), log: zap.NewNop(), mem: mem}
	rec := failover.Claim(failover.Create("record", 7, failover.Stamp{Nonce: "n0", Now: 1}),
		failover.Data{Member: 9, Name: "a", Cluster: 7, Term: 2, Last: arbiter.Position{Index: 5, Term: 2}}, "a test", failover.Stamp{Nonce: "n1", Now: 2})
	own := failover.Own{RecordID: "record", Generation: 2, Nonces: [4]string{"n1"}}
	e := failover.Event{}
	if err := a.swap(t.Context(), failover.Action{Kind: failover.Swap, Claim: true, Record: rec}, own, &e); err != nil || e.Outcome != failover.Done {
		t.Fatalf("%v, %v", e.Outcome, err)
	}
	if reg.err != nil || reg.own.Generation != 2 || len(reg.own.Nonces) != 1 || reg.own.Nonces[0] != "n1" {
		t.Errorf("when the swap was sent the file had %+v (%v)", reg.own, reg.err)
	}
	reg.err = errors.New("no swap was sent")
	mem.path = filepath.Join(data, "away", "memory.json")
	if err := a.swap(t.Context(), failover.Action{Kind: failover.Swap, Claim: true, Record: rec}, own, &e); err == nil || e.Outcome != failover.Failed || e.Why != failover.StateUnwritable {
		t.Errorf("a claim that cannot be noted: %v, %v, %v", e.Outcome, e.Why, err)
	}
	if reg.err == nil || reg.err.Error() != "no swap was sent" {
		t.Error("a claim that could not be noted was sent")
	}
}

// What writes the token goes over one connection, dialled once: an etcd that was restarted meanwhile is not reached.
//
// Rules: P14.
func TestTokenIsDialledOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var dialled atomic.Int32
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			dialled.Add(1)
			c.Close()
		}
	}()
	a := &Agent{cfg: Config{ClientURL: "http://" + l.Addr().String()}, log: zap.NewNop(), dialer: &etcdapi.Dialer{}}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // clients dial again after a second
	defer cancel()
	e := failover.Event{}
	if err := a.writeToken(ctx, failover.Action{Kind: failover.WriteToken, RecordID: "record", Generation: 1}, &e); err == nil || e.Outcome != failover.Failed {
		t.Errorf("%v, %v", e.Outcome, err)
	}
	if n := dialled.Load(); n != 1 {
		t.Errorf("it was dialled %d times", n)
	}
}
