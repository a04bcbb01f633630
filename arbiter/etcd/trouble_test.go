package etcd

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/arbiter"
	"twok/arbiter/arbitertest"
)

// refused insists on a class and on words of the error.
func refused(t *testing.T, what string, err error, class error, words ...string) {
	t.Helper()
	if err == nil || arbiter.Class(err) != class {
		t.Errorf("%s: %v, want %v", what, err, class)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %q does not say %q", what, err, w)
		}
	}
}

// Three members: one is killed in the middle of a storm, and in the next round
// another one; the storm goes on meanwhile. No acknowledged swap is lost and no refused
// one appears.
// Rules: P1; F29.
func TestMemberKilledUnderStorm(t *testing.T) {
	c := startCluster(t, "3.7", 3)
	cfg := Config{Endpoints: c.endpoints(), Key: "k", Timeout: 2 * time.Second}
	var clients []arbiter.Register
	for range 6 {
		clients = append(clients, open(t, cfg))
	}
	var storm arbitertest.Storm
	for round, m := range c.members[:2] {
		before, now := 0, 0
		end := time.Now().Add(30 * time.Second)
		err := storm.Run(t.Context(), clients, func(n int) bool {
			if n >= 30 && before == 0 {
				before = n
				m.kill(t)
			}
			now = n
			return n >= 90 || time.Now().After(end)
		})
		if err != nil {
			t.Fatal(err)
		}
		if before == 0 || now < 90 {
			t.Fatalf("round %d: %d swaps, %d of them before the kill: no storm, or it did not go on", round, now, before)
		}
		m.start(t)
		c.await(t, m)
		for _, m := range c.members {
			value, _, err := open(t, Config{Endpoints: []string{m.client}, Key: "k"}).Read(t.Context())
			if err == nil {
				err = storm.Check(value)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d acknowledged swaps, %d unknown", storm.Acked(), storm.Doubt())
}

// Endpoints that cannot serve cost a call nothing but time: a learner, a member
// that hangs, one that is gone. Without a majority nothing is applied.
// Rules: P1, P7; F30.
func TestEndpointsInTrouble(t *testing.T) {
	c := startCluster(t, "3.7", 3, "--strict-reconfig-check=false")
	a, b, d := c.members[0], c.members[1], c.members[2]
	gone := arbitertest.FreePort()
	cl := client(t, a.url(), b.url(), d.url())
	learner := &member{name: "learner", client: arbitertest.FreePort(), peer: arbitertest.FreePort(), dir: t.TempDir(), bin: a.bin}
	added := must[*clientv3.MemberAddResponse](t)(cl.MemberAddAsLearner(t.Context(), []string{"http://" + learner.peer}))
	initial := fmt.Sprintf("learner=http://%s", learner.peer)
	for _, m := range c.members {
		initial += fmt.Sprintf(",%s=http://%s", m.name, m.peer)
	}
	learner.args = append([]string{}, a.args...)
	for i, arg := range learner.args {
		learner.args[i] = strings.NewReplacer(a.client, learner.client, a.dir, learner.dir).Replace(arg)
		switch {
		case i > 0 && learner.args[i-1] == "--initial-cluster":
			learner.args[i] = initial
		case i > 0 && learner.args[i-1] == "--name":
			learner.args[i] = "learner"
		default:
			learner.args[i] = strings.ReplaceAll(learner.args[i], a.peer, learner.peer)
		}
	}
	learner.args = append(learner.args, "--initial-cluster-state", "existing")
	learner.start(t)
	t.Cleanup(func() { learner.kill(t) })

	only := open(t, Config{Endpoints: []string{learner.client}, Key: "k", Timeout: time.Second})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		_, _, err := only.Read(t.Context())
		if err == nil || time.Now().After(end) {
			t.Fatalf("a learner answered a read, or nothing: %v", err)
		}
		if strings.Contains(err.Error(), "learner") {
			refused(t, "read at a learner", err, arbiter.ErrUnavailable, "name the voters")
			break
		}
	}
	refused(t, "swap at a learner", only.CompareAndSwap(t.Context(), arbiter.Absent, []byte("x")), arbiter.ErrUnavailable, "learner")

	if err := b.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer b.cmd.Process.Signal(syscall.SIGCONT)
	r := open(t, Config{Endpoints: []string{learner.client, gone, b.client, a.client, d.client}, Key: "k", Timeout: 2 * time.Second})
	for end := time.Now().Add(30 * time.Second); ; { // b may have been the leader
		err := r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("one"))
		if err == nil || arbiter.Class(err) == arbiter.ErrConflict {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	value, v, err := r.Read(t.Context())
	if err != nil || string(value) != "one" {
		t.Fatalf("%q %v", value, err)
	}
	// Not by cl: it may ask b, which hangs.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	must[*clientv3.MemberRemoveResponse](t)(client(t, a.url(), d.url()).MemberRemove(ctx, added.Member.ID))

	d.kill(t) // b still hangs: a is alone
	for end := time.Now().Add(20 * time.Second); ; {
		err := r.CompareAndSwap(t.Context(), v, []byte("two"))
		if c := arbiter.Class(err); c != arbiter.ErrUnavailable && c != arbiter.ErrUnknown {
			t.Fatalf("swap without a majority: %v", err)
		}
		if strings.Contains(err.Error(), "no leader") {
			refused(t, "swap without a leader", err, arbiter.ErrUnavailable, "majority")
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it never said that there is no leader: %v", err)
		}
	}
	if _, _, err := r.Read(t.Context()); arbiter.Class(err) != arbiter.ErrUnavailable {
		t.Errorf("read without a majority: %v", err)
	}
	d.start(t)
	if err := b.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	c.await(t, d)
	c.await(t, b)
	// An unknown swap from above may have been applied since. Nothing else was.
	if value, _, err = r.Read(t.Context()); err != nil || string(value) != "one" && string(value) != "two" {
		t.Errorf("at the end: %q %v", value, err)
	}
}

// Endpoints of two clusters are two arbiters (F11's worst case: a typo).
// Rules: P1, P3; F11.
func TestTwoClusters(t *testing.T) {
	one, two := startCluster(t, "3.7", 1), startCluster(t, "3.5", 1)
	r := open(t, Config{Endpoints: append(one.endpoints(), two.endpoints()...), Key: "k"})
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("x")); err != nil {
		t.Fatal(err)
	}
	_, v, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first, err := r.ClusterID(t.Context())
	status := must[*clientv3.StatusResponse](t)(client(t, one.members[0].url()).Status(t.Context(), one.members[0].url()))
	if err != nil || first != status.Header.ClusterId {
		t.Errorf("cluster ID %x, %v; want %x", first, err, status.Header.ClusterId)
	}
	// A tag of the first cluster is not even sent to the second.
	r2 := open(t, Config{Endpoints: two.endpoints(), Key: "k"})
	if _, _, err := r2.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused(t, "swap with a tag of another cluster", r2.CompareAndSwap(t.Context(), v, []byte("y")), arbiter.ErrConflict, "of another cluster than")
	one.members[0].kill(t)
	refused(t, "swap at the second cluster", r.CompareAndSwap(t.Context(), v, []byte("y")), arbiter.ErrConflict, "another cluster")
	_, _, err = r.Read(t.Context())
	refused(t, "read at the second cluster", err, arbiter.ErrMisconfigured, "both answered")
	refused(t, "create at the second cluster", r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("y")), arbiter.ErrUnknown, "another cluster")
	one.members[0].start(t)
	one.await(t, one.members[0])
	_, _, err = r.Read(t.Context())
	refused(t, "the first cluster is back", err, arbiter.ErrMisconfigured, "both answered")
}

// Rules: P1; F11, F31.
func TestStoreInTrouble(t *testing.T) {
	c := startCluster(t, "3.7", 1)
	m := c.members[0]
	cl := client(t, m.url())
	ctx := t.Context()
	r := open(t, Config{Endpoints: c.endpoints(), Key: "k"})
	if err := r.CompareAndSwap(ctx, arbiter.Absent, []byte("one")); err != nil {
		t.Fatal(err)
	}
	_, v, err := r.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for alarm, class := range map[pb.AlarmType]string{pb.AlarmType_NOSPACE: "database space exceeded", pb.AlarmType_CORRUPT: "corrupt"} {
		id := must[*clientv3.StatusResponse](t)(cl.Status(ctx, m.url())).Header.MemberId
		server := pb.NewMaintenanceClient(cl.ActiveConnection())
		if _, err := server.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: id, Alarm: alarm}); err != nil {
			t.Fatal(err)
		}
		refused(t, alarm.String(), r.CompareAndSwap(ctx, v, []byte("two")), arbiter.ErrUnavailable, class)
		must[*clientv3.AlarmResponse](t)(cl.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: id, Alarm: alarm}))
		if value, now, err := r.Read(ctx); err != nil || string(value) != "one" || now != v {
			t.Errorf("after %v: %q %v %v", alarm, value, now, err)
		}
	}
	// ABA: the key is removed and made again with the same value.
	must[*clientv3.DeleteResponse](t)(cl.Delete(ctx, "k"))
	refused(t, "swap of a removed key", r.CompareAndSwap(ctx, v, []byte("two")), arbiter.ErrConflict)
	if err := r.CompareAndSwap(ctx, arbiter.Absent, []byte("one")); err != nil {
		t.Fatal(err)
	}
	refused(t, "swap from before the removal", r.CompareAndSwap(ctx, v, []byte("two")), arbiter.ErrConflict)
	// A stray tool's lease.
	lease := must[*clientv3.LeaseGrantResponse](t)(cl.Grant(ctx, 600))
	put := must[*clientv3.PutResponse](t)(cl.Put(ctx, "k", "leased", clientv3.WithLease(lease.ID)))
	_, _, err = r.Read(ctx)
	refused(t, "a leased key", err, arbiter.ErrMisconfigured, "lease", fmt.Sprintf("%x", lease.ID))
	if err := r.CompareAndSwap(ctx, at(put.Header.ClusterId, put.Header.Revision), []byte("kept")); err != nil {
		t.Errorf("a write detaches the lease: %v", err)
	}
	must[*clientv3.LeaseRevokeResponse](t)(cl.Revoke(ctx, lease.ID))
	if value, _, err := r.Read(ctx); err != nil || string(value) != "kept" {
		t.Errorf("after the lease ended: %q %v", value, err)
	}
	must[*clientv3.PutResponse](t)(cl.Put(ctx, "k", strings.Repeat("x", MaxValue+1)))
	_, _, err = r.Read(ctx)
	refused(t, "too large", err, arbiter.ErrMisconfigured, "another program")
}

// A hundred pairs share one etcd and do not notice each other.
// Rules: none (costs).
func TestHundredPairs(t *testing.T) {
	c := startCluster(t, "3.7", 1)
	var wg sync.WaitGroup
	for i := range 100 {
		r := open(t, Config{Endpoints: c.endpoints(), Key: fmt.Sprintf("pair/%d", i)})
		wg.Go(func() {
			prev := arbiter.Absent
			for g := range 5 {
				want := fmt.Sprintf("pair %d, %d", i, g)
				if err := r.CompareAndSwap(context.Background(), prev, []byte(want)); err != nil {
					t.Errorf("pair %d: %v", i, err)
					return
				}
				value, v, err := r.Read(context.Background())
				if err != nil || string(value) != want {
					t.Errorf("pair %d: %q %v", i, value, err)
					return
				}
				prev = v
			}
		})
	}
	wg.Wait()
}
