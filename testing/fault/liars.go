package fault

import (
	"context"
	"errors"
	"fmt"
	"time"

	"twok/internal/lab"
	"twok/testing/cluster"
)

// lying are the needs of a store that lies: it is the harness's own, and tells sites apart by their addresses.
var lying = Needs{Namespaces: true, Arbiters: []string{"serve"}}

// oneRegister is why the traces of a store that lies are not validated.
const oneRegister = "the model's register is linearizable"

// liars are stores that break A1. What passes no probe is refused and nothing is lost. What passes and lies later is not twok's
// to see; each of these scripts fails unless the lie was told, so none is green by luck.
func liars() []Fault {
	return []Fault{
		{
			Name: "store-lies-probe", About: "the store ignores conditions: the probe refuses it, the pair says so, cut apart nobody writes; with a right store it arms", Rows: []string{"F28"}, Claims: 1, Roles: []string{Pair},
			Needs:   lying,
			Prepare: func(o *cluster.Options) { o.Lies, o.Lie, o.Unarmed = true, cluster.Ignores, true },
			Run:     refusedStore,
		},
		{
			Name: "store-lies-swaps", About: "the store passes its probe, and takes both members' claims of one generation", Claims: 1, Roles: []string{Pair},
			Needs: lying, Breaks: "A1", Untraced: oneRegister,
			Prepare: func(o *cluster.Options) {
				o.Lies = true
				o.AgentFlags = append(o.AgentFlags, "--head-start", "1ms", "--claim-after", cluster.LiarClaimAfter.String())
			},
			Run: bothWin,
		},
		{
			Name: "store-lies-split", About: "the store passes its probe, then each site has a record of its own, as in a store whose replication broke: both survive", Claims: 1, Roles: []string{Pair},
			Needs: lying, Breaks: "A1", Untraced: oneRegister,
			Prepare: func(o *cluster.Options) { o.Lies = true },
			Run:     splitStore,
		},
		{
			Name: "store-lies-rollback", About: "the store passes its probe; the record of before the claim is restored while the survivor leads alone, and the loser reads that", Claims: 1, Roles: []string{Pair},
			Needs: lying, Breaks: "A1", Untraced: oneRegister,
			Prepare: func(o *cluster.Options) { o.Lies = true },
			Run:     rolledBack,
		},
		{
			Name: "store-lies-stale", About: "the store passes its probe; the loser reads the record of before the claim, but swaps are judged rightly", Claims: 1, Roles: []string{Pair},
			Needs: lying, Breaks: "A1", Holds: true, Untraced: oneRegister,
			Prepare: func(o *cluster.Options) { o.Lies = true },
			Run:     staleReads,
		},
	}
}

// refusedStore: the probe refuses the store, and the pair lives on without protection.
func refusedStore(ctx context.Context, s *Stage) error {
	if err := s.untrusted(ctx); err != nil {
		return fmt.Errorf("the probe has to refuse a store that ignores conditions: %w", err)
	}
	if n := s.Liar.Told(cluster.Ignores); n == 0 {
		return errors.New("the store took no swap against its condition: this showed nothing")
	}
	s.Refused("store-untrusted at both members, after %d swaps against their conditions", s.Liar.Told(cluster.Ignores))
	err := do(ctx, func(ctx context.Context) error { return s.Writes(ctx, 50) }, now(s.CutLink), func(ctx context.Context) error {
		return s.Silence(ctx, "cut apart, and the store was refused", s.Between(2500*time.Millisecond, 4*time.Second))
	}, now(s.HealLink), s.Resumes)
	if err != nil {
		return err
	}
	if err := s.untrusted(ctx); err != nil {
		return fmt.Errorf("after the cut: %w", err)
	}
	s.Note("the store is a right one now, and the agents start again")
	s.Liar.Tell(cluster.Honest, "")
	for _, site := range lab.Sites { // the next probe would come within a minute
		s.Site(site).KillAgent()
		if err := s.Up(site); err != nil {
			return err
		}
	}
	if _, err := s.Whole(ctx); err != nil {
		return err
	}
	return failover(ctx, s)
}

// untrusted waits until both agents say so. That one asks for a swap of the record instead is an error at once.
func (s *Stage) untrusted(ctx context.Context) error {
	for _, site := range lab.Sites {
		for {
			if n := s.Liar.Swaps(); n > 0 {
				return fmt.Errorf("%d swaps of the record were asked of this store", n)
			}
			try, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			err := s.Reason(try, site, "store-untrusted")
			cancel()
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return err
			}
		}
	}
	return nil
}

// bothWin: two claims of one generation are taken. It may need some cuts until both come at the same time.
func bothWin(ctx context.Context, s *Stage) error {
	s.Liar.Tell(cluster.TakesAll, "")
	for try := 0; s.Liar.Told(cluster.TakesAll) == 0; try++ {
		if try == 5 {
			return errors.New("in five cuts the store never had two claims of one version to take: this showed nothing")
		}
		if try > 0 {
			if err := do(ctx, now(s.HealLink), func(ctx context.Context) error { _, err := s.Whole(ctx); return err }); err != nil {
				return err
			}
		}
		if err := do(ctx, now(s.CutLink), s.Resumes); err != nil {
			return err
		}
	}
	s.Note("the store took %d swaps of the record from a version that was gone", s.Liar.Told(cluster.TakesAll))
	return do(ctx, func(ctx context.Context) error { return s.Wait(ctx, s.Between(time.Second, 2*time.Second)) }, s.honest, now(s.HealLink), s.Resumes)
}

// splitStore: both sites survive, each by its own record, and one of them wins in the end.
func splitStore(ctx context.Context, s *Stage) error {
	s.Note("each site has a record of its own")
	s.Liar.Tell(cluster.Split, "")
	if err := s.CutLink(); err != nil {
		return err
	}
	for _, site := range lab.Sites {
		if err := s.WritesAt(ctx, site, 30); err != nil {
			return fmt.Errorf("with a record for each site both survive: %w", err)
		}
	}
	s.Note("both write")
	return do(ctx, s.honest, now(s.HealLink), s.Resumes)
}

// lone cuts the target off from everybody, so that the other one survives, and waits for its confirmation.
func lone(ctx context.Context, s *Stage) error {
	return do(ctx, func(context.Context) error { return s.CutArbiter(s.Target) }, now(s.CutLink), s.Resumes,
		func(ctx context.Context) error { return s.Survives(ctx, s.Other()) }, s.Confirmed)
}

func rolledBack(ctx context.Context, s *Stage) error {
	s.Liar.Tell(cluster.RolledBack, "")
	if err := lone(ctx, s); err != nil {
		return err
	}
	s.Note("the record of before the claim is restored")
	// The loser is let to it at the same time: it never saw the claim.
	if err := errors.Join(s.Liar.RollBack(), s.HealArbiter(s.Target)); err != nil {
		return err
	}
	if err := s.Wait(ctx, s.Between(3*time.Second, 5*time.Second)); err != nil {
		return err
	}
	rec, err := s.Record(ctx)
	if err != nil {
		return err
	}
	s.Note("the record is of generation %d and names %s; it named %s before", rec.Generation, rec.Survivor.Name, s.Other())
	return do(ctx, s.honest, now(s.HealAll), s.Resumes)
}

func staleReads(ctx context.Context, s *Stage) error {
	s.Liar.Tell(cluster.Stale, s.Target)
	if err := lone(ctx, s); err != nil {
		return err
	}
	if err := s.HealArbiter(s.Target); err != nil {
		return err
	}
	err := s.Until(ctx, "the loser believes the old record and goes for the claim", func(context.Context) error {
		if n := s.Liar.Denied(s.Target); n == 0 {
			return fmt.Errorf("after %d stale reads it has asked for no swap", s.Liar.Told(cluster.Stale))
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.Note("%d stale reads, and the loser's claim was refused", s.Liar.Told(cluster.Stale))
	since := s.Rec.Now()
	if err := s.WritesAt(ctx, s.Other(), 50); err != nil {
		return err
	}
	if n := s.wrote(s.Target, since); n > 0 {
		return fmt.Errorf("%d writes were acknowledged at the loser", n)
	}
	return do(ctx, s.honest, now(s.HealAll), s.Resumes)
}

func (s *Stage) honest(context.Context) error {
	s.Note("the store is honest from now on")
	s.Liar.Tell(cluster.Honest, "")
	return nil
}
