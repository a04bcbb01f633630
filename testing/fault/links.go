package fault

import (
	"context"
	"fmt"
	"time"

	"twok/internal/lab"
	"twok/testing/network"
)

func links() []Fault {
	return []Fault{
		{
			Name: "cut-both", About: "the members are cut apart, both reach the arbiter", Rows: []string{"F2"}, Claims: 1, Roles: []string{Pair},
			Run: func(ctx context.Context, s *Stage) error {
				return do(ctx, now(s.CutLink), s.Resumes, now(s.HealLink))
			},
		},
		{
			Name: "cut-one-way", About: "what is sent to the target is lost, what it sends arrives", Rows: []string{"F34"}, Claims: 1, Roles: both,
			Run: func(ctx context.Context, s *Stage) error {
				s.Note("cut towards %s", s.Target)
				if err := s.Cut(network.Rule{From: s.Other(), To: s.Target, Kind: network.All}); err != nil {
					return err
				}
				return do(ctx, s.Resumes, now(s.HealLink))
			},
		},
		{
			Name: "cut-new", About: "no new connection between the members, established ones live on; then the target's etcd restarts and finds nobody",
			Claims: 1, Roles: both, Needs: Needs{Namespaces: true},
			Run: func(ctx context.Context, s *Stage) error {
				s.Note("no new connections between the members")
				if err := s.Cut(network.Both("a", "b", network.NewConns)...); err != nil {
					return err
				}
				if err := s.Writes(ctx, 100); err != nil {
					return fmt.Errorf("established connections live on: %w", err)
				}
				s.Note("SIGKILL of the etcd of %s", s.Target)
				return do(ctx, now(s.Site(s.Target).KillEtcd), s.Resumes, now(s.HealLink))
			},
		},
		{
			Name: "cut-large", About: "large packets between the members are lost: heartbeats pass, values do not", Rows: []string{"F34"}, Roles: []string{Pair},
			Needs: Needs{Namespaces: true}, Large: true,
			Run: func(ctx context.Context, s *Stage) error {
				s.Note("large packets are lost")
				if err := s.Cut(network.Both("a", "b", network.Large)...); err != nil {
					return err
				}
				return do(ctx, func(ctx context.Context) error { return s.Wait(ctx, s.Between(3*time.Second, 6*time.Second)) }, now(s.HealLink), s.Resumes)
			},
		},
		{
			Name: "loss", About: "30 % of the packets between the members are lost, at random", Rows: []string{"F34"}, Roles: []string{Pair},
			Needs: Needs{Namespaces: true},
			Run: func(ctx context.Context, s *Stage) error {
				s.Note("30 %% loss")
				if err := s.Cut(network.Both("a", "b", network.Loss)...); err != nil {
					return err
				}
				return do(ctx, func(ctx context.Context) error { return s.Wait(ctx, s.Between(4*time.Second, 8*time.Second)) }, now(s.HealLink), s.Resumes)
			},
		},
		{
			Name: "flap", About: "the link between the members goes and comes, six times, each for 0.2 to 2 s (with etcd's own timing for 1 to 10 s)", Rows: []string{"F35"}, Roles: []string{Pair},
			Run: func(ctx context.Context, s *Stage) error {
				from, to := 200*time.Millisecond, 2*time.Second
				if s.Options.Real {
					from, to = time.Second, 10*time.Second
				}
				for range 6 {
					if err := do(ctx, now(s.CutLink), func(ctx context.Context) error { return s.Wait(ctx, s.Between(from, to)) },
						now(s.HealLink), func(ctx context.Context) error { return s.Wait(ctx, s.Between(from, to)) }); err != nil {
						return err
					}
				}
				return s.Resumes(ctx)
			},
		},
		{
			Name: "cut-unclaimed", About: "the link goes and comes before anybody claims", Roles: []string{Pair},
			Run: func(ctx context.Context, s *Stage) error {
				return do(ctx, now(s.CutLink), func(ctx context.Context) error {
					return s.Wait(ctx, s.Between(100*time.Millisecond, 700*time.Millisecond))
				},
					now(s.HealLink), s.Resumes)
			},
		},
		{
			Name: "cut-twice", About: "cut and healed, and cut again while the loser is on its way back", Claims: 1, Roles: []string{Pair},
			Run: func(ctx context.Context, s *Stage) error {
				for range 3 {
					err := do(ctx, now(s.CutLink), s.Resumes, now(s.HealLink),
						func(ctx context.Context) error {
							return s.Wait(ctx, s.Between(10*time.Millisecond, 1500*time.Millisecond))
						})
					if err != nil {
						return err
					}
				}
				return s.Resumes(ctx)
			},
		},
		{
			Name: "isolated", About: "the target is cut off from everybody, the other one has the arbiter", Rows: []string{"F32"}, Claims: 1, Roles: both,
			Run: func(ctx context.Context, s *Stage) error {
				return do(ctx, func(context.Context) error { return s.CutArbiter(s.Target) }, now(s.CutLink), s.Resumes,
					func(ctx context.Context) error { return s.Survives(ctx, s.Other()) }, now(s.HealAll))
			},
		},
		{
			Name: "arbiter-gone", About: "both are cut from the arbiter and write on; cut apart as well, nobody writes; then one of them reaches it", Rows: []string{"F37"}, Claims: 1, Roles: both,
			Run: func(ctx context.Context, s *Stage) error {
				return do(ctx, func(context.Context) error { return s.CutArbiter(lab.Sites[:]...) },
					func(ctx context.Context) error { return s.Writes(ctx, 200) }, now(s.CutLink),
					func(ctx context.Context) error {
						return s.Silence(ctx, "cut apart, and no arbiter", s.Between(1500*time.Millisecond, 3*time.Second))
					},
					func(context.Context) error { return s.HealArbiter(s.Target) }, s.Resumes,
					func(ctx context.Context) error { return s.Survives(ctx, s.Target) }, now(s.HealAll))
			},
		},
	}
}
