package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// etcdBin is the pinned etcd of TWOK_TEST_ETCD (a minor version; default 3.6).
func etcdBin(t *testing.T) Binaries {
	t.Helper()
	minor := os.Getenv("TWOK_TEST_ETCD")
	if minor == "" {
		minor = "3.6"
	}
	b, err := Etcd(t.Context(), minor, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// startPlain is a running pair of plain etcds.
func startPlain(t *testing.T, mode Mode) *Cluster {
	t.Helper()
	c, err := NewCluster(Config{Dir: t.TempDir(), Etcd: etcdBin(t), Mode: mode, Timing: Fast, Twok: "/bin/false"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, name := range Sites {
		if err := c.Site(name).StartEtcd(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.WaitServing(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c
}

func startWriter(t *testing.T, c *Cluster) *Writer {
	t.Helper()
	w, err := StartWriter(WriterConfig{
		Endpoints: []string{c.Site("a").ClientURL, c.Site("b").ClientURL},
		Clients:   4, Deadline: 300 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func await(t *testing.T, what string, ch <-chan time.Time) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(time.Minute):
		t.Fatalf("%s: none in a minute", what)
	}
}

// TestCutStopsWritesHealResumes: a bare pair stops writing when the link is cut,
// in each single direction too, goes on after the heal, and has lost nothing.
//
// Rules: none (the laboratory itself).
func TestCutStopsWritesHealResumes(t *testing.T) {
	c := startPlain(t, Plain)
	w := startWriter(t, c)
	defer w.Stop()
	await(t, "write", w.NextAck())
	for _, cut := range [][][2]string{{{"a", "b"}, {"b", "a"}}, {{"a", "b"}}, {{"b", "a"}}} {
		for _, d := range cut {
			c.Network.Cut(d[0], d[1])
		}
		next := w.NextAck()
		time.Sleep(2 * time.Second)
		select {
		case at := <-next:
			t.Errorf("cut %v: a write that began during the cut was acknowledged at %s", cut, at)
		default:
		}
		c.HealLink()
		await(t, "write after the heal", w.NextAck())
	}
	w.Stop()
	r, err := Audit(within(t, time.Minute), w, c.AuditMembers())
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r)
	if !r.OK() || r.Acked != w.Acked() || r.Acked == 0 || r.Acked+r.Unknown != w.Acked()+w.Unknown() {
		t.Errorf("audit: %s; the writer counted %d and %d", r, w.Acked(), w.Unknown())
	}
	if c.Network.Bytes("a", "b") == 0 || c.Network.Bytes("b", "a") == 0 {
		t.Error("no peer traffic passed the network")
	}
}

// TestAuditWhileWriting: the writer may go on.
//
// Rules: none (the laboratory itself).
func TestAuditWhileWriting(t *testing.T) {
	c := startPlain(t, Plain)
	w := startWriter(t, c)
	defer w.Stop()
	for range 3 {
		await(t, "write", w.NextAck())
		r, err := Audit(within(t, time.Minute), w, c.AuditMembers())
		if err != nil {
			t.Fatal(err)
		}
		if !r.OK() || r.Acked == 0 {
			t.Error(r)
		}
	}
}

// TestAuditBites: what is done behind the audit's back is reported.
//
// Rules: none (the laboratory itself).
func TestAuditBites(t *testing.T) {
	c := startPlain(t, Plain)
	w := startWriter(t, c)
	for w.Acked() < 100 {
		await(t, "write", w.NextAck())
	}
	w.Stop()
	cl, err := c.Site("a").Client()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx := within(t, time.Minute)
	audit := func() AuditReport {
		t.Helper()
		r, err := Audit(ctx, w, c.AuditMembers())
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	put := func(key, val string) {
		t.Helper()
		if _, err := cl.Put(ctx, key, val); err != nil {
			t.Fatal(err)
		}
	}
	if r := audit(); !r.OK() {
		t.Fatal(r)
	}
	var keys []string // one acknowledged key of each client
	for i, l := range w.outcomes() {
		for seq, rev := range l {
			if rev != 0 {
				keys = append(keys, w.key(i, seq))
				break
			}
		}
	}
	if len(keys) < 3 {
		t.Fatalf("only %v were acknowledged", keys)
	}
	everywhere := func(key string) []string { return []string{"linearizable " + key, "a " + key, "b " + key} }

	if _, err := cl.Delete(ctx, keys[0]); err != nil {
		t.Fatal(err)
	}
	if r := audit(); r.OK() || r.LostKeys != 1 || !slices.Equal(r.Lost, everywhere(keys[0])) {
		t.Errorf("deleted %s: %+v", keys[0], r)
	}
	put(keys[1], "other")
	if r := audit(); r.OK() || r.LostKeys != 2 || !slices.Equal(r.Altered, everywhere(keys[1])) {
		t.Errorf("altered %s: %+v", keys[1], r)
	}
	put(keys[2], value(keys[2], 16)) // the same value, written again: not the acknowledged revision
	if r := audit(); r.OK() || r.LostKeys != 3 || !slices.Contains(r.Altered, "b "+keys[2]) {
		t.Errorf("rewrote %s: %+v", keys[2], r)
	}
	put(w.key(0, 1_000_000), "x")
	put("/lab/x", "x")
	if r := audit(); r.OK() || r.LostKeys != 3 || len(r.Foreign) != 6 {
		t.Errorf("two foreign keys: %+v", r)
	}
	for { // etcd refuses it until the members were connected for five seconds
		_, err := cl.MemberAddAsLearner(ctx, []string{"http://127.0.0.1:1"})
		if err == nil {
			break
		}
		if !errors.Is(err, rpctypes.ErrUnhealthy) {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if r := audit(); r.OK() || !strings.Contains(r.Membership, "learner") {
		t.Errorf("a learner: %+v", r)
	}
}

// TestAuditHashesBite: two members of different clusters have different key spaces.
//
// Rules: none (the laboratory itself).
func TestAuditHashesBite(t *testing.T) {
	one, two := startPlain(t, Plain), startPlain(t, Plain)
	w := startWriter(t, one)
	await(t, "write", w.NextAck())
	w.Stop()
	cl, err := two.Site("b").Client()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for i := range int(w.Acked()+w.Unknown()) + 10 { // so that the revision exists there, too
		if _, err := cl.Put(t.Context(), fmt.Sprintf("/other/%d", i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	members := []AuditMember{one.AuditMembers()[0], two.AuditMembers()[1]}
	r, err := Audit(within(t, time.Minute), w, members)
	if err != nil {
		t.Fatal(err)
	}
	if r.OK() || r.HashesEqual || r.LostKeys != w.Acked() || !strings.Contains(r.Membership, "differ") {
		t.Errorf("%+v", r)
	}
}

// TestAuditThatCannotReadIsAnError: a member that is down, or behind, is not "nothing lost".
//
// Rules: none (the laboratory itself).
func TestAuditThatCannotReadIsAnError(t *testing.T) {
	c := startPlain(t, Plain)
	w := startWriter(t, c)
	await(t, "write", w.NextAck())
	w.Stop()
	if err := c.Site("b").Kill(); err != nil {
		t.Fatal(err)
	}
	if r, err := Audit(within(t, 3*time.Second), w, c.AuditMembers()); err == nil {
		t.Errorf("no error but %s", r)
	}
}

// TestExternalRestarter: etcd comes back after any death, but not after Kill,
// whose Start brings it back.
//
// Rules: none (the laboratory itself).
func TestExternalRestarter(t *testing.T) {
	c := startPlain(t, External)
	s := c.Site("a")
	pid, err := s.EtcdPID()
	if err != nil || pid == 0 {
		t.Fatalf("pid %d, %v", pid, err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		if err := s.SignalEtcd(sig); err != nil {
			t.Fatal(err)
		}
		pid = waitPID(t, s, func(p int) bool { return p != 0 && p != pid })
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	if p, err := s.EtcdPID(); err != nil || p != 0 {
		t.Errorf("after Kill process %d runs, %v", p, err)
	}
	if err := s.StartEtcd(); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitServing(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if pids, err := c.procs.marked(""); err != nil || len(pids) > 0 {
		t.Errorf("after Close %v run, %v", pids, err)
	}
}

func waitPID(t *testing.T, s *Site, ok func(int) bool) int {
	t.Helper()
	for range 1000 {
		pid, err := s.EtcdPID()
		if err != nil {
			t.Fatal(err)
		}
		if ok(pid) {
			return pid
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("no such process in 10 s")
	return 0
}

// KillEtcd of an etcd that is already on its way out, when /proc shows no environment of it any more,
// waits for its end too: StartEtcd starts a new one then.
//
// Rules: none (the laboratory itself).
func TestKillOfWhatEndsByItself(t *testing.T) {
	for _, mode := range []Mode{Plain, External} {
		t.Run(string(mode), func(t *testing.T) {
			s := startPlain(t, mode).Site("a")
			if mode == External {
				s.PauseRestarter()
			}
			for range 10 {
				if err := s.SignalEtcd(syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				if err := s.KillEtcd(); err != nil {
					t.Fatal(err)
				}
				if s.etcd.alive() || mode == External && s.restarter.running().alive() {
					t.Fatal("KillEtcd came back before etcd had ended")
				}
				if mode == External {
					break // the restarter itself is what TestExternalRestarter is about
				}
				if err := s.StartEtcd(); err != nil {
					t.Fatal(err)
				}
				if err := s.WaitServing(within(t, time.Minute)); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestLeaderAndKill: both name one leader; the other one alone does not lead.
//
// Rules: none (the laboratory itself).
func TestLeaderAndKill(t *testing.T) {
	c := startPlain(t, Plain)
	leader, err := c.Leader(within(t, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Site(leader).Kill(); err != nil {
		t.Fatal(err)
	}
	if other, err := c.Leader(within(t, time.Second)); err == nil {
		t.Errorf("with %s dead the leader is %s", leader, other)
	}
	if err := c.Site(leader).Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Leader(within(t, time.Minute)); err != nil {
		t.Error(err)
	}
}

// TestGuard: a lab whose program is killed leaves no process, not even a
// stopped one or one that left its parent.
//
// Rules: none (the laboratory itself).
func TestGuard(t *testing.T) {
	if dir := os.Getenv("LAB_GUARD_CHILD"); dir != "" {
		p, err := newProcs(nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.start("a", dir+"/log", nil, "sh", "-c", "sleep 600 & exec sleep 600"); err != nil {
			t.Fatal(err)
		}
		x, err := p.start("b", dir+"/log", nil, "sleep", "600")
		if err != nil {
			t.Fatal(err)
		}
		x.signal(syscall.SIGSTOP)
		for {
			if pids, _ := p.marked(""); len(pids) == 3 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if err := os.WriteFile(dir+"/id.tmp", []byte(p.id), 0o644); err != nil {
			t.Fatal(err)
		}
		os.Rename(dir+"/id.tmp", dir+"/id")
		select {}
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestGuard$")
	cmd.Env = append(os.Environ(), "LAB_GUARD_CHILD="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var p procs
	for range 1000 {
		if id, err := os.ReadFile(dir + "/id"); err == nil {
			p.id = string(id)
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if pids, err := p.marked(""); p.id == "" || err != nil || len(pids) != 3 {
		cmd.Process.Kill()
		t.Fatalf("the child runs %v, %v", pids, err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	var pids []int
	for range 500 {
		var err error
		if pids, err = p.marked(""); err != nil {
			t.Fatal(err)
		}
		if len(pids) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, pid := range pids {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	t.Errorf("%v were left", pids)
}

// TestValuesAndKeys: keys are parsed back and only in the form they are written.
//
// Rules: none (the laboratory itself).
func TestValuesAndKeys(t *testing.T) {
	w := &Writer{cfg: WriterConfig{Prefix: "/lab/"}}
	for _, c := range []struct{ client, seq int }{{0, 0}, {7, 123456}} {
		if a, b, ok := w.parse(w.key(c.client, c.seq)); !ok || a != c.client || b != c.seq {
			t.Errorf("%v: %d %d %t", c, a, b, ok)
		}
	}
	for _, k := range []string{"/lab/1", "/lab/01/2", "/lab/1/+2", "/x/1/2", "/lab/a/b", "/lab/1/2/3"} {
		if _, _, ok := w.parse(k); ok {
			t.Errorf("%s was parsed", k)
		}
	}
	if v := value("/lab/1/2", 40); len(v) != 40 || v == value("/lab/1/3", 40) {
		t.Errorf("value %q", v)
	}
}
