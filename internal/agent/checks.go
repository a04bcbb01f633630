package agent

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"twok/internal/failover"
	"twok/internal/preflight"
	"twok/internal/probe"
)

// How often a running agent looks: everything that is cheap each checkEach, or each checkSoon, doubling, while
// something refuses; what writes or dials (trials, certificates) each checkDeep, when the agent's own certificates changed, and while one of these refuses.
const (
	checkEach = time.Minute
	checkSoon = 2 * time.Second
	checkDeep = time.Hour
	checkCert = 5 * time.Second // between two looks at the agent's own certificates
	checkMin  = time.Second     // between two looks, whatever happens

	// The first look waits so long for an etcd with a leader: there is little to see before.
	checkFirst = 5 * time.Second
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
	phase chan struct{} // of size one: the core's phase has changed
}

// wake makes a running agent look again soon: what was refused a moment ago may be right now.
func (c *checks) wake() {
	select {
	case c.phase <- struct{}{}:
	default:
	}
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

// onto adds the checks to a status. A refusal that bars is louder than the core's "armed", and than no reason at all.
func (c *checks) onto(st *Status) {
	s := c.shown.Load()
	if s == nil {
		st.Checks, st.Warnings = []preflight.Result{}, []string{}
		return
	}
	st.Checks, st.Warnings = s.results, s.warnings
	if len(s.barring) > 0 && (st.Armed || (st.Reason == failover.None.String() && st.Role != failover.Alone.String())) {
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
	for end := time.Now().Add(checkFirst); time.Now().Before(end) && !a.watch.led(); {
		if !sleep(ctx, 50*time.Millisecond) {
			return
		}
	}
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
		rest := func() bool {
			return bytes.Equal(own[0], leaf(a.cfg.ClientTLS)) && bytes.Equal(own[1], leaf(a.cfg.PeerTLS))
		}
		if !sleep(ctx, checkMin) || !a.checks.pause(ctx, wait-checkMin, rest) {
			return
		}
	}
}

// pause waits, at most so long, until the phase changes or rest, asked now and then, is false. It is false when ctx ended.
func (c *checks) pause(ctx context.Context, d time.Duration, rest func() bool) bool {
	for end := time.Now().Add(d); time.Now().Before(end) && rest(); {
		select {
		case <-ctx.Done():
			return false
		case <-c.phase:
			return true
		case <-time.After(min(checkCert, time.Until(end))):
		}
	}
	return ctx.Err() == nil
}

// led says whether the local etcd was seen with a leader.
func (w *watcher) led() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.obs.Etcd == failover.EtcdLed
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

// tell logs what changed: a refusal that bars a member with a leader at once, everything else when it was so
// twice, since etcd's own start and every failover pass by here.
func (a *Agent) tell(rs []preflight.Result, before, told map[string]preflight.State) (changed bool) {
	bars := map[string]bool{}
	switch a.status.Load().Role {
	case failover.Following.String(), failover.Leading.String(), failover.Alone.String():
		for _, r := range preflight.Barring(rs) {
			bars[r.Name] = true
		}
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
