package experiment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/internal/lab"
	"twok/testing/cluster"
)

// steadyState writes to a pair with its agents and without them, in turn.
func steadyState() Experiment {
	return Experiment{
		Name:       "steady-state",
		About:      "write throughput and latency with and without the agents, in pairs; clients of the leader",
		Cases:      []string{"1", "32"},
		Namespaces: true,
		Batch:      5,
		Programs:   []Program{Twok},
		Run:        runSteady,
		Table:      tableSteady,
	}
}

const (
	steadyWindow = 20 * time.Second
	steadyWarm   = 2 * time.Second // before each window, not counted
	steadySize   = 256             // bytes of a value
	steadyKeys   = 1000            // of each client, in turn
)

// steadySides are the two halves of a run.
var steadySides = []string{"with", "without"}

func runSteady(ctx context.Context, s *Session, n int) error {
	clients, err := strconv.Atoi(s.Case)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 8*time.Minute)
	defer cancel()
	// Somebody else runs etcd, so that agents come and go beside the same two processes.
	return s.withPair(ctx, "signal", false, agentDefaults, func(c *cluster.Cluster, leader string) error {
		return s.steadyPairs(ctx, c, leader, clients, n)
	})
}

func (s *Session) steadyPairs(ctx context.Context, c *cluster.Cluster, leader string, clients, n int) error {
	cls, err := dial(c.Site(leader).ClientURL)
	if err != nil {
		return err
	}
	defer hangUp(cls)
	for i := range n {
		sides := slices.Clone(steadySides)
		if i%2 == 1 { // so that what drifts is on neither side
			slices.Reverse(sides)
		}
		got := map[string]map[string]float64{}
		for _, side := range sides {
			if got[side], err = steadyHalf(ctx, c, cls[0], leader, clients, side == "with"); err != nil {
				return fmt.Errorf("pair %d, %s: %w", i+1, side, err)
			}
		}
		v, err := paired(got["with"], got["without"])
		if err != nil {
			return err
		}
		if err := s.Add(v, map[string]string{"first": sides[0]}); err != nil {
			return err
		}
	}
	return nil
}

// steadyHalf starts or stops the agents and measures a window.
func steadyHalf(ctx context.Context, c *cluster.Cluster, cl *clientv3.Client, leader string, clients int, agents bool) (map[string]float64, error) {
	for _, name := range lab.Sites {
		if !agents {
			c.Site(name).StopAgent()
		} else if err := c.Site(name).StartAgent(); err != nil {
			return nil, err
		}
	}
	if agents {
		if _, err := c.WaitWhole(ctx, nil); err != nil {
			return nil, err
		}
	}
	// What the last window left is dropped, so that each one finds as much.
	now, err := cl.Get(ctx, "/")
	if err != nil {
		return nil, err
	}
	if _, err := cl.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		return nil, fmt.Errorf("compact at %d: %w", now.Header.Revision, err)
	}
	var before, after usage
	val := strings.Repeat("s", steadySize)
	put := func(ctx context.Context, client, seq int) error {
		_, err := cl.Put(ctx, fmt.Sprintf("/steady/%d/%d", client, seq%steadyKeys), val)
		return err
	}
	took, err := stopwatch(ctx, put, clients, steadyWarm, steadyWindow, func() (err error) { before, err = usageOf(c); return err })
	if err != nil {
		return nil, err
	}
	if after, err = usageOf(c); err != nil {
		return nil, err
	}
	v, err := latencies(took, steadyWindow)
	if err != nil {
		return nil, err
	}
	after.add(v, before, leader)
	if now, err := c.Leader(ctx); err != nil || now != leader {
		return nil, errors.Join(err, fmt.Errorf("%s led, and %q leads now", leader, now))
	}
	return v, nil
}

// stopwatch lets clients write, each one write at a time, and returns the times of the writes that began and ended in the window
// after warm; begin is called at its beginning. A write that fails is an error: nothing fails here.
func stopwatch(ctx context.Context, put func(ctx context.Context, client, seq int) error, clients int, warm, window time.Duration, begin func() error) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, warm+window+30*time.Second)
	defer cancel()
	start := time.Now().Add(warm)
	end := start.Add(window)
	out := make([][]time.Duration, clients)
	errs := make([]error, clients+1)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for seq := 0; ; seq++ {
				t := time.Now()
				if t.After(end) {
					return
				}
				if err := put(ctx, i, seq); err != nil {
					errs[i] = err
					return
				}
				if now := time.Now(); !t.Before(start) && !now.After(end) {
					out[i] = append(out[i], now.Sub(t))
				}
			}
		})
	}
	time.Sleep(time.Until(start))
	errs[clients] = begin()
	wg.Wait()
	return slices.Concat(out...), errors.Join(errs...)
}

// latencies are the rate and the distribution of the times of writes in a window; seconds.
func latencies(took []time.Duration, window time.Duration) (map[string]float64, error) {
	if len(took) == 0 {
		return nil, errors.New("no write was made in the window")
	}
	s := make([]float64, len(took))
	for i, d := range took {
		s[i] = d.Seconds()
	}
	d := Distribution(s)
	return map[string]float64{"rate": float64(d.N) / window.Seconds(), "p50": d.P50, "p90": d.P90, "p99": d.P99, "max": d.Max}, nil
}

// paired is both halves, each value under its side's name, and with each one's ratio, with by without, of what both have.
func paired(with, without map[string]float64) (map[string]float64, error) {
	out := map[string]float64{}
	for name, x := range with {
		out["with_"+name] = x
		if y, ok := without[name]; ok {
			if y == 0 {
				return nil, fmt.Errorf("%s is zero without agents", name)
			}
			out["ratio_"+name] = x / y
		}
	}
	for name, x := range without {
		out["without_"+name] = x
	}
	return out, nil
}

// usage is what the processes of a pair used by a moment.
type usage struct {
	at           time.Time
	etcd, agents map[string]lab.Usage
}

func usageOf(c *cluster.Cluster) (usage, error) {
	u := usage{at: time.Now(), etcd: map[string]lab.Usage{}, agents: map[string]lab.Usage{}}
	for _, name := range lab.Sites {
		pid, err := c.Site(name).EtcdPID()
		if err != nil {
			return u, err
		}
		if u.etcd[name], err = lab.UsageOf(pid); err != nil {
			return u, err
		}
		if pid := c.Site(name).AgentPID(); pid != 0 {
			if u.agents[name], err = lab.UsageOf(pid); err != nil {
				return u, err
			}
		}
	}
	return u, nil
}

// add is the use since before: CPU in parts of one, memory in bytes at the end.
func (u usage) add(v map[string]float64, before usage, leader string) {
	for _, p := range []struct {
		what        string
		now, before map[string]lab.Usage
	}{{"etcd", u.etcd, before.etcd}, {"agent", u.agents, before.agents}} {
		for site, x := range p.now {
			name := p.what + "_follower"
			if site == leader {
				name = p.what + "_leader"
			}
			v[name+"_cpu"] = (x.CPU - p.before[site].CPU).Seconds() / u.at.Sub(before.at).Seconds()
			v[name+"_rss"], v[name+"_private"] = float64(x.RSS), float64(x.RSSAnon)
		}
	}
}

func tableSteady(s Summary) string {
	var b strings.Builder
	mid := func(d Dist, unit float64, format string) string {
		if d.N == 0 {
			return "–"
		}
		return fmt.Sprintf(format+" ("+format+"–"+format+")", d.P50*unit, d.P25*unit, d.P75*unit)
	}
	b.WriteString("| Clients | etcd | Pairs | | with agents | without | ratio: median (quartiles), least, most |\n|---|---|---|---|---|---|---|\n")
	for _, c := range s.Of("steady-state") {
		for _, row := range []struct {
			name, text, format string
			unit               float64
		}{{"rate", "writes/s", "%.0f", 1}, {"p50", "median, ms", "%.2f", 1000}, {"p90", "90 of 100, ms", "%.2f", 1000}, {"p99", "99 of 100, ms", "%.2f", 1000}, {"etcd_leader_cpu", "etcd's CPU at the leader, %", "%.1f", 100}} {
			r := c.Values["ratio_"+row.name]
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s, %.3f, %.3f |\n", c.Case, c.Etcd, runs(c), row.text,
				mid(c.Values["with_"+row.name], row.unit, row.format), mid(c.Values["without_"+row.name], row.unit, row.format), mid(r, 1, "%.3f"), r.Min, r.Max)
		}
	}
	b.WriteString("\n| Clients | etcd | Agent beside the | CPU, % of one | RSS, MB | of it private, MB |\n|---|---|---|---|---|---|\n")
	for _, c := range s.Of("steady-state") {
		for _, who := range []string{"leader", "follower"} {
			v := func(name string) Dist { return c.Values["with_agent_"+who+"_"+name] }
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", c.Case, c.Etcd, who, mid(v("cpu"), 100, "%.1f"), mid(v("rss"), 1e-6, "%.1f"), mid(v("private"), 1e-6, "%.1f"))
		}
	}
	return b.String()
}
