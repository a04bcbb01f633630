package fault

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// The named steps, as internal/failpoint and the packages that declare them have them. "@2" is the second time: the
// first swap of an agent that leads a whole pair is its commit mark, the first of one that is alone its confirmation.
const (
	claimSteps = `agent/preflight/before agent/preflight/after agent/stop/before agent/stop/after agent/read-data/before agent/read-data/after
		agent/swap/before@2 agent/swap/after@2 agent/append/before agent/append/after agent/release/before agent/release/after agent/sample/before agent/sample/after
		wal/append/begin wal/append/hardstate wal/append/entries wal/append/commit wal/append/synced`
	returnSteps = `agent/look-at-list/before agent/look-at-list/after agent/add-learner/before agent/add-learner/after agent/stop/before agent/stop/after
		agent/read-data/before agent/read-data/after agent/rewrite/before agent/rewrite/after agent/release/before agent/release/after
		agent/compare/before agent/compare/after agent/promote/before agent/promote/after
		wal/rewrite/begin wal/rewrite/segment wal/rewrite/staged wal/rewrite/exchanged wal/rewrite/aside`
	tokenSteps = `agent/write-token/before agent/write-token/after agent/tidy/before agent/tidy/after agent/swap/before@2 agent/swap/after@2`
)

// steps are scenarios that stop an agent at a step and do something to it there. What, follows from the seed.
func steps() (all []Fault) {
	for _, part := range []struct {
		name, list string
		run        func(ctx context.Context, s *Stage, point string) error
	}{{"claim", claimSteps, claimStep}, {"return", returnSteps, returnStep}, {"token", tokenSteps, tokenStep}} {
		for point := range strings.FieldsSeq(part.list) {
			name, _, _ := strings.Cut(strings.TrimPrefix(point, "agent/"), "@")
			f := Fault{
				Name: "step-" + part.name + "-" + strings.ReplaceAll(name, "/", "-"), Roles: both, Claims: 1, Needs: Needs{Failpoints: true}, Rows: []string{"F19"},
				About: "of " + part.name + ", at " + point + ": the agent, its etcd or the site is killed, ended or frozen",
				Run:   func(ctx context.Context, s *Stage) error { return part.run(ctx, s, point) },
			}
			if part.name == "return" && strings.Contains(point, "add-learner") {
				f.Rows = append(f.Rows, "F6", "F7")
			}
			all = append(all, f)
		}
	}
	return all
}

// pauseAt is the specification that holds an agent at the point until gate exists.
func pauseAt(point, gate string) string {
	name, nth, ok := strings.Cut(point, "@")
	spec := name + "=pause:" + gate
	if ok {
		spec += "@" + nth
	}
	return spec
}

// act does to the site, whose agent stands at a step, one of the things that can happen then. Afterwards everything there may run.
func (s *Stage) act(ctx context.Context, site, gate string) error {
	x := s.Site(site)
	x.AgentEnv() // for the next start
	kind := s.Rand.IntN(5)
	s.Note("at the step, at %s: %s", site, []string{"SIGKILL of the agent", "SIGKILL of everything", "SIGKILL of the etcd, then of the agent", "SIGTERM to the agent", "the agent is frozen for a while"}[kind])
	switch kind {
	case 0:
		x.KillAgent()
	case 1:
		if err := x.Kill(); err != nil {
			return err
		}
	case 2:
		if err := x.KillEtcd(); err != nil {
			return err
		}
		if err := s.Wait(ctx, s.Between(0, 500*time.Millisecond)); err != nil {
			return err
		}
		x.KillAgent()
	case 3:
		if err := s.signalAgent(site, syscall.SIGTERM); err != nil {
			return err
		}
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			return err
		}
		x.StopAgent()
	case 4:
		if err := s.signalAgent(site, syscall.SIGSTOP); err != nil {
			return err
		}
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			return err
		}
		if err := s.Wait(ctx, s.Between(200*time.Millisecond, 2*time.Second)); err != nil {
			return err
		}
		return s.signalAgent(site, syscall.SIGCONT)
	}
	return s.Up(site)
}

// claimStep: the target claims, since the other site is lost, or cut off and its agent dead.
func claimStep(ctx context.Context, s *Stage, point string) error {
	gate := s.Gate()
	if err := s.Failpoint(s.Target, pauseAt(point, gate)); err != nil {
		return err
	}
	if _, err := s.Whole(ctx); err != nil {
		return err
	}
	cut := s.Rand.IntN(2) == 0
	if cut {
		s.Note("SIGKILL of the agent of %s", s.Other())
		s.Site(s.Other()).KillAgent()
		if err := s.CutLink(); err != nil {
			return err
		}
	} else if err := s.Kill(s.Other()); err != nil {
		return err
	}
	if err := s.Reached(ctx, gate); err != nil {
		return err
	}
	if cut { // from now on either may be the first
		if err := s.Up(s.Other()); err != nil {
			return err
		}
	}
	if err := do(ctx, func(ctx context.Context) error { return s.act(ctx, s.Target, gate) }, s.Resumes, now(s.HealLink)); err != nil {
		return err
	}
	return s.Up(s.Other())
}

// returnStep: the target is lost and comes back.
func returnStep(ctx context.Context, s *Stage, point string) error {
	gate := s.Gate()
	if err := do(ctx, func(context.Context) error { return s.Kill(s.Target) }, s.Resumes); err != nil {
		return err
	}
	s.Site(s.Target).AgentEnv("TWOK_FAILPOINTS=" + pauseAt(point, gate))
	return do(ctx, func(context.Context) error { return s.Up(s.Target) }, func(ctx context.Context) error { return s.Reached(ctx, gate) },
		func(ctx context.Context) error { return s.act(ctx, s.Target, gate) }, s.Resumes)
}

// tokenStep: the target's survivor makes the pair whole again; the target is the survivor.
func tokenStep(ctx context.Context, s *Stage, point string) error {
	gate := s.Gate()
	if err := do(ctx, func(context.Context) error { return s.Kill(s.Other()) }, s.Resumes, s.Confirmed); err != nil {
		return err
	}
	if err := s.Failpoint(s.Target, pauseAt(point, gate)); err != nil {
		return err
	}
	if err := do(ctx, func(context.Context) error { return s.Up(s.Other()) }, func(ctx context.Context) error { return s.Reached(ctx, gate) },
		func(ctx context.Context) error { return s.act(ctx, s.Target, gate) }); err != nil {
		return fmt.Errorf("%s: %w", point, err)
	}
	return s.Resumes(ctx)
}
