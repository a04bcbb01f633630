package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/arbiter"
	"twok/internal/lab"
	"twok/testing/cluster"
	"twok/testing/history"
	"twok/testing/network"
)

// Roles of the site that a fault is aimed at, by who leads when it begins.
const (
	Leader   = "leader"
	Follower = "follower"
	Pair     = "pair" // it is aimed at neither, or at both
)

// Stage is where a script plays.
type Stage struct {
	*cluster.Cluster
	Rec  *history.Recorder
	Rand *rand.Rand
	// Target is the site that the fault is aimed at, Leader the one that leads as it begins.
	Target, Leader string
	// Note takes down a moment of the run.
	Note func(format string, args ...any)

	atEnd   []func(context.Context) error
	refused string
}

// Other is the site that is not the target.
func (s *Stage) Other() string { return lab.Other(s.Target) }

// Refused notes that the store was refused by its probe. The report says so.
func (s *Stage) Refused(format string, args ...any) {
	s.refused = fmt.Sprintf(format, args...)
	s.Note("refused by its probe: %s", s.refused)
}

// RefusedAs is what Refused was told, empty if it was not.
func (s *Stage) RefusedAs() string { return s.refused }

// AtEnd runs f when the pair is whole again, before anything is checked.
func (s *Stage) AtEnd(f func(context.Context) error) { s.atEnd = append(s.atEnd, f) }

// Ended runs what AtEnd was given.
func (s *Stage) Ended(ctx context.Context) error {
	for _, f := range s.atEnd {
		if err := f(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Writes waits for n acknowledgements of writes that begin from now on, at any site.
func (s *Stage) Writes(ctx context.Context, n int) error { return s.WritesAt(ctx, "", n) }

// WritesAt is Writes at one site.
func (s *Stage) WritesAt(ctx context.Context, site string, n int) error {
	since := s.Rec.Now()
	for {
		got, more := s.Rec.Count(func(o *history.Op) bool {
			return o.Call > since && o.Wrote() && (site == "" || o.Site == site)
		})
		if got >= n {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d writes were acknowledged: %w", got, n, ctx.Err())
		}
	}
}

// wrote is how many writes that began since then were acknowledged at a site.
func (s *Stage) wrote(site string, since int64) int {
	n, _ := s.Rec.Count(func(o *history.Op) bool { return o.Call > since && o.Wrote() && o.Site == site })
	return n
}

// Resumes waits until writes are acknowledged again, and for some more of them.
func (s *Stage) Resumes(ctx context.Context) error {
	if err := s.Writes(ctx, 1); err != nil {
		return fmt.Errorf("wait for the first write: %w", err)
	}
	s.Note("writes are acknowledged again")
	return s.Writes(ctx, 80)
}

// tries is how many writes must have been tried in a silence.
const tries = 5

// Silence waits for d, for longer than it takes any agent to claim, and until some writes have been tried. One that began in it and was
// acknowledged is an error: nobody may write.
func (s *Stage) Silence(ctx context.Context, what string, d time.Duration) error {
	return s.silence(ctx, what, longer(d, s.ClaimAfter()))
}

// longer is d, or what it takes any agent to claim, with something over: claim-after, and a quarter of it for the former leader's head start.
func longer(d, claimAfter time.Duration) time.Duration { return max(d, claimAfter*3/2) }

func (s *Stage) silence(ctx context.Context, what string, d time.Duration) error {
	since := s.Rec.Now()
	if err := s.Wait(ctx, d); err != nil {
		return err
	}
	for {
		tried := 0
		n, more := s.Rec.Count(func(o *history.Op) bool {
			if o.Call > since && len(o.Writes) > 0 && o.Return > 0 {
				tried++
			}
			return o.Call > since && o.Wrote()
		})
		if n > 0 {
			return fmt.Errorf("%s: %d writes were acknowledged, and nobody may write", what, n)
		}
		if tried >= tries {
			s.Note("%s: nobody writes, %d tried", what, tried)
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("%s: only %d writes were tried: %w", what, tried, ctx.Err())
		}
	}
}

// Wait waits for d.
func (s *Stage) Wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// Between is a random time.
func (s *Stage) Between(from, to time.Duration) time.Duration {
	return from + time.Duration(s.Rand.Int64N(int64(to-from)))
}

// Whole waits until the pair is whole.
func (s *Stage) Whole(ctx context.Context) (arbiter.Record, error) {
	rec, err := s.WaitWhole(ctx, nil)
	if err != nil {
		return rec, fmt.Errorf("wait until the pair is whole: %w", err)
	}
	s.Note("whole at generation %d", rec.Generation)
	return rec, nil
}

// Until waits for f to return nil.
func (s *Stage) Until(ctx context.Context, what string, f func(context.Context) error) error {
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w", what, ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Confirmed waits until the survivor's first confirmation is in the record (P10).
func (s *Stage) Confirmed(ctx context.Context) error {
	return s.Until(ctx, "wait for the confirmation", func(ctx context.Context) error {
		rec, err := s.Record(ctx)
		if err == nil && rec.Confirmed.Index == 0 {
			err = errors.New("the record holds none")
		}
		return err
	})
}

// Survives says whether the record names that site.
func (s *Stage) Survives(ctx context.Context, site string) error {
	rec, err := s.Record(ctx)
	if err == nil && rec.Survivor.Name != site {
		err = fmt.Errorf("the record names %q", rec.Survivor.Name)
	}
	if err != nil {
		return fmt.Errorf("only %s can survive: %w", site, err)
	}
	return nil
}

// CutLink cuts the members apart in both directions, HealLink undoes every cut between them.
func (s *Stage) CutLink() error {
	s.Note("cut between the members")
	return s.Cut(network.Both("a", "b", network.All)...)
}

// HealLink undoes CutLink.
func (s *Stage) HealLink() error {
	s.Note("heal between the members")
	return s.Heal("a", "b")
}

// HealAll undoes every cut.
func (s *Stage) HealAll() error {
	s.Note("heal everything")
	return s.Cluster.HealAll()
}

// CutArbiter cuts the sites from the arbiter.
func (s *Stage) CutArbiter(sites ...string) error {
	s.Note("cut between %s and the arbiter", strings.Join(sites, ", "))
	var rules []network.Rule
	for _, site := range sites {
		rules = append(rules, network.Both(site, lab.ArbiterSite, network.All)...)
	}
	return s.Cut(rules...)
}

// HealArbiter undoes CutArbiter.
func (s *Stage) HealArbiter(sites ...string) error {
	s.Note("heal between %s and the arbiter", strings.Join(sites, ", "))
	for _, site := range sites {
		if err := s.Heal(site, lab.ArbiterSite); err != nil {
			return err
		}
	}
	return nil
}

// Kill ends everything of a site at once.
func (s *Stage) Kill(site string) error {
	s.Note("SIGKILL of everything at %s", site)
	return s.Site(site).Kill()
}

// Up starts what does not run at a site.
func (s *Stage) Up(site string) error {
	s.Note("start %s", site)
	return s.Site(site).Start()
}

// Failpoint restarts a site's agent with a specification for its failpoints; empty: none. etcd goes on.
func (s *Stage) Failpoint(site, spec string) error {
	x := s.Site(site)
	x.KillAgent()
	x.AgentEnv("TWOK_FAILPOINTS=" + spec)
	return x.StartAgent()
}

// Reached waits until an agent stands at the failpoint that this gate belongs to.
func (s *Stage) Reached(ctx context.Context, gate string) error {
	return s.Until(ctx, "wait for the step", func(context.Context) error {
		_, err := os.Stat(gate + ".reached")
		return err
	})
}

// Gate is a fresh name for a failpoint's file.
func (s *Stage) Gate() string {
	return filepath.Join(s.Options.Dir, fmt.Sprintf("gate-%d", s.Rand.Uint64()))
}

// Client calls f with a client of one member.
func (s *Stage) Client(site string, f func(*clientv3.Client) error) error {
	cl, err := s.Site(site).Client()
	if err != nil {
		return err
	}
	defer cl.Close()
	return f(cl)
}
