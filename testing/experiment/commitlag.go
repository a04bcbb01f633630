package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"twok/internal/failover"
	"twok/internal/lab"
	"twok/internal/member"
	"twok/walsurgery"
)

// commitLag kills the follower of a pair under load and lets two etcds survive on copies of its directory.
func commitLag() Experiment {
	return Experiment{
		Name:  "commit-lag",
		About: "the follower is killed right after an acknowledgement; --force-new-cluster and twok's append on copies of its directory",
		Cases: []string{"1", "8", "32"},
		Batch: 25,
		Run:   runCommitLag,
		Table: tableCommitLag,
	}
}

// lagRun is one run, as it is left among the raw logs.
type lagRun struct {
	Killed    time.Time `json:"killed"` // before the signal was sent
	Follower  string    `json:"follower"`
	Acked     int       `json:"acked"`       // answers that clients had before Killed
	AckedLate int       `json:"acked_late"`  // that they got afterwards
	Commit    uint64    `json:"commit"`      // HardState.Commit of the killed follower
	Applied   uint64    `json:"applied"`     // its database's consistent_index
	Last      uint64    `json:"last"`        // the end of its log
	LostForce []ack     `json:"lost_force"`  // of Acked, with --force-new-cluster
	LostTwok  []ack     `json:"lost_twok"`   // of Acked, with twok's append
	LateForce []ack     `json:"late_force"`  // of AckedLate
	LateTwok  []ack     `json:"late_twok"`   //
	Plan      string    `json:"plan"`        // of twok's append
	ForceTime float64   `json:"force_start"` // seconds from the start of etcd to a linearizable read
	TwokTime  float64   `json:"twok_start"`
}

func runCommitLag(ctx context.Context, s *Session, n int) error {
	clients, err := strconv.Atoi(s.Case)
	if err != nil {
		return err
	}
	c, err := lab.NewCluster(lab.Config{Dir: s.Dir, Etcd: s.Bin, Mode: lab.Plain, Timing: lab.Fast})
	if err != nil {
		return err
	}
	err = func() error {
		if err := c.Start(ctx); err != nil {
			return err
		}
		for i := range n {
			run, cancel := context.WithTimeout(ctx, time.Minute)
			r, err := lagOnce(run, s, c, clients, i)
			cancel()
			if err != nil {
				return fmt.Errorf("run %d: %w", i, err)
			}
			if err := s.addLag(i, r); err != nil {
				return err
			}
		}
		return nil
	}()
	if err = errors.Join(err, c.Close()); err != nil {
		return err // with the data directories as they are
	}
	return errors.Join(os.RemoveAll(c.Site("a").DataDir), os.RemoveAll(c.Site("b").DataDir))
}

func (s *Session) addLag(i int, r *lagRun) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.Dir, fmt.Sprintf("run-%03d.json", i)), data, 0o644); err != nil {
		return err
	}
	return s.Add(r.values(), nil)
}

func (r *lagRun) values() map[string]float64 {
	return map[string]float64{
		"acked":       float64(r.Acked),
		"acked_late":  float64(r.AckedLate),
		"lag":         float64(r.Last - r.Commit),
		"lag_applied": float64(r.Last - max(r.Commit, r.Applied)),
		"lost_force":  float64(len(r.LostForce)),
		"lost_twok":   float64(len(r.LostTwok)),
		"late_force":  float64(len(r.LateForce)),
		"late_twok":   float64(len(r.LateTwok)),
		"all_force":   float64(len(r.LostForce) + len(r.LateForce)),
		"all_twok":    float64(len(r.LostTwok) + len(r.LateTwok)),
		"start_force": r.ForceTime,
		"start_twok":  r.TwokTime,
	}
}

func lagOnce(ctx context.Context, s *Session, c *lab.Cluster, clients, i int) (*lagRun, error) {
	if err := errors.Join(c.Site("a").StartEtcd(), c.Site("b").StartEtcd()); err != nil {
		return nil, err
	}
	if err := c.WaitServing(ctx); err != nil {
		return nil, err
	}
	leader, err := c.Leader(ctx)
	if err != nil {
		return nil, err
	}
	r := &lagRun{Follower: lab.Other(leader)}
	follower := c.Site(r.Follower)
	pid, err := follower.EtcdPID()
	if err != nil {
		return nil, err
	}
	fd, err := pidfd(pid)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	cls, err := dial(c.Site(leader).ClientURL)
	if err != nil {
		return nil, err
	}
	defer hangUp(cls)

	// The client that gets the first answer after the trigger was armed sends the signal itself.
	var armed atomic.Bool
	sent := make(chan error, 1)
	l := &ledger{prefix: fmt.Sprintf("/lag/%d/", i), size: 64, cl: cls}
	l.onAck = func() {
		if armed.CompareAndSwap(true, false) {
			r.Killed = time.Now()
			sent <- unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
	}
	l.start(ctx, clients)
	select {
	case <-time.After(50*time.Millisecond + rand.N(150*time.Millisecond)):
	case <-ctx.Done():
	}
	armed.Store(true)
	select {
	case err = <-sent:
	case <-ctx.Done():
		err = fmt.Errorf("no write was acknowledged: %w", ctx.Err())
	}
	if err == nil {
		err = gone(fd, 10*time.Second)
	}
	time.Sleep(20 * time.Millisecond) // answers that are on their way
	acks := l.stop()
	if err != nil {
		return nil, err
	}
	had := before(acks, r.Killed)
	late := slices.DeleteFunc(slices.Clone(acks), func(a ack) bool { return a.At.Before(r.Killed) })
	r.Acked, r.AckedLate = len(had), len(late)

	force, twok := filepath.Join(s.Dir, fmt.Sprintf("force-%03d", i)), filepath.Join(s.Dir, fmt.Sprintf("twok-%03d", i))
	for _, dir := range []string{force, twok} {
		if err := copyTree(follower.DataDir, dir); err != nil {
			return nil, err
		}
	}
	// The leader is lost, too: a copy is the killed member to it, and would get from it what it lacks. (With
	// --force-new-cluster it may panic then: the leader's heartbeat tells of a commit beyond the truncated log.)
	if err := errors.Join(follower.Kill(), c.Site(leader).Kill()); err != nil { // the follower is dead; this makes the lab know
		return nil, err
	}
	if err := r.operate(ctx, s, twok, follower.AdvertisedPeerURL); err != nil {
		return nil, fmt.Errorf("twok's append: %w", err)
	}
	type result struct {
		have map[string]int64
		took float64
		err  error
	}
	results := [2]chan result{make(chan result, 1), make(chan result, 1)}
	for j, flags := range [][]string{{"--force-new-cluster"}, nil} {
		go func() {
			dir := []string{force, twok}[j]
			var x result
			x.have, x.took, x.err = survive(ctx, s, follower, dir, l.prefix, flags...)
			results[j] <- x
		}()
	}
	f, t := <-results[0], <-results[1]
	if err := errors.Join(f.err, t.err); err != nil {
		return nil, err
	}
	r.LostForce, r.LostTwok = missing(had, f.have), missing(had, t.have)
	r.LateForce, r.LateTwok = missing(late, f.have), missing(late, t.have)
	r.ForceTime, r.TwokTime = f.took, t.took
	if len(r.LostTwok)+len(r.LateTwok) > 0 { // evidence
		return nil, errors.Join(fmt.Errorf("twok's append lost %d acknowledged writes: %v; %s is as it survived", len(r.LostTwok)+len(r.LateTwok), append(r.LostTwok, r.LateTwok...), twok),
			s.addLag(i, r))
	}
	return r, errors.Join(os.RemoveAll(force), os.RemoveAll(twok))
}

// operate does on a copy what the agent does (internal/agent, stop, readData and append): it takes both
// locks, reads the data, and appends the removal of everybody whom these know, in the next term.
func (r *lagRun) operate(ctx context.Context, s *Session, dir, peerURL string) (err error) {
	lock, err := member.Acquire(ctx, dir, func(context.Context) error { return nil })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	log, err := walsurgery.Open(zap.NewNop(), filepath.Join(dir, "member", "wal"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	d, err := member.Read(lock, log, 0, peerURL)
	if err != nil {
		return err
	}
	r.Commit, r.Applied, r.Last = d.Commit, d.Applied, d.Last.Index
	remove := slices.DeleteFunc(slices.Clone(d.Confs.Remove[:]), func(id uint64) bool { return id == 0 })
	if d.Problem != failover.None || len(remove) != 1 {
		return fmt.Errorf("the copy is not one of a pair: %s, removals %x", d.Problem, remove)
	}
	plan, err := log.Plan(remove, walsurgery.MinTerm(d.Term+1))
	if err != nil {
		return err
	}
	r.Plan = plan.String()
	return log.Apply(plan)
}

// survive starts etcd on a copy of site's directory, reads the keys with the prefix, and kills it.
func survive(ctx context.Context, s *Session, site *lab.Site, dir, prefix string, flags ...string) (map[string]int64, float64, error) {
	urls, err := freeURLs(2)
	if err != nil {
		return nil, 0, err
	}
	argv, err := withFlags(site.EtcdArgs(), "--data-dir", dir, "--listen-client-urls", urls[0], "--listen-peer-urls", urls[1])
	if err != nil {
		return nil, 0, err
	}
	cls, err := dial(urls[0])
	if err != nil {
		return nil, 0, err
	}
	defer hangUp(cls)
	begin := time.Now()
	e, err := startEtcd(dir+".log", urls[0], nil, append(argv, flags...)...)
	if err != nil {
		return nil, 0, err
	}
	defer e.kill()
	if err := e.serving(ctx, cls[0]); err != nil {
		return nil, 0, err
	}
	took := time.Since(begin).Seconds()
	if err := alone(ctx, cls[0]); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", dir, err)
	}
	have, err := keysOf(ctx, cls[0], prefix)
	return have, took, errors.Join(err, e.alive())
}

// alone: the member list is this member's own.
func alone(ctx context.Context, cl *clientv3.Client) error {
	list, err := cl.MemberList(ctx)
	if err == nil && (len(list.Members) != 1 || list.Members[0].ID != list.Header.MemberId) {
		err = fmt.Errorf("it is not alone: %v", list.Members)
	}
	return err
}

func tableCommitLag(s Summary) string {
	var b strings.Builder
	b.WriteString("| Clients | etcd | Runs | Acknowledged | `--force-new-cluster`: lost | in runs | most in a run | twok: lost | Log ahead of its commit: median, max |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, c := range s.Of("commit-lag") {
		v := c.Values
		fmt.Fprintf(&b, "| %s | %s | %s | %.0f + %.0f | %.0f + %.0f | %d | %.0f | %.0f + %.0f | %.0f, %.0f |\n", c.Case, c.Etcd, runs(c), v["acked"].Sum, v["acked_late"].Sum,
			v["lost_force"].Sum, v["late_force"].Sum, v["all_force"].NonZero, v["all_force"].Max, v["lost_twok"].Sum, v["late_twok"].Sum, v["lag"].P50, v["lag"].Max)
	}
	return b.String()
}
