package agent

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"twok/arbiter"
	"twok/internal/failover"
	"twok/internal/probe"
)

// Pauses between two probes that did not pass.
const (
	probeAgain    = 2 * time.Second
	probeAgainMax = time.Minute
)

// ScratchSuffix is what the probe's register is called, behind the record's name: one
// for each member, so that two probes do not disturb each other. A member that came back under a new
// ID goes on with the name under which it passed before, if that is not forbidden.
func ScratchSuffix(member uint64) string { return ".probe." + hex(member) }

// storeAtStart: a store that passed before, under the same name, is trusted until it fails. An
// agent that is restarted while its pair has no leader must not wait for a probe.
func (a *Agent) storeAtStart() failover.StoreState {
	if a.mem.probed() == a.cfg.ArbiterName {
		return failover.StoreTrusted
	}
	return failover.StoreUntested
}

// probeStore probes the arbiter's store until it passes (A1). Without having passed the core does not arm.
func (a *Agent) probeStore(ctx context.Context) {
	wait, warned := probeAgain, false
	var refused uint64 // the earlier ID whose name the store has just forbidden
	for {
		member, cluster := a.watch.identity()
		if member == 0 || cluster == 0 { // a new member: it gets its ID when etcd starts
			if !sleep(ctx, a.cfg.Tick) {
				return
			}
			continue
		}
		if who := a.sharedHost(); who != "" && !warned {
			warned = true
			a.log.Warn("the arbiter's store is on the host of "+who+": it is lost with it, and nobody goes on alone then", zap.String("host", a.cfg.ArbiterHost))
		}
		as := a.mem.probeAs(member)
		if as == refused {
			as = member
		}
		err := a.circular(ctx, as, cluster)
		a.checks.setCircular(err)
		if errors.Is(err, ErrCircular) {
			a.distrust("circular", err.Error(), "put the record into a store at a third place that does not need this pair")
			if !sleep(ctx, probeAgainMax) {
				return
			}
			continue
		}
		var rep probe.Report
		if err == nil {
			rep, err = a.probe(ctx, as)
			a.checks.setProbe(rep, err)
		}
		if as != member && arbiter.Class(err) == arbiter.ErrForbidden {
			refused = as
			continue
		}
		refused = 0
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && rep.Problem == nil:
			a.watch.trust(failover.StoreTrusted)
			if err := a.mem.setProbed(a.cfg.ArbiterName, as); err != nil {
				a.log.Warn("the probe's outcome could not be stored", zap.Error(err))
			}
			a.log.Info("the arbiter's store passed its probe", zap.Int("rounds", rep.Rounds), zap.Duration("took", rep.Took), zap.String("as", hex(as)),
				zap.Duration("read_p50", rep.Read.P50), zap.Duration("read_p99", rep.Read.P99),
				zap.Duration("swap_p50", rep.Swap.P50), zap.Duration("swap_p99", rep.Swap.P99))
			for _, w := range rep.Warnings {
				a.log.Warn("the arbiter's store", zap.String("warning", w))
			}
			return
		case err == nil:
			a.distrust(string(rep.Problem.Fault), rep.Problem.What, rep.Problem.Remedy)
			wait = probeAgainMax
		default:
			lvl := a.log.Warn
			if errors.Is(err, probe.ErrBusy) {
				lvl = a.log.Info
			}
			if repeated, ok := a.echo.tell("probe "+err.Error(), time.Now()); ok {
				lvl("the arbiter's store could not be probed", zap.Error(err), zap.Int("repeated", repeated))
			}
		}
		if !sleep(ctx, wait) {
			return
		}
		wait = min(2*wait, probeAgainMax)
	}
}

func (a *Agent) probe(ctx context.Context, as uint64) (probe.Report, error) {
	return probe.Run(ctx, probe.Config{
		Open:       func() (arbiter.Register, error) { return a.cfg.Scratch(ScratchSuffix(as)) },
		ClaimAfter: a.cfg.ClaimAfter, Timeout: a.cfg.arbiterDeadline(), RunID: arbiter.NewNonce(),
	})
}

// distrust keeps this member from claiming.
func (a *Agent) distrust(fault, what, remedy string) {
	a.watch.trust(failover.StoreFaulty)
	if err := a.mem.setProbed("", 0); err != nil {
		a.log.Warn("the probe's outcome could not be stored", zap.Error(err))
	}
	a.log.Error("the arbiter's store failed its probe: this member does not claim",
		zap.String("fault", fault), zap.String("what", what), zap.String("remedy", remedy))
}

// sleep is false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// trust sets what the next observation says of the store.
func (w *watcher) trust(s failover.StoreState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.store = s
}

// identity is this member's ID and its cluster's, zero while they are not known.
func (w *watcher) identity() (member, cluster uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.obs.Member, w.obs.Cluster
}
