package experiment

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"twok/internal/lab"
	"twok/testing/cluster"
	"twok/testing/network"
)

// returnCost lets a member come back after a cut, and counts what crosses the link for it.
func returnCost() Experiment {
	return Experiment{
		Name:       "return-cost",
		About:      "bytes and time of a return, by the size of the database, the writes that were missed, and whether the disk was replaced",
		Cases:      returnCases(),
		Namespaces: true,
		Batch:      3,
		Programs:   []Program{Twok},
		Run:        runReturn,
		Table:      tableReturn,
	}
}

var (
	returnSizes  = []int{1, 50, 500} // of the database, MB
	returnMissed = []int{0, 1000, 20_000}
	returnDisks  = []string{"kept", "wiped"}
)

// returnCases are SIZE-MISSED-DISK.
func returnCases() (out []string) {
	for _, size := range returnSizes {
		for _, missed := range returnMissed {
			for _, disk := range returnDisks {
				out = append(out, fmt.Sprintf("%dMB-%d-%s", size, missed, disk))
			}
		}
	}
	return out
}

type returnCase struct {
	size, missed int
	wiped        bool
}

func parseReturn(name string) (c returnCase, err error) {
	f := strings.Split(name, "-")
	if len(f) != 3 || !slices.Contains(returnDisks, f[2]) {
		return c, fmt.Errorf("case %q is not SIZE-MISSED-DISK", name)
	}
	if c.size, err = strconv.Atoi(strings.TrimSuffix(f[0], "MB")); err == nil {
		c.missed, err = strconv.Atoi(f[1])
	}
	c.wiped = f[2] == "wiped"
	return c, err
}

// snapshotCount is after how many entries etcd's release line compacts its Raft log, by default.
var snapshotCount = map[string]int{"3.5": 100_000, "3.6": 10_000, "3.7": 10_000}

// agentDefaults undo what testing/cluster sets for its faults, but for the hold-down: one loss follows another here, too.
var agentDefaults = []string{"--min-run", "30s", "--record-interval", "1m"}

const (
	writeSize    = 100 // bytes of a missed write
	writeClients = 64
)

func runReturn(ctx context.Context, s *Session, n int) error {
	rc, err := parseReturn(s.Case)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 8*time.Minute)
	defer cancel()
	if err := cluster.Room(s.Dir, int64(rc.size)*8e6+2e9); err != nil {
		return fmt.Errorf("%w; choose another --out", err)
	}
	flags := append([]string{"--claim-after", claimAfter.String()}, agentDefaults...)
	return s.withPair(ctx, "supervise", true, flags, func(c *cluster.Cluster, leader string) error { return s.returns(ctx, c, leader, rc, n) })
}

func (s *Session) returns(ctx context.Context, c *cluster.Cluster, leader string, rc returnCase, n int) error {
	cls, err := dial(c.Site(leader).ClientURL)
	if err != nil {
		return err
	}
	defer hangUp(cls)
	if err := fill(ctx, cls[0], "/fill/", rc.size*100, 10_000); err != nil {
		return err
	}
	// As in a pair that has lived for a while, the log does not begin with the first entry.
	if err := writes(ctx, cls[0], "/age/", snapshotCount[s.Version]+1000, 100); err != nil {
		return err
	}
	for i := range n {
		if err := s.returnOnce(ctx, c, rc, i); err != nil {
			return err
		}
	}
	return nil
}

// writes puts n values, one a write, to so many keys in turn.
func writes(ctx context.Context, cl *clientv3.Client, prefix string, n, keys int) error {
	var next atomic.Int64
	val := strings.Repeat("w", writeSize)
	g, ctx := errgroup.WithContext(ctx)
	for range writeClients {
		g.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return nil
				}
				if _, err := cl.Put(ctx, fmt.Sprintf("%s%08d", prefix, i%keys), val); err != nil {
					return fmt.Errorf("write %s: %w", prefix, err)
				}
			}
		})
	}
	return g.Wait()
}

// returnOnce cuts the link, has the survivor write, heals the link and waits until the pair is whole.
func (s *Session) returnOnce(ctx context.Context, c *cluster.Cluster, rc returnCase, i int) error {
	leader, err := c.Leader(ctx)
	if err != nil {
		return err
	}
	if err := c.Cut(network.Both("a", "b", network.All)...); err != nil {
		return err
	}
	survivor, err := survivorOf(ctx, c, leader)
	if err != nil {
		return err
	}
	loser := c.Site(lab.Other(survivor))
	cls, err := dial(c.Site(survivor).ClientURL, loser.ClientURL)
	if err != nil {
		return err
	}
	defer hangUp(cls)
	if err := writes(ctx, cls[0], fmt.Sprintf("/missed%d/", i), rc.missed, max(1, rc.missed)); err != nil {
		return err
	}
	if rc.wiped {
		if err := errors.Join(loser.Kill(), os.RemoveAll(loser.DataDir), loser.Start()); err != nil {
			return err
		}
	}
	// The loser's agent knows by now from the arbiter, or it never will before the heal.
	if err := sleepUntil(ctx, time.Now().Add(5*time.Second)); err != nil {
		return err
	}
	if err := c.Count(); err != nil {
		return err
	}
	from, to, err := c.Bytes(loser.Name)
	if err != nil {
		return err
	}
	if err := c.Heal("a", "b"); err != nil {
		return err
	}
	healed := time.Now()
	if _, err := c.WaitWhole(ctx, nil); err != nil {
		return err
	}
	v := map[string]float64{"whole": time.Since(healed).Seconds()}
	from2, to2, err := c.Bytes(loser.Name)
	if err != nil {
		return err
	}
	v["link_bytes"] = float64(from2 - from + to2 - to)
	for name, way := range map[string][2]string{"to_loser": {survivor, loser.Name}, "from_loser": {loser.Name, survivor}} {
		n, err := c.Crossed(way[0], way[1])
		if err != nil {
			return err
		}
		v[name] = float64(n)
	}
	v["bytes"] = v["to_loser"] + v["from_loser"]
	st, err := c.Site(survivor).Status(ctx)
	if err != nil {
		return err
	}
	v["db"] = float64(st.DbSize)
	if err := sameCount(ctx, cls[0], cls[1]); err != nil {
		return err
	}
	notes, err := wayBack(loser.AgentLog, loser.Trace, healed)
	if err != nil {
		return err
	}
	return s.Add(v, notes)
}

// survivorOf waits until a site leads alone and its member answers.
func survivorOf(ctx context.Context, c *cluster.Cluster, first string) (string, error) {
	for {
		for _, name := range []string{first, lab.Other(first)} {
			if h, err := c.Site(name).Health(ctx); err == nil && h.Role == "alone" {
				return name, c.Site(name).WaitServing(ctx)
			}
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("wait for a survivor: %w", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// sameCount compares how many keys the returned member's own data have with a linearizable read.
func sameCount(ctx context.Context, front, back *clientv3.Client) error {
	want, err := front.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	got, err := back.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly(), clientv3.WithSerializable(), clientv3.WithRev(want.Header.Revision))
	if err != nil {
		return err
	}
	if got.Count != want.Count {
		return fmt.Errorf("the returned member has %d keys of %d", got.Count, want.Count)
	}
	return nil
}

// wayBack is how a member came back after a moment: what its agent says of the log ("kept", "empty"), and whether etcd
// got the entries alone or a snapshot of the database ("entries", "snapshot").
func wayBack(log, trace string, since time.Time) (map[string]string, error) {
	notes := map[string]string{"log": "not said", "got": "entries"}
	err := eachLine(log, func(b []byte) {
		var l logLine
		if json.Unmarshal(b, &l) == nil && !l.TS.Before(since) && l.Msg == "applied snapshot" {
			notes["got"] = "snapshot"
		}
	})
	err = errors.Join(err, eachLine(trace, func(b []byte) {
		var l lab.TraceLine
		if json.Unmarshal(b, &l) != nil || l.T.Before(since.Truncate(time.Millisecond)) || l.Keep == nil {
			return
		}
		notes["log"] = "empty"
		if *l.Keep {
			notes["log"] = "kept"
		}
	}))
	return notes, err
}

func eachLine(path string, do func([]byte)) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<22)
	for sc.Scan() {
		do(bytes.TrimSpace(sc.Bytes()))
	}
	return sc.Err()
}

// tableReturn is a row a case with the medians of each etcd, and then each cell.
func tableReturn(s Summary) string {
	cells := slices.DeleteFunc(s.Of("return-cost"), func(c Cell) bool {
		_, err := parseReturn(c.Case) // a case of before has no row now
		return err != nil
	})
	var etcds, cases []string
	for _, c := range cells {
		if !slices.Contains(etcds, c.Etcd) {
			etcds = append(etcds, c.Etcd)
		}
		if !slices.Contains(cases, c.Case) {
			cases = append(cases, c.Case)
		}
	}
	slices.Sort(etcds)
	var b strings.Builder
	fmt.Fprintf(&b, "| Filled up to | Missed writes | Disk | etcd %s |\n|---|---|---|%s\n", strings.Join(etcds, " | etcd "), strings.Repeat("---|", len(etcds)))
	for _, name := range cases {
		rc, _ := parseReturn(name)
		fmt.Fprintf(&b, "| %d MB | %d | %s |", rc.size, rc.missed, rc.disk())
		for _, v := range etcds {
			i := slices.IndexFunc(cells, func(c Cell) bool { return c.Case == name && c.Etcd == v })
			if i < 0 || cells[i].Runs == 0 {
				b.WriteString(" – |")
				continue
			}
			c := cells[i]
			fmt.Fprintf(&b, " %.2f MB, %.1f s, %s |", c.Values["bytes"].P50/1e6, c.Values["whole"].P50, strings.Join(frequent(c.Notes["got"]), " or "))
		}
		b.WriteString("\n")
	}
	b.WriteString("\nEach cell:\n\n| Database | Missed writes | Disk | etcd | Runs | Log | It got | Bytes between the members: median, max | of them to the returned one | All bytes on its link | Heal → whole: median, max |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, c := range cells {
		rc, _ := parseReturn(c.Case)
		v := c.Values
		fmt.Fprintf(&b, "| %.1f MB | %d | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", v["db"].P50/1e6, rc.missed, rc.disk(), c.Etcd, runs(c),
			tally(c.Notes["log"]), tally(c.Notes["got"]), megabytes(v["bytes"]), megabytes(v["to_loser"]), megabytes(v["link_bytes"]), seconds(v["whole"]))
	}
	return b.String()
}

func (c returnCase) disk() string {
	if c.wiped {
		return "wiped"
	}
	return "kept"
}
