package fault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"twok/internal/lab"
)

// The named steps, as internal/failpoint and the packages that declare them have them. "@2" is the second time: the
// first swap of an agent that leads a whole pair is its commit mark, the first of one that is alone its confirmation.
const (
	claimSteps = `agent/preflight/before agent/preflight/after agent/stop/before agent/stop/after agent/read-record/before agent/read-record/after
		agent/read-data/before agent/read-data/after
		agent/swap/before@2 agent/swap/after@2 agent/append/before agent/append/after agent/release/before agent/release/after agent/sample/before agent/sample/after
		wal/append/begin wal/append/hardstate wal/append/entries wal/append/commit wal/append/synced wal/repair/copied wal/repair/cut`
	returnSteps = `agent/read-record/before agent/read-record/after agent/look-at-list/before agent/look-at-list/after
		agent/remove-learner/before agent/remove-learner/after agent/add-learner/before agent/add-learner/after agent/stop/before agent/stop/after
		agent/read-data/before agent/read-data/after agent/rewrite/before agent/rewrite/after agent/release/before agent/release/after
		agent/compare/before agent/compare/after agent/promote/before agent/promote/after
		wal/rewrite/begin wal/rewrite/segment wal/rewrite/staged wal/rewrite/exchanged wal/rewrite/aside
		wal/create/created rejoin/reset/prepared rejoin/reset/exchanged rejoin/reset/aside`
	tokenSteps = `agent/read-record/before agent/read-record/after agent/write-token/before agent/write-token/after agent/tidy/before agent/tidy/after
		agent/swap/before@2 agent/swap/after@2`
	wakeSteps = `agent/restart/before agent/restart/after`
)

// elsewhere are the steps of the program at which no scenario stands, and why.
var elsewhere = map[string]string{
	"wal/staged/": "the append of a forced claim, which a person orders: TestForcedKilled and TestForcedRemovedKilled of testing/e2e",
}

// steps are scenarios that stop an agent at a step and do something to it there. What, follows from the seed.
func steps() (all []Fault) {
	for _, part := range []struct {
		name, list string
		run        func(ctx context.Context, s *Stage, point string) error
	}{{"claim", claimSteps, claimStep}, {"return", returnSteps, returnStep}, {"token", tokenSteps, tokenStep}, {"wake", wakeSteps, wakeStep}} {
		for point := range strings.FieldsSeq(part.list) {
			name, _, _ := strings.Cut(strings.TrimPrefix(point, "agent/"), "@")
			f := Fault{
				Name: "step-" + part.name + "-" + strings.ReplaceAll(name, "/", "-"), Roles: both, Claims: 1, Needs: Needs{Failpoints: true}, Rows: []string{"F19"},
				About: "of " + part.name + ", at " + point + ": the agent, its etcd or the site is killed, ended or frozen",
				Run:   func(ctx context.Context, s *Stage) error { return part.run(ctx, s, point) },
			}
			switch {
			case part.name == "wake": // by the lower member ID, whoever led; nobody can claim
				f.Roles, f.Claims, f.Needs.Namespaces = []string{Pair}, 0, true
			case part.name == "return" && strings.Contains(point, "learner"):
				f.Rows = append(f.Rows, "F6", "F7")
			case part.name == "return" && fromNothing(point):
				f.Rows = append(f.Rows, "F20")
			}
			all = append(all, f)
		}
	}
	return all
}

// fromNothing says that a return comes to the step only if its log cannot be kept.
func fromNothing(point string) bool {
	return strings.HasPrefix(point, "rejoin/reset/") || strings.HasPrefix(point, "wal/create/")
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

// What can happen at a step, to an agent that stands there.
var deeds = [...]string{
	"SIGKILL of the agent", "SIGKILL of everything", "SIGKILL of the etcd, then of the agent", "SIGTERM to the agent", "the agent is frozen for a while",
	"SIGTERM to the etcd", "the etcd is frozen for a while", "agent and etcd are frozen for a while", "SIGKILL of the etcd",
}

const (
	killAgent = iota
	killSite
	killEtcdAndAgent
	termAgent
	freezeAgent
	termEtcd
	freezeEtcd
	freezeSite
	killEtcd
)

// instead is what happens at a step at which no etcd runs.
var instead = map[int]int{termEtcd: termAgent, freezeEtcd: freezeAgent, freezeSite: freezeAgent, killEtcd: killAgent}

// act does to the site, whose agent stands at a step, one of the things that can happen then. Afterwards everything there may run.
func (s *Stage) act(ctx context.Context, site, gate string) error {
	x := s.Site(site)
	x.AgentEnv() // for the next start
	deed := s.Rand.IntN(len(deeds))
	if deed >= termEtcd {
		switch pid, err := x.EtcdPID(); {
		case err != nil:
			return err
		case pid == 0:
			s.Note("at the step, at %s, no etcd runs: not %s", site, deeds[deed])
			deed = instead[deed]
		}
	}
	s.Note("at the step, at %s: %s", site, deeds[deed])
	open := func(context.Context) error { return os.WriteFile(gate, nil, 0o600) }
	// An etcd that Raft or its agent ends may be gone in this moment.
	etcd := func(sig syscall.Signal) func(context.Context) error {
		return func(context.Context) error {
			err := s.signalEtcd(site, sig)
			if errors.Is(err, syscall.ESRCH) {
				s.Note("it has just ended")
				err = nil
			}
			return err
		}
	}
	agent := func(sig syscall.Signal) func(context.Context) error {
		return func(context.Context) error { return s.signalAgent(site, sig) }
	}
	soon := func(ctx context.Context) error { return s.Wait(ctx, s.Between(0, 500*time.Millisecond)) }
	long := func(ctx context.Context) error {
		return s.Wait(ctx, s.Between(200*time.Millisecond, 2*time.Second))
	}
	die := func(context.Context) error { x.KillAgent(); return nil }
	err := map[int]func() error{
		killAgent:        func() error { return do(ctx, die) },
		killSite:         func() error { return x.Kill() },
		killEtcdAndAgent: func() error { return do(ctx, now(x.KillEtcd), soon, die) },
		termAgent: func() error {
			return do(ctx, agent(syscall.SIGTERM), open, func(context.Context) error { x.StopAgent(); return nil })
		},
		freezeAgent: func() error { return do(ctx, agent(syscall.SIGSTOP), open, long, agent(syscall.SIGCONT)) },
		termEtcd:    func() error { return do(ctx, etcd(syscall.SIGTERM), soon, open) },
		freezeEtcd:  func() error { return do(ctx, etcd(syscall.SIGSTOP), open, long, etcd(syscall.SIGCONT)) },
		freezeSite: func() error {
			return do(ctx, agent(syscall.SIGSTOP), etcd(syscall.SIGSTOP), open, long, etcd(syscall.SIGCONT), agent(syscall.SIGCONT))
		},
		killEtcd: func() error { return do(ctx, etcd(syscall.SIGKILL), soon, open) },
	}[deed]()
	if err != nil {
		return err
	}
	return s.Up(site)
}

// dies waits until a site's agent has died at its failpoint.
func (s *Stage) dies(ctx context.Context, site string) error {
	return s.Until(ctx, "the agent dies at its step", func(context.Context) error {
		if s.Site(site).AgentAlive() {
			return errors.New("it lives")
		}
		return nil
	})
}

// claimStep: the target claims, since the other site is lost, or cut off and its agent dead.
func claimStep(ctx context.Context, s *Stage, point string) error {
	gate := s.Gate()
	spec, frozen, late := pauseAt(point, gate), "", false
	var tail torn
	switch {
	case strings.HasPrefix(point, "wal/repair/"): // an etcd that is frozen writes no more before its agent kills it, and mends nothing
		frozen = s.Gate()
		spec = pauseAt("agent/stop/before", frozen) + ";" + spec
	case strings.HasPrefix(point, "agent/read-record/"): // read when the loss was seen, or under the locks; before, every look is one
		late = true
		spec += fmt.Sprintf("@%d", 1+s.Rand.IntN(2))
	}
	if !late {
		if err := s.Failpoint(s.Target, spec); err != nil {
			return err
		}
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
	if late {
		if err := s.Failpoint(s.Target, spec); err != nil {
			return err
		}
	}
	if frozen != "" {
		if err := do(ctx, func(ctx context.Context) error { return s.Reached(ctx, frozen) }, func(context.Context) error {
			return s.signalEtcd(s.Target, syscall.SIGSTOP)
		}, func(context.Context) (err error) {
			s.Note("the last write in the WAL of %s is torn", s.Target)
			tail, err = tear(filepath.Join(s.Site(s.Target).DataDir, "member", "wal"))
			return err
		}, now(func() error { return os.WriteFile(frozen, nil, 0o600) })); err != nil {
			return err
		}
	}
	if err := s.Reached(ctx, gate); err != nil {
		return err
	}
	if tail.path != "" {
		if err := tail.repaired(point == "wal/repair/cut"); err != nil {
			return err
		}
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

// returnStep: the target is lost and comes back; with a learner that an attempt before has left, or with a damaged log, where the step needs that.
func returnStep(ctx context.Context, s *Stage, point string) error {
	gate := s.Gate()
	if err := do(ctx, func(context.Context) error { return s.Kill(s.Target) }, s.Resumes); err != nil {
		return err
	}
	x := s.Site(s.Target)
	switch {
	case strings.HasPrefix(point, "agent/remove-learner/"):
		x.AgentEnv("TWOK_FAILPOINTS=agent/add-learner/after=kill")
		if err := do(ctx, func(context.Context) error { return s.Up(s.Target) }, func(ctx context.Context) error { return s.dies(ctx, s.Target) }); err != nil {
			return err
		}
		s.Note("the agent of %s has left a learner", s.Target)
	case fromNothing(point):
		before, err := spoil(filepath.Join(x.DataDir, "member", "wal"))
		if err != nil {
			return err
		}
		s.Note("the WAL of %s is damaged", s.Target)
		s.AtEnd(func(context.Context) error { return setAside(x.DataDir, before) })
	}
	x.AgentEnv("TWOK_FAILPOINTS=" + pauseAt(point, gate))
	return do(ctx, func(context.Context) error { return s.Up(s.Target) }, func(ctx context.Context) error { return s.Reached(ctx, gate) },
		func(ctx context.Context) error { return s.act(ctx, s.Target, gate) }, s.Resumes)
}

// setAside is an error if no directory beside the member's has these segments: one that was set aside, or that Reset was about to set
// aside when it was killed and gets its name when the pair is whole.
func setAside(dataDir string, segments map[string][]byte) error {
	dirs, err := filepath.Glob(filepath.Join(dataDir, "member.*", "wal"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		same := len(segments) > 0
		for name, want := range segments {
			got, err := os.ReadFile(filepath.Join(dir, name))
			same = same && err == nil && bytes.Equal(got, want)
		}
		if same {
			return nil
		}
	}
	return fmt.Errorf("the damaged log is in none of the directories that were set aside: %q", dirs)
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

// wakeStep: a cut that nobody can claim, so long that TCP keeps the members apart when it is over: the agent of the lower member ID restarts its etcd.
func wakeStep(ctx context.Context, s *Stage, point string) error {
	var lowest uint64
	for _, site := range lab.Sites {
		st, err := s.Site(site).Status(ctx)
		if err != nil {
			return err
		}
		if id := st.Header.MemberId; lowest == 0 || id < lowest {
			lowest, s.Target = id, site
		}
	}
	// TCP waits 0.2 s before it sends again, and twice as long each time: a cut that ends after 6.2, 12.6 or 25.4 s leaves it a wait as long.
	for _, cut := range []time.Duration{7 * time.Second, 13 * time.Second, 26 * time.Second} {
		gate := s.Gate()
		if err := s.Failpoint(s.Target, pauseAt(point, gate)); err != nil {
			return err
		}
		if _, err := s.Whole(ctx); err != nil {
			return err
		}
		if err := do(ctx, func(context.Context) error { return s.CutArbiter(lab.Sites[:]...) }, now(s.CutLink),
			func(ctx context.Context) error { return s.Silence(ctx, "cut apart, without the arbiter", cut) }, now(s.HealLink)); err != nil {
			return err
		}
		healed := s.Rec.Now()
		stands := false
		err := s.Until(ctx, "wait for the step, or for a write", func(context.Context) error {
			_, err := os.Stat(gate + ".reached")
			stands = err == nil
			if stands || s.wrote(lab.Sites[0], healed)+s.wrote(lab.Sites[1], healed) > 0 {
				return nil
			}
			return errors.New("neither")
		})
		if err != nil {
			return err
		}
		if stands {
			s.Note("%s stands at the wake, after a cut of %s", s.Target, cut)
			return do(ctx, func(ctx context.Context) error { return s.act(ctx, s.Target, gate) }, s.Resumes, func(context.Context) error { return s.HealArbiter(lab.Sites[:]...) })
		}
		s.Note("the members came together by themselves")
		if err := s.HealArbiter(lab.Sites[:]...); err != nil {
			return err
		}
	}
	return errors.New("the members always came together by themselves: this showed nothing")
}
