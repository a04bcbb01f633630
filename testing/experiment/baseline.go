package experiment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/internal/lab"
	"twok/testing/cluster"
	"twok/testing/network"
)

// baselines loses a leader, or the link, in what one could have instead of twok, and with it.
func baselines() Experiment {
	return Experiment{
		Name:       "baselines",
		About:      "the leader's site is killed and returns, or the link is cut: a bare pair, three members, --force-new-cluster with a wiped return, twok",
		Cases:      []string{"bare", "bare-cut-12s", "bare-cut-40s", "three", "force-new-cluster", "twok"},
		Namespaces: true,
		Programs:   []Program{Twok},
		Run: func(ctx context.Context, s *Session, n int) error {
			ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
			defer cancel()
			switch s.Case {
			case "twok":
				return s.baselineTwok(ctx)
			case "bare-cut-12s":
				return s.baselineCut(ctx, 12*time.Second)
			case "bare-cut-40s":
				return s.baselineCut(ctx, 40*time.Second)
			case "three":
				return s.baselineMembers(ctx, "a", "b", "c")
			}
			return s.baselineMembers(ctx, "a", "b")
		},
		Table: tableBaselines,
	}
}

const (
	away       = 15 * time.Second // from the kill of the leader's site to its start
	claimAfter = 3 * time.Second  // twok's, and the operator's
	fillKeys   = 2000             // there before, of
	fillSize   = 10_000           // bytes each
)

// baseline is what is common to all: what was acknowledged, and when.
type baseline struct {
	s      *Session
	l      *ledger
	values map[string]float64
	notes  map[string]string
	lost   time.Time // the fault
	bytes  func() (uint64, error)
	before uint64
}

// load fills the members and lets eight clients write, some 20 times a second each, at these.
func (s *Session) load(ctx context.Context, cls ...*clientv3.Client) (*baseline, error) {
	if err := fill(ctx, cls[0], "/fill/", fillKeys, fillSize); err != nil {
		return nil, err
	}
	x := &baseline{s: s, values: map[string]float64{}, notes: map[string]string{},
		l: &ledger{prefix: "/base/", size: 64, pause: 50 * time.Millisecond, wait: 250 * time.Millisecond, cl: cls}}
	x.l.start(ctx, 8)
	select {
	case <-ctx.Done():
	case <-time.After(3 * time.Second):
	}
	return x, nil
}

// first waits for a write that began after t, and notes the time since.
func (x *baseline) first(ctx context.Context, name string, t time.Time) error {
	at, err := x.l.waitFirst(ctx, t)
	if err == nil {
		x.values[name] = at.Sub(t).Seconds()
	}
	return err
}

// end stops the clients and looks for what was acknowledged at each member.
func (x *baseline) end(ctx context.Context, cls ...*clientv3.Client) error {
	acks := x.l.stop()
	x.values["acked"], x.values["lost"] = float64(len(acks)), 0
	for _, cl := range cls {
		have, err := keysOf(ctx, cl, x.l.prefix)
		if err != nil {
			return err
		}
		x.values["lost"] = max(x.values["lost"], float64(len(missing(acks, have))))
	}
	return nil
}

// back waits until the returned site's member is whole again and notes the time since t and the bytes on its link.
func (x *baseline) back(ctx context.Context, t time.Time, front, back *clientv3.Client, n int) error {
	at, err := redundant(ctx, front, back, n)
	if err != nil {
		return err
	}
	x.values["redundant"] = at.Sub(t).Seconds()
	after, err := x.bytes()
	x.values["bytes"] = float64(after - x.before)
	return err
}

// count makes both directions of a site's link what bytes counts.
func (x *baseline) count(site string, of func(string) (uint64, uint64, error)) (err error) {
	x.bytes = func() (uint64, error) {
		from, to, err := of(site)
		return from + to, err
	}
	x.before, err = x.bytes()
	return err
}

// baselineMembers: etcds alone. The leader's is killed and started again after away.
func (s *Session) baselineMembers(ctx context.Context, names ...string) (err error) {
	m, err := newMembers(ctx, s, names...)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, m.close()); err == nil {
			for _, name := range names {
				err = errors.Join(err, os.RemoveAll(filepath.Join(s.Dir, name, "data")), os.RemoveAll(filepath.Join(s.Dir, name, "data.replaced")))
			}
		}
	}()
	leader, err := m.leader(ctx)
	if err != nil {
		return err
	}
	var left []*clientv3.Client // those that survive: nobody's client uses the other one's link
	survivor := ""
	for _, name := range names {
		if name != leader {
			left, survivor = append(left, m.cl[name]), name
		}
	}
	x, err := s.load(ctx, left...)
	if err != nil {
		return err
	}
	defer x.l.stop()
	x.lost = time.Now()
	m.run[leader].kill()
	if s.Case == "force-new-cluster" {
		// The operator: is sure after claimAfter that the other site is lost; has everything at hand.
		if err := sleepUntil(ctx, x.lost.Add(claimAfter)); err != nil {
			return err
		}
		m.run[survivor].stop()
		if err := m.start(survivor, "new", names, "--force-new-cluster"); err != nil {
			return err
		}
	}
	if s.Case != "bare" {
		if err := x.first(ctx, "first_write", x.lost); err != nil {
			return err
		}
	}
	if err := sleepUntil(ctx, x.lost.Add(away)); err != nil {
		return err
	}
	if err := x.count(leader, m.net.Bytes); err != nil {
		return err
	}
	begin := time.Now()
	if s.Case == "force-new-cluster" {
		err = m.readd(ctx, leader, survivor)
	} else {
		err = m.start(leader, "new", names)
	}
	if err != nil {
		return err
	}
	if s.Case == "bare" {
		if err := x.first(ctx, "first_after_heal", begin); err != nil {
			return err
		}
		x.values["first_write"] = begin.Sub(x.lost).Seconds() + x.values["first_after_heal"]
	}
	if err := x.back(ctx, begin, m.cl[survivor], m.cl[leader], len(names)); err != nil {
		return err
	}
	if err := x.end(ctx, append(left, m.cl[leader])...); err != nil {
		return err
	}
	return s.Add(x.values, x.notes)
}

// readd brings a member back as etcd's documentation says: its old data aside, added as a learner, promoted.
func (m *members) readd(ctx context.Context, name, survivor string) error {
	if err := os.Rename(m.data(name), m.data(name)+".replaced"); err != nil {
		return err
	}
	var id uint64
	err := again(ctx, func(ctx context.Context) error {
		added, err := m.cl[survivor].MemberAddAsLearner(ctx, []string{m.peerURL(name)})
		if err == nil {
			id = added.Member.ID
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("add %s: %w", name, err)
	}
	if err := m.start(name, "existing", m.names); err != nil {
		return err
	}
	err = again(ctx, func(ctx context.Context) error {
		_, err := m.cl[survivor].MemberPromote(ctx, id)
		return err
	})
	if err != nil {
		return fmt.Errorf("promote %s: %w", name, err)
	}
	return nil
}

// again repeats f every 100 ms until it succeeds.
func again(ctx context.Context, f func(context.Context) error) error {
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := f(try)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func sleepUntil(ctx context.Context, t time.Time) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(t)):
		return nil
	}
}

// baselineCut: a pair alone, the link cut both ways for some time. Clients use both members.
func (s *Session) baselineCut(ctx context.Context, cut time.Duration) (err error) {
	m, err := newMembers(ctx, s, "a", "b")
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, m.close()); err == nil {
			err = errors.Join(os.RemoveAll(m.data("a")), os.RemoveAll(m.data("b")))
		}
	}()
	leader, err := m.leader(ctx)
	if err != nil {
		return err
	}
	x, err := s.load(ctx, m.cl["a"], m.cl["b"])
	if err != nil {
		return err
	}
	defer x.l.stop()
	x.lost = time.Now()
	if err := m.net.Cut(network.Both("a", "b", network.All)...); err != nil {
		return err
	}
	if err := sleepUntil(ctx, x.lost.Add(cut)); err != nil {
		return err
	}
	if err := m.net.Heal("a", "b"); err != nil {
		return err
	}
	healed := time.Now()
	if err := x.first(ctx, "first_after_heal", healed); err != nil {
		return err
	}
	x.values["first_write"] = healed.Sub(x.lost).Seconds() + x.values["first_after_heal"]
	now, err := m.leader(ctx)
	if err != nil {
		return err
	}
	x.notes["elected"] = "the follower"
	if now == leader {
		x.notes["elected"] = "the former leader"
	}
	at, err := redundant(ctx, m.cl["a"], m.cl["b"], 2)
	if err != nil {
		return err
	}
	x.values["redundant"] = at.Sub(healed).Seconds()
	for _, name := range m.names {
		ev, err := readEvents(m.log(name), healed)
		if err != nil {
			return err
		}
		ev.add(x.values)
	}
	x.notes["stale"] = "no"
	if f, ok := x.values["follows"]; ok && f < x.values["elected"] {
		x.notes["stale"] = "yes"
	}
	if err := x.end(ctx, m.cl["a"], m.cl["b"]); err != nil {
		return err
	}
	return s.Add(x.values, x.notes)
}

// baselineTwok: the same with agents.
func (s *Session) baselineTwok(ctx context.Context) error {
	return s.withPair(ctx, "supervise", false, []string{"--claim-after", claimAfter.String()}, func(c *cluster.Cluster, leader string) error {
		return s.overtaken(ctx, c, leader)
	})
}

func (s *Session) overtaken(ctx context.Context, c *cluster.Cluster, leader string) error {
	cls, err := dial(c.Site(lab.Other(leader)).ClientURL, c.Site(leader).ClientURL)
	if err != nil {
		return err
	}
	defer hangUp(cls)
	x, err := s.load(ctx, cls[0])
	if err != nil {
		return err
	}
	defer x.l.stop()
	x.lost = time.Now()
	if err := c.Site(leader).Kill(); err != nil {
		return err
	}
	if err := x.first(ctx, "first_write", x.lost); err != nil {
		return err
	}
	if err := sleepUntil(ctx, x.lost.Add(away)); err != nil {
		return err
	}
	if err := x.count(leader, c.Bytes); err != nil {
		return err
	}
	begin := time.Now()
	if err := c.Site(leader).Start(); err != nil {
		return err
	}
	if err := x.back(ctx, begin, cls[0], cls[1], 2); err != nil {
		return err
	}
	if _, err := c.WaitWhole(ctx, nil); err != nil {
		return err
	}
	x.values["whole"] = time.Since(begin).Seconds()
	if err := x.end(ctx, cls...); err != nil {
		return err
	}
	return s.Add(x.values, x.notes)
}

func tableBaselines(s Summary) string {
	var b strings.Builder
	b.WriteString("| | etcd | Runs | Fault → first write | Return or heal → first write | Return or heal → full redundancy | Bytes on the returned site's link until then | Acknowledged writes lost |\n|---|---|---|---|---|---|---|---|\n")
	for _, c := range s.Of("baselines") {
		v := c.Values
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %.0f of %.0f, in %d runs |\n", c.Case, c.Etcd, runs(c), seconds(v["first_write"]), seconds(v["first_after_heal"]),
			seconds(v["redundant"]), megabytes(v["bytes"]), v["lost"].Sum, v["acked"].Sum, v["lost"].NonZero)
	}
	b.WriteString("\n| After the heal | etcd | First message of an election from the other member | Peer stream anew | The former leader was followed once more | Elected | Who |\n|---|---|---|---|---|---|---|\n")
	for _, c := range s.Of("baselines") {
		if v := c.Values; len(c.Notes["elected"]) > 0 {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %d of %d | %s | %s |\n", c.Case, c.Etcd, seconds(v["heard"]), seconds(v["stream"]), c.Notes["stale"]["yes"], c.Runs, seconds(v["elected"]), tally(c.Notes["elected"]))
		}
	}
	return b.String()
}
