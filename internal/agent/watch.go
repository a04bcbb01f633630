package agent

import (
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"twok/internal/bind"
	"twok/internal/etcdapi"
	"twok/internal/etcdproc"
	"twok/internal/failover"
	"twok/internal/member"
	"twok/rejoin"
	"twok/walsurgery"
)

// watcher keeps looking at the local etcd and at the other member. Its latest
// observation is what the next tick shows the core.
type watcher struct {
	cfg    Config
	dialer *etcdapi.Dialer
	mem    *memory
	log    *zap.Logger
	local  *clientv3.Client

	mu      sync.Mutex
	obs     failover.Obs
	epoch   int    // changes when the agent itself made what a look that is under way has seen stale
	contact bool   // the other member answered since the last take
	warned  bool   // of a version with stale reads; lookAtBinary's own
	binary  uint32 // minor version of the binary that the next start runs; zero: not known
	store   failover.StoreState
	quiet   bool // nothing changes: look at list and token less often
	barred  barred

	blank atomic.Bool // etcd is kept from starting on an empty data directory
	anew  atomic.Bool // it may start on one: no record was seen yet
}

func newWatcher(cfg Config, d *etcdapi.Dialer, mem *memory) (*watcher, error) {
	c, err := d.Client(cfg.ClientURL)
	if err != nil {
		return nil, err
	}
	w := &watcher{cfg: cfg, dialer: d, mem: mem, log: cfg.Logger, local: c}
	w.peek()
	return w, nil
}

// peek learns from the data directory what a silent etcd cannot be asked for.
func (w *watcher) peek() {
	p, err := member.PeekDir(w.cfg.DataDir, w.cfg.walDir())
	if err != nil && !errors.Is(err, member.ErrHeld) {
		w.log.Info("the data directory tells nothing yet", zap.Error(err))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.obs.Member = w.mem.site().MemberID
	if p.Member != 0 {
		w.obs.Member, w.obs.Cluster = p.Member, p.Cluster
	}
	if p.TokenRead {
		w.obs.TokenRead, w.obs.Token = true, p.Token
	}
	if len(p.Members) > 0 {
		var ms []etcdapi.Member
		for _, m := range p.Members {
			ms = append(ms, etcdapi.Member{ID: m.ID, Name: m.Name, PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs, Learner: m.Learner})
		}
		w.neighbours(ms)
	}
	w.otherID()
}

// reread takes the member ID from the WAL, after it was rewritten.
func (w *watcher) reread() {
	md, err := walsurgery.ReadMetadata(w.cfg.walDir())
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.log.Warn("the WAL's metadata cannot be read", zap.Error(err))
		return
	}
	err = w.mem.setSite(func(s *siteInfo) bool {
		changed := s.MemberID != md.MemberID
		s.MemberID = md.MemberID
		return changed
	})
	if err != nil {
		w.log.Warn("the new member ID could not be stored", zap.Error(err))
	}
	w.epoch++
	w.obs = failover.Obs{Etcd: failover.EtcdAway, Member: md.MemberID, Cluster: md.ClusterID,
		Version: w.obs.Version, Other: w.obs.Other, Peer: w.obs.Peer, Unsafe: w.obs.Unsafe}
}

// wrote takes in a token that the agent has just written: a look that began before
// would show the old one, and it would be written again.
func (w *watcher) wrote(t failover.Token) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.epoch++
	w.obs.TokenRead, w.obs.Token = true, t
}

// take returns the latest observation. Contact is told once.
func (w *watcher) take(quiet bool) failover.Obs {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.quiet = quiet
	o := w.obs
	o.Contact, o.Store = w.contact, w.store
	w.contact = false
	return o
}

func (w *watcher) run(ctx context.Context) {
	var g sync.WaitGroup
	g.Go(func() { w.every(ctx, w.cfg.Tick, w.lookHere) })
	g.Go(func() { w.every(ctx, max(w.cfg.Tick, 20*time.Millisecond), w.lookThere) })
	g.Go(func() { w.every(ctx, max(2*time.Second, 10*w.cfg.Tick), w.lookAtBinary) })
	g.Go(func() { w.every(ctx, max(100*time.Millisecond, w.cfg.Tick), w.lookForFlags) })
	g.Wait()
	if err := w.local.Close(); err != nil && ctx.Err() == nil {
		w.log.Debug("closing the local client", zap.Error(err))
	}
}

func (w *watcher) every(ctx context.Context, d time.Duration, f func(context.Context, int)) {
	t := time.NewTicker(d)
	defer t.Stop()
	for n := 0; ; n++ {
		f(ctx, n)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// lookHere looks at the local etcd: its client port, and where that does not
// answer, its peer port, which answers without a leader too.
func (w *watcher) lookHere(ctx context.Context, n int) {
	w.mu.Lock()
	o, quiet, epoch := w.obs, w.quiet, w.epoch
	w.mu.Unlock()
	p := w.cfg.Etcd.Process()
	o.Start = startToken(p)

	cctx, cancel := context.WithTimeout(ctx, w.cfg.callDeadline())
	st, err := etcdapi.Status(cctx, w.local)
	cancel()
	if err == nil {
		o.Etcd = failover.EtcdNoLeader
		if st.Leader != 0 {
			o.Etcd = failover.EtcdLed
		}
		if o.Member != st.Header.MemberId {
			o.Voters, o.TokenRead = failover.Voters{}, false
		}
		o.Member, o.Cluster = st.Header.MemberId, st.Header.ClusterId
		o.Leader, o.Term, o.Commit, o.Learner = st.Leader, st.RaftTerm, st.RaftIndex, st.IsLearner
		o.Version = rejoin.Minor(st.Version)
		o.Alarm = slices.ContainsFunc(st.Errors, func(s string) bool { return strings.Contains(s, "NOSPACE") })
		if !quiet || n%5 == 0 || o.Voters.Count == 0 || !o.TokenRead {
			w.lookInside(ctx, &o)
		}
	} else {
		o.Leader, o.Voters, o.Learner, o.Alarm = 0, failover.Voters{}, false, false
		o.Etcd = failover.EtcdAway
		cctx, cancel := context.WithTimeout(ctx, w.cfg.probeDeadline())
		if v, _, err := w.dialer.PeerVersion(cctx, w.cfg.PeerURL); err == nil {
			o.Etcd = failover.EtcdNoLeader
			if m := rejoin.Minor(v); m != 0 {
				o.Version = m
			}
			if n%10 == 0 {
				if ms, err := w.dialer.PeerMembers(cctx, w.cfg.PeerURL); err == nil {
					w.mu.Lock()
					w.neighbours(ms)
					w.mu.Unlock()
				}
			}
		}
		cancel()
		if o.Etcd == failover.EtcdNoLeader && w.barredFrom(ctx) {
			o.Etcd = failover.EtcdUnknown // a leader that cannot be seen is not lost
		}
	}
	if ctx.Err() != nil {
		return
	}
	o.Blank = w.blank.Load()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.epoch != epoch {
		return // the next look is right
	}
	if w.obs.Member != 0 && err != nil {
		o.Member, o.Cluster = w.obs.Member, w.obs.Cluster
	}
	o.Other, o.Peer, o.Unsafe, o.Segment = w.obs.Other, w.obs.Peer, w.obs.Unsafe, w.obs.Segment
	if w.binary != 0 {
		o.Version = w.binary
	}
	w.obs = o
}

// lookInside reads the member's own list and its own token, serializably: what
// this member has applied, however old.
func (w *watcher) lookInside(ctx context.Context, o *failover.Obs) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.callDeadline())
	defer cancel()
	resp, err := w.local.MemberList(ctx, clientv3.WithSerializable())
	if err != nil || resp.Header.MemberId != o.Member {
		o.Voters = failover.Voters{}
		return
	}
	var ms []etcdapi.Member
	var v failover.Voters
	var ids []uint64
	listed := false
	for _, m := range resp.Members {
		ms = append(ms, etcdapi.Member{ID: m.ID, Name: m.Name, PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs, Learner: m.IsLearner})
		if m.ID == o.Member {
			o.Learner = m.IsLearner
			listed = true
		}
		if m.IsLearner {
			v.Learners++
			continue
		}
		ids = append(ids, m.ID)
	}
	if !listed {
		o.Voters = failover.Voters{} // this member's data are from before its own addition
		return
	}
	slices.Sort(ids)
	v.Count = uint8(min(len(ids), 255))
	copy(v.IDs[:], ids)
	o.Voters = v
	get, err := w.local.Get(ctx, member.TokenKey, clientv3.WithSerializable())
	if err == nil && get.Header.MemberId == o.Member {
		o.Token = failover.Token{}
		if len(get.Kvs) > 0 {
			o.Token = bind.Applied(get.Kvs[0].Value, get.Kvs[0].Lease)
		}
		o.TokenRead = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.neighbours(ms)
}

// neighbours takes addresses from a list. A list without another member tells
// nothing new: a survivor still wants to know when the other one is back.
// w.mu is held.
func (w *watcher) neighbours(ms []etcdapi.Member) {
	self := w.obs.Member
	var other []etcdapi.Member
	var me *etcdapi.Member
	for i := range ms {
		if ms[i].ID == self {
			me = &ms[i]
		} else {
			other = append(other, ms[i])
		}
	}
	err := w.mem.setSite(func(s *siteInfo) bool {
		changed := false
		if me != nil && s.MemberID != self {
			s.MemberID, changed = self, true
		}
		if me != nil && len(me.PeerURLs) > 0 && !slices.Equal(me.PeerURLs, s.PeerURLs) {
			s.PeerURLs, changed = me.PeerURLs, true
		}
		if me != nil && me.Name != "" && me.Name != s.Name {
			s.Name, changed = me.Name, true
		}
		// After a return under a new ID the old one may still stand in the own list.
		other = slices.DeleteFunc(other, func(m etcdapi.Member) bool { return slices.Equal(m.PeerURLs, s.PeerURLs) })
		for i := range other {
			if len(other[i].ClientURLs) == 0 { // not published yet: keep what was known
				for _, old := range s.Other {
					if slices.Equal(old.PeerURLs, other[i].PeerURLs) {
						other[i].ClientURLs = old.ClientURLs
					}
				}
			}
		}
		if len(other) > 0 && !slices.EqualFunc(other, s.Other, sameMember) {
			s.Other, changed = other, true
		}
		return changed
	})
	if err != nil {
		w.log.Warn("addresses could not be stored", zap.Error(err))
	}
	w.otherID()
}

func sameMember(a, b etcdapi.Member) bool {
	return a.ID == b.ID && a.Name == b.Name && a.Learner == b.Learner &&
		slices.Equal(a.PeerURLs, b.PeerURLs) && slices.Equal(a.ClientURLs, b.ClientURLs)
}

// otherID: with several neighbours it is a voter, if there is one. w.mu is held.
func (w *watcher) otherID() {
	w.obs.Other = 0
	for _, m := range w.mem.site().Other {
		if w.obs.Other == 0 || !m.Learner {
			w.obs.Other = m.ID
		}
	}
}

// lookThere asks the other members' peer ports, as etcd itself does.
func (w *watcher) lookThere(ctx context.Context, _ int) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.probeDeadline())
	defer cancel()
	var g sync.WaitGroup
	var answers atomic.Bool
	for _, m := range w.mem.site().Other {
		for _, u := range m.PeerURLs {
			g.Go(func() { // at once: a URL that leads into the dark uses up the deadline
				if w.dialer.Probe(ctx, u) == nil {
					answers.Store(true)
				}
			})
		}
	}
	g.Wait()
	answered := answers.Load()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.obs.Peer = answered
	w.contact = w.contact || answered
}

// lookAtBinary learns the version and the dangerous flags of the etcd that runs here, and how far
// its WAL has come.
func (w *watcher) lookAtBinary(ctx context.Context, _ int) {
	if seg, err := walsurgery.NewestSegment(w.cfg.walDir()); err == nil {
		w.mu.Lock()
		w.obs.Segment = seg
		w.mu.Unlock()
	} else if !errors.Is(err, walsurgery.ErrNoWAL) {
		w.log.Debug("the WAL's segments", zap.Error(err))
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	v, verr := w.cfg.Etcd.Version(ctx)
	f, ferr := w.cfg.Etcd.Flags(ctx)
	minor := rejoin.Minor(v)
	if verr == nil && staleReads(v) && !w.warned {
		w.warned = true
		w.log.Warn("this etcd can serve stale reads as a leader that was paused and woke up (etcd issue 20418): upgrade to 3.5.28, 3.6.9 or later",
			zap.String("version", v))
	}
	if verr == nil && minor != 0 {
		err := w.mem.setSite(func(s *siteInfo) bool {
			changed := s.Version != minor
			s.Version = minor
			return changed
		})
		if err != nil {
			w.log.Warn("the etcd version could not be stored", zap.Error(err))
		}
	} else {
		minor = w.mem.site().Version
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.binary = minor
	if minor != 0 {
		w.obs.Version = minor
	}
	if ferr == nil {
		w.fromFlags(f)
		w.obs.Unsafe = f.ForceNewCluster || f.UnsafeNoFsync || !f.PreVote
	}
}

// startToken folds a process's start into the number that the core compares (P7).
func startToken(p etcdproc.Process) uint32 {
	h := fnv.New32a()
	var b [16]byte
	for i := range 8 {
		b[i] = byte(uint64(p.PID) >> (8 * i))
		b[8+i] = byte(p.Ticks >> (8 * i))
	}
	_, _ = h.Write(b[:])
	return h.Sum32()
}
