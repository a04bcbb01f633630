package fault

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"twok/internal/lab"
	"twok/testing/cluster"
)

// signalled are the arbiters whose process can be frozen.
var signalled = []string{"serve", "s3", "etcd"}

func arbiters() []Fault {
	return []Fault{
		{
			Name: "arbiter-one", About: "the target alone is cut from the arbiter, and the pair writes on; the other site is lost: the target says why it does not claim, and nobody writes; it reaches the arbiter again, and claims", Rows: []string{"F37"}, Claims: 1, Roles: both,
			Run: func(ctx context.Context, s *Stage) error {
				return do(ctx, func(context.Context) error { return s.CutArbiter(s.Target) },
					func(ctx context.Context) error { return s.Reason(ctx, s.Target, "arbiter-unavailable") },
					func(ctx context.Context) error { return s.WritesAt(ctx, s.Target, 50) },
					func(context.Context) error { return s.Kill(s.Other()) },
					func(ctx context.Context) error {
						return s.Silence(ctx, "alone, and cut from the arbiter", s.Between(2*time.Second, 4*time.Second))
					}, func(ctx context.Context) error { return s.Reason(ctx, s.Target, "arbiter-unavailable") },
					func(context.Context) error { s.Note("%s says arbiter-unavailable", s.Target); return nil },
					func(context.Context) error { return s.HealArbiter(s.Target) }, s.Resumes,
					func(ctx context.Context) error { return s.Survives(ctx, s.Target) },
					func(context.Context) error { return s.Up(s.Other()) })
			},
		},
		{
			Name: "store-kill", About: "the arbiter is killed and started again while both members live, and while they are cut apart", Rows: []string{"F37"}, Claims: 1, Roles: []string{Pair},
			Run: func(ctx context.Context, s *Stage) error {
				kill := func(context.Context) error { s.Note("SIGKILL of the arbiter"); return s.KillArbiter() }
				start := func(ctx context.Context) error { s.Note("start the arbiter"); return s.StartArbiter(ctx) }
				return do(ctx, kill, func(ctx context.Context) error { return s.Writes(ctx, 200) }, now(s.CutLink),
					func(ctx context.Context) error {
						return s.Silence(ctx, "cut apart, and no arbiter", s.Between(time.Second, 3*time.Second))
					}, start, s.Resumes, now(s.HealLink))
			},
		},
		{
			Name: "store-failing", About: "the arbiter is killed again and again while a claim is due", Claims: 1, Roles: []string{Pair},
			Run: func(ctx context.Context, s *Stage) error {
				if err := s.CutLink(); err != nil {
					return err
				}
				for range 8 {
					s.Note("SIGKILL of the arbiter")
					err := do(ctx, now(s.KillArbiter), func(ctx context.Context) error {
						return s.Wait(ctx, s.Between(10*time.Millisecond, 400*time.Millisecond))
					},
						s.StartArbiter, func(ctx context.Context) error {
							return s.Wait(ctx, s.Between(10*time.Millisecond, 500*time.Millisecond))
						})
					if err != nil {
						return err
					}
				}
				return do(ctx, s.Resumes, now(s.HealLink))
			},
		},
		{
			Name: "store-slow", About: "the arbiter answers late: it is frozen most of the time, from before the cut to after the return", Claims: 1, Roles: []string{Pair},
			Needs: Needs{Arbiters: signalled},
			Run: func(ctx context.Context, s *Stage) error {
				s.Note("the arbiter is slow")
				slow, stop := context.WithCancel(ctx)
				ended := make(chan error, 1)
				rest := s.Between(200*time.Millisecond, 600*time.Millisecond)
				go func() {
					for slow.Err() == nil {
						if err := s.SignalArbiter(syscall.SIGSTOP); err != nil {
							ended <- err
							return
						}
						pause(slow, rest)
						if err := s.SignalArbiter(syscall.SIGCONT); err != nil {
							ended <- err
							return
						}
						pause(slow, 60*time.Millisecond)
					}
					ended <- nil
				}()
				err := do(ctx, now(s.CutLink), s.Resumes, now(s.HealLink), func(ctx context.Context) error { _, err := s.Whole(ctx); return err })
				stop()
				if e := <-ended; err == nil {
					err = e
				}
				return err
			},
		},
		{
			Name: "store-mute", About: "the leader's claim comes to the arbiter and is not taken, without an answer, and its site gets none any more: it stays out, and the other one survives; then a claim is taken and not answered: it counts", Rows: []string{"F29"}, Claims: 2, Roles: []string{Pair},
			Needs:   lying,
			Prepare: func(o *cluster.Options) { o.Lies = true },
			Run:     unanswered,
		},
	}
}

// unanswered: what comes of a swap that has no answer is read from the record, or is not known.
func unanswered(ctx context.Context, s *Stage) error {
	round := func(lie cluster.Lie, survivor func(leader string) string) error {
		leader, err := s.Cluster.Leader(ctx)
		if err != nil {
			return err
		}
		before, err := s.Whole(ctx)
		if err != nil {
			return err
		}
		s.Liar.Tell(lie, leader)
		err = do(ctx, now(s.CutLink), func(ctx context.Context) error {
			return s.Until(ctx, "the leader's claim", func(context.Context) error {
				if s.Liar.Told(lie) == 0 {
					return errors.New("it does not come")
				}
				return nil
			})
		}, func(ctx context.Context) error {
			s.Note("the store %s, %s", lie, leader)
			return s.WritesAt(ctx, survivor(leader), 80)
		}, func(ctx context.Context) error { return s.Survives(ctx, survivor(leader)) })
		if err != nil {
			return err
		}
		after, err := s.Record(ctx)
		if err == nil && after.Generation != before.Generation+1 {
			err = fmt.Errorf("one claim led from generation %d to %d", before.Generation, after.Generation)
		}
		if err != nil {
			return err
		}
		s.Liar.Tell(cluster.Honest, "")
		return s.HealLink()
	}
	return do(ctx, func(context.Context) error { return round(cluster.Mute, lab.Other) },
		func(context.Context) error {
			return round(cluster.Silent, func(leader string) string { return leader })
		})
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
