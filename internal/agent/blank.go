package agent

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"

	"twok/internal/etcdapi"
	"twok/internal/etcdproc"
	"twok/walsurgery"
)

// errUnmet: of the other member only the peer URLs are known, from etcd's flags.
var errUnmet = errors.New("the other member's client URLs are not known yet")

// holdBlank keeps an etcd of our own from starting on a data directory without a WAL until the core knows
// that there is no record (a new pair). On a replaced disk etcd would be a voter that the pair knows, without anything
// that this voter once acknowledged; it returns as a learner instead (P12, P13). In signal mode somebody else has
// started etcd already.
func (a *Agent) holdBlank() {
	g, ok := a.cfg.Etcd.(etcdproc.Gated)
	if !ok {
		return
	}
	g.MayStart(a.mayStart)
	if _, err := walsurgery.ReadMetadata(a.cfg.walDir()); !errors.Is(err, walsurgery.ErrNoWAL) {
		return // there is one, readable or not
	}
	a.log.Info("the data directory holds no data: etcd starts when it is known whether this pair has a record", zap.String("data-dir", a.cfg.DataDir))
	a.watch.blank.Store(true)
}

// mayStart is asked before each start of an etcd of our own. A directory whose WAL is gone, emptied by a person or lost with
// its volume while the agent runs, is as blank as one that it finds at its start: holdBlank. It is asked again while it says no.
func (a *Agent) mayStart() bool {
	if _, err := walsurgery.ReadMetadata(a.cfg.walDir()); !errors.Is(err, walsurgery.ErrNoWAL) {
		a.watch.anew.Store(false)
		if !a.watch.blank.Load() {
			return true
		}
		// It was mounted late, or put back. Under another data directory than the one at the start lie another lock and memory (P16, P20).
		if now, err := os.Stat(a.cfg.DataDir); err != nil || !os.SameFile(a.dir, now) {
			if repeated, ok := a.echo.tell("another data directory", time.Now()); ok {
				a.log.Error("another data directory was mounted since the agent's start: etcd stays down until the agent is restarted",
					zap.String("data-dir", a.cfg.DataDir), zap.Int("repeated", repeated), zap.Error(err))
			}
			return false
		}
		a.watch.blank.Store(false)
		return true
	}
	if a.watch.anew.Load() {
		return true
	}
	if !a.watch.blank.Swap(true) {
		a.log.Warn("the data directory holds no data any more: etcd stays down, and returns as a new member once the other one leads alone", zap.String("data-dir", a.cfg.DataDir))
	}
	return false
}

// unblank ends the hold on a blank directory before etcd is let go: there is a WAL by now, or the core knows that there is no record
// (anew). What a section finds blank stays so: it held locks, a release without any is the core's permission.
func (a *Agent) unblank(locked bool) {
	if a.watch == nil || !a.watch.blank.Load() {
		return
	}
	_, err := walsurgery.ReadMetadata(a.cfg.walDir())
	none := errors.Is(err, walsurgery.ErrNoWAL)
	if none && locked {
		return
	}
	a.watch.anew.Store(none)
	a.watch.blank.Store(false)
}

// fromFlags learns from etcd's flags what a lost data directory cannot tell any more: who this member and the other one are.
// w.mu is held.
func (w *watcher) fromFlags(f etcdproc.Flags) {
	if len(w.mem.site().PeerURLs) > 0 || len(f.Cluster) == 0 || w.obs.Member != 0 {
		return
	}
	err := w.mem.setSite(func(s *siteInfo) bool {
		s.Name, s.PeerURLs = f.Name, f.PeerURLs
		for _, name := range slices.Sorted(maps.Keys(f.Cluster)) {
			if name != f.Name && len(s.Other) < 8 {
				s.Other = append(s.Other, etcdapi.Member{Name: name, PeerURLs: f.Cluster[name]})
			}
		}
		return true
	})
	if err != nil {
		w.log.Warn("addresses could not be stored", zap.Error(err))
	}
}

// lookForFlags watches for an etcd to read the flags of, while it is not known who this member is. In signal mode an etcd on a replaced
// disk takes an ID that was removed, and ends within a tenth of a second; a second later it is started again. lookHere, which waits for
// answers, and lookAtBinary would meet one by chance only.
func (w *watcher) lookForFlags(ctx context.Context, _ int) {
	w.mu.Lock()
	known := w.obs.Member != 0
	w.mu.Unlock()
	if known || len(w.mem.site().PeerURLs) > 0 {
		return
	}
	f, err := w.cfg.Etcd.Flags(ctx)
	if err != nil {
		return // none runs, or not any more
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fromFlags(f)
}

// meet asks the other member's peer ports for its client URLs.
func (a *Agent) meet(ctx context.Context) {
	for _, m := range a.mem.site().Other {
		for _, u := range m.PeerURLs {
			ms, err := a.dialer.PeerMembers(ctx, u)
			if err != nil {
				a.log.Debug("the other member's peer port", zap.String("url", u), zap.Error(err))
				continue
			}
			a.watch.mu.Lock()
			a.watch.neighbours(ms)
			a.watch.mu.Unlock()
			return
		}
	}
}
