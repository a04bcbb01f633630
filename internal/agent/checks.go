package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"twok/arbiter"
	"twok/internal/etcdapi"
	"twok/internal/failover"
	"twok/internal/member"
	"twok/internal/preflight"
	"twok/internal/probe"
	"twok/walsurgery"
)

// How often a running agent looks: everything that is cheap each checkEach, or each checkSoon, doubling, while
// something refuses; what writes or dials (trials, certificates) each checkDeep, when the agent's own certificates changed, and while one of these refuses.
const (
	checkEach = time.Minute
	checkSoon = 2 * time.Second
	checkDeep = time.Hour
	checkCert = 5 * time.Second // between two looks at the agent's own certificates
)

// reasonPreflight is the reason of a member that the core would arm and a check refuses.
const reasonPreflight = "preflight"

// checks is what an agent knows of its own fitness (internal/preflight).
type checks struct {
	mu       sync.Mutex
	probed   bool
	probeErr error
	report   probe.Report
	asked    bool
	circular error

	shown atomic.Pointer[shown]
}

// shown is what status shows. It is not changed any more.
type shown struct {
	results  []preflight.Result
	barring  []preflight.Result
	warnings []string
}

// setProbe takes in how a probe ended.
func (c *checks) setProbe(rep probe.Report, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probed, c.report, c.probeErr = true, rep, err
}

// setCircular takes in the answer whether the store stands on the pair.
func (c *checks) setCircular(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked, c.circular = true, err
}

func (c *checks) arbiter(a *preflight.Arbiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a.Probed, a.Report, a.ProbeErr = c.probed, c.report, c.probeErr
	a.Asked, a.Circular, a.IsCircular = c.asked, c.circular, errors.Is(c.circular, ErrCircular)
}

// onto adds the checks to a status. A refusal that bars is louder than the core's "armed".
func (c *checks) onto(st *Status) {
	s := c.shown.Load()
	if s == nil {
		st.Checks, st.Warnings = []preflight.Result{}, []string{}
		return
	}
	st.Checks, st.Warnings = s.results, s.warnings
	if st.Armed && len(s.barring) > 0 {
		st.Armed, st.Unprotected = false, true
		st.Reason, st.Remedy = reasonPreflight, s.barring[0].Name+": "+s.barring[0].Remedy
	}
}

// runChecks looks again and again.
func (a *Agent) runChecks(ctx context.Context) {
	var f preflight.Facts
	var deep time.Time
	var own [2][]byte
	wait := checkSoon
	before := map[string]preflight.State{} // of the last pass
	told := map[string]preflight.State{}
	for {
		if a.steady() {
			fresh := [2][]byte{leaf(a.cfg.ClientTLS), leaf(a.cfg.PeerTLS)}
			rotated := !bytes.Equal(own[0], fresh[0]) || !bytes.Equal(own[1], fresh[1])
			again := rotated || time.Since(deep) >= checkDeep || a.checks.bars()
			own = fresh
			if again {
				deep = time.Now()
			}
			a.gather(ctx, &f, again)
			if ctx.Err() != nil {
				return
			}
			rs := preflight.Run(&f)
			a.checks.show(rs)
			changed := a.tell(rs, before, told)
			switch {
			case changed:
				wait = checkSoon
			case len(preflight.Names(rs, preflight.Refused)) > 0:
				wait = min(2*wait, checkEach)
			default:
				wait = checkEach
			}
		}
		for end := time.Now().Add(wait); time.Now().Before(end); {
			if !sleep(ctx, min(checkCert, time.Until(end))) {
				return
			}
			if !bytes.Equal(own[0], leaf(a.cfg.ClientTLS)) || !bytes.Equal(own[1], leaf(a.cfg.PeerTLS)) {
				break
			}
		}
	}
}

// steady: nothing is being done to etcd or its files.
func (a *Agent) steady() bool {
	switch a.status.Load().Role {
	case failover.Stopping.String(), failover.Deciding.String(), failover.Claiming.String(), failover.Appending.String(),
		failover.Rechecking.String(), failover.Releasing.String(), failover.Preparing.String(), failover.Fenced.String():
		return false
	}
	return true
}

func (c *checks) bars() bool {
	s := c.shown.Load()
	return s != nil && len(s.barring) > 0
}

func (c *checks) show(rs []preflight.Result) {
	s := &shown{results: rs, barring: preflight.Barring(rs), warnings: []string{}}
	for _, r := range s.barring {
		s.warnings = append(s.warnings, r.Name+": "+r.Detail)
	}
	c.shown.Store(s)
}

// tell logs what changed: a refusal that bars at once, everything else when it was so twice, since etcd's own
// start and every failover pass by here.
func (a *Agent) tell(rs []preflight.Result, before, told map[string]preflight.State) (changed bool) {
	bars := map[string]bool{}
	for _, r := range preflight.Barring(rs) {
		bars[r.Name] = true
	}
	for _, r := range rs {
		last, known := before[r.Name]
		before[r.Name] = r.State
		changed = changed || !known || last != r.State
		was, any := told[r.Name]
		if !any {
			was = preflight.OK
		}
		if was == r.State || !(bars[r.Name] || (known && last == r.State)) {
			continue
		}
		told[r.Name] = r.State
		say := a.log.Info
		if bars[r.Name] || r.State == preflight.Warning {
			say = a.log.Warn
		}
		say("check", zap.String("action", r.Name), zap.Stringer("state", r.State), zap.String("detail", r.Detail), zap.String("remedy", r.Remedy))
	}
	return changed
}

// gather sees the facts of a running agent; without deep it keeps those that are dear.
func (a *Agent) gather(ctx context.Context, f *preflight.Facts, deep bool) {
	f.Running = true
	a.look(ctx, f, deep)
	a.checks.arbiter(&f.Arbiter)
	st := a.status.Load()
	f.Arbiter.SharedHost = a.sharedHost()
	f.Arbiter.Status, f.Arbiter.Record, f.Arbiter.Cluster, f.Arbiter.Gen = st.record.status, st.record.id, st.record.cluster, st.Generation
	f.Arbiter.Written = time.Time{}
	if st.record.written != 0 {
		f.Arbiter.Written = time.UnixMilli(st.record.written)
	}
	f.Arbiter.Armed, f.Arbiter.Reason, f.Arbiter.Assessed = st.record.armed, st.record.why, st.Role != failover.Starting.String()
	f.Arbiter.Alone = st.Role == failover.Alone.String()
	f.Health = preflight.Health{Own: true}
}

// look sees what a running agent and a check without one see alike.
func (a *Agent) look(ctx context.Context, f *preflight.Facts, deep bool) {
	cfg := a.cfg
	f.Now = time.Now()
	f.Settings = preflight.Settings{DataDir: cfg.DataDir, ClientURL: cfg.ClientURL, PeerURL: cfg.PeerURL,
		ClaimAfter: cfg.ClaimAfter, Election: cfg.Election, HealthListen: cfg.HealthListen}
	if deep {
		f.Dir = preflight.LookDir(cfg.DataDir, MemoryName)
		f.Trial = preflight.LookTrial(cfg.DataDir)
		f.Locks = preflight.LookLocks(cfg.DataDir)
	} else {
		f.Locks.WALHeld, f.Locks.WAL = walsurgery.Locked(cfg.walDir())
	}
	f.Space = preflight.LookSpace(cfg.DataDir)
	pctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	f.Process = preflight.LookProcess(pctx, cfg.Etcd, staleReads)
	ms := a.lookMembers(ctx, &f.Etcd)
	a.lookOthers(ctx, f, ms)
	if deep {
		a.lookCertificates(ctx, f, ms)
	}
	f.Client.TLS, f.Peer.TLS = strings.HasPrefix(cfg.ClientURL, "https:"), strings.HasPrefix(cfg.PeerURL, "https:")
}

// checkDeadline is what one call of a check may take.
const checkDeadline = 3 * time.Second

// lookMembers reads the member list, linearizably, and the token's key through the local client port.
func (a *Agent) lookMembers(ctx context.Context, e *preflight.Etcd) []etcdapi.Member {
	*e = preflight.Etcd{}
	pctx, cancel := context.WithTimeout(ctx, checkDeadline)
	_, _, e.Peer = a.dialer.PeerVersion(pctx, a.cfg.PeerURL)
	cancel()
	ctx, cancel = context.WithTimeout(ctx, checkDeadline)
	defer cancel()
	resp, err := a.watch.local.MemberList(ctx)
	if err != nil {
		e.Err = a.why(a.cfg.ClientURL, err)
		return nil
	}
	st, err := etcdapi.Status(ctx, a.watch.local)
	if err != nil {
		e.Err = err
		return nil
	}
	e.Member, e.Cluster, e.Leader = st.Header.MemberId, st.Header.ClusterId, st.Leader
	for _, s := range st.Errors {
		e.Alarm = e.Alarm || strings.Contains(s, "NOSPACE")
	}
	var ms []etcdapi.Member
	for _, m := range resp.Members {
		ms = append(ms, etcdapi.Member{ID: m.ID, Name: m.Name, PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs, Learner: m.IsLearner})
		name := called(m.Name, m.ID)
		if m.IsLearner {
			e.Learners = append(e.Learners, name)
			continue
		}
		e.Voters = append(e.Voters, name)
		e.Listed = e.Listed || m.ID == e.Member
	}
	_, e.Token = a.watch.local.Get(ctx, member.TokenKey, clientv3.WithSerializable(), clientv3.WithKeysOnly())
	return ms
}

// why adds to an error of a client port what a plain look at it says: gRPC's own is "deadline exceeded" mostly.
func (a *Agent) why(clientURL string, err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), checkDeadline)
	defer cancel()
	if cause := preflight.LookPort(ctx, withRoots(a.cfg.ClientTLS, a.cfg.ClientRoots), clientURL); cause != nil {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// withRoots is cfg with the authorities as they are now.
func withRoots(cfg *tls.Config, roots func() *x509.CertPool) *tls.Config {
	if cfg == nil || roots == nil {
		return cfg
	}
	cfg = cfg.Clone()
	cfg.RootCAs = roots()
	return cfg
}

func called(name string, id uint64) string {
	if name == "" {
		return arbiter.FormatID(id)
	}
	return name
}

// lookOthers asks the other voters at the URLs that they advertise.
func (a *Agent) lookOthers(ctx context.Context, f *preflight.Facts, ms []etcdapi.Member) {
	f.Other = nil
	ctx, cancel := context.WithTimeout(ctx, checkDeadline)
	defer cancel()
	for _, m := range ms {
		if m.ID == f.Etcd.Member || m.Learner {
			continue
		}
		o := preflight.Other{Name: called(m.Name, m.ID), Peer: errors.New("it advertises no peer URL")}
		for _, u := range m.PeerURLs {
			if o.Version, _, o.Peer = a.dialer.PeerVersion(ctx, u); o.Peer == nil {
				break
			}
		}
		if len(m.ClientURLs) == 0 {
			o.Client = errors.New("it has not published its client URLs yet")
		} else if c, err := a.dialer.Client(m.ClientURLs...); err != nil {
			o.Client = err
		} else {
			st, err := c.MemberList(ctx, clientv3.WithSerializable())
			if err != nil {
				err = a.why(m.ClientURLs[0], err)
			}
			o.Client = errors.Join(err, c.Close())
			o.Self = err == nil && st.Header.MemberId == f.Etcd.Member
		}
		f.Other = append(f.Other, o)
	}
}

// lookCertificates looks at the agent's own, and dials both kinds of port of all members.
func (a *Agent) lookCertificates(ctx context.Context, f *preflight.Facts, ms []etcdapi.Member) {
	ctx, cancel := context.WithTimeout(ctx, checkDeadline)
	defer cancel()
	client, peer := []string{a.cfg.ClientURL}, []string{a.cfg.PeerURL}
	for _, m := range ms {
		if m.ID != f.Etcd.Member {
			client, peer = append(client, m.ClientURLs...), append(peer, m.PeerURLs...)
		}
	}
	for _, k := range []struct {
		to    *preflight.Certificates
		cfg   *tls.Config
		roots func() *x509.CertPool
		what  string
		urls  []string
	}{
		{&f.Client, a.cfg.ClientTLS, a.cfg.ClientRoots, "--client-cert", client},
		{&f.Peer, a.cfg.PeerTLS, a.cfg.PeerRoots, "--peer-cert", peer},
	} {
		k.to.Own, k.to.Served = preflight.LookOwn(k.cfg, k.what), nil
		k.cfg = withRoots(k.cfg, k.roots)
		served := make([]*preflight.Certificate, len(k.urls))
		var g sync.WaitGroup
		for i, u := range k.urls {
			if strings.HasPrefix(u, "https:") {
				g.Go(func() {
					c := preflight.LookServed(ctx, k.cfg, u, f.Now)
					c.Local = i == 0
					served[i] = &c
				})
			}
		}
		g.Wait()
		for _, c := range served {
			if c != nil {
				k.to.Served = append(k.to.Served, *c)
			}
		}
	}
}

// leaf is the certificate that cfg presents now, as bytes to compare.
func leaf(cfg *tls.Config) []byte {
	if cfg == nil || cfg.GetClientCertificate == nil {
		return nil
	}
	pair, err := cfg.GetClientCertificate(&tls.CertificateRequestInfo{Version: tls.VersionTLS13})
	if err != nil || len(pair.Certificate) == 0 {
		return nil
	}
	return pair.Certificate[0]
}

// barred is what is known of a client port that speaks of certificates instead of answering.
type barred struct {
	is bool
	at time.Time // when that was looked at
}

// barredFrom says whether the local client port is up and one of the certificates, its own or ours, keeps us out.
// It is asked while the port gives no answer, by lookHere alone, and looks once a second.
func (w *watcher) barredFrom(ctx context.Context) bool {
	if !strings.HasPrefix(w.cfg.ClientURL, "https:") {
		return false
	}
	if time.Since(w.barred.at) > time.Second {
		ctx, cancel := context.WithTimeout(ctx, w.cfg.probeDeadline())
		defer cancel()
		err := preflight.LookPort(ctx, withRoots(w.cfg.ClientTLS, w.cfg.ClientRoots), w.cfg.ClientURL)
		w.barred = barred{is: preflight.OfCertificates(err), at: time.Now()}
	}
	return w.barred.is
}

// Check looks once at everything that an agent with this configuration looks at before it arms, and says
// what it found. It needs no agent and may run beside one; it stops and locks nothing and writes nothing but the probe's scratch register
// and, for a moment, scratch directories in the data directory. An error: the configuration is wrong, or no temporary directory could be made.
func Check(ctx context.Context, cfg Config) (rs []preflight.Result, err error) {
	a, err := New(cfg)
	if err != nil {
		return nil, err
	}
	// The agent's code remembers what it sees: not in the memory of an agent that may be running.
	tmp, err := os.MkdirTemp("", "twok-check-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	if b, rerr := os.ReadFile(filepath.Join(a.cfg.DataDir, MemoryName)); rerr == nil {
		if err := os.WriteFile(filepath.Join(tmp, MemoryName), b, 0o600); err != nil {
			return nil, err
		}
	}
	if a.mem, _, err = loadMemory(tmp); err != nil { // one that is unreadable is a check's own finding
		return nil, err
	}
	local, err := a.dialer.Client(a.cfg.ClientURL)
	if err != nil {
		return nil, err
	}
	a.watch = &watcher{cfg: a.cfg, dialer: a.dialer, mem: a.mem, log: a.log, local: local}
	defer func() { err = errors.Join(err, local.Close()) }()

	var f preflight.Facts
	a.look(ctx, &f, true)
	a.askArbiter(ctx, &f)
	f.Health = preflight.LookHealth(ctx, a.cfg.HealthListen, hex(f.Etcd.Member))
	return preflight.Run(&f), ctx.Err()
}

// askArbiter probes the store, reads the record, and lets the core say whether this member would be armed.
func (a *Agent) askArbiter(ctx context.Context, f *preflight.Facts) {
	id, cluster := f.Etcd.Member, f.Etcd.Cluster
	if id == 0 {
		if md, err := walsurgery.ReadMetadata(a.cfg.walDir()); err == nil {
			id, cluster = md.MemberID, md.ClusterID
		}
	}
	as := a.mem.probeAs(id)
	arb := &f.Arbiter
	arb.Circular = errors.New("etcd does not answer, so its store cannot be compared with the arbiter's")
	if f.Etcd.Err == nil || a.cfg.Circular == nil {
		a.checks.setCircular(a.circular(ctx, as, cluster))
	}
	if a.cfg.Scratch == nil {
		a.checks.setProbe(probe.Report{}, errors.New("no way to a scratch register"))
	} else {
		rep, err := a.probe(ctx, as)
		for try := 0; errors.Is(err, probe.ErrBusy) && try < 5 && sleep(ctx, probeAgain); try++ {
			rep, err = a.probe(ctx, as) // this member's agent probes too, at its start
		}
		a.checks.setProbe(rep, err)
	}
	asked := arb.Circular
	a.checks.arbiter(arb)
	if !arb.Asked {
		arb.Circular = asked
	}
	arb.SharedHost = a.sharedHost()

	a.watch.lookHere(ctx, 0)
	a.watch.lookThere(ctx, 0)
	a.watch.lookAtBinary(ctx, 0)
	switch {
	case arb.IsCircular || arb.Report.Problem != nil:
		a.watch.trust(failover.StoreFaulty)
	case arb.ProbeErr != nil || arb.Circular != nil:
		a.watch.trust(failover.StoreUntested)
	}
	obs := a.watch.take(false)
	tick := failover.Event{Kind: failover.Tick, Ticks: 1, Obs: obs}
	read := failover.Event{Kind: failover.RecordRead}
	rctx, cancel := context.WithTimeout(ctx, a.cfg.arbiterDeadline())
	arb.ReadErr = a.readRecord(rctx, &read)
	cancel()
	arb.Status = read.Status
	s, _ := failover.Step(failover.New(a.cfg.Params(), a.mem.own()), tick)
	asks := s.Arb == failover.ReadRecord
	for _, e := range []failover.Event{read, tick} {
		s, _ = failover.Step(s, e) // what it asks for is not done
	}
	arb.Armed, arb.Reason = s.Armed()
	arb.Assessed = asks && obs.Etcd == failover.EtcdLed && obs.Voters.Count > 0
	arb.Alone = s.Phase == failover.Alone
	if read.Status == failover.Readable {
		r := read.Record
		arb.Record, arb.Cluster, arb.Gen, arb.Written = r.ID, r.ClusterID, r.Generation, time.UnixMilli(r.WrittenAt)
	}
}
