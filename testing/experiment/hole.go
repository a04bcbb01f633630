package experiment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"twok/internal/lab"
	"twok/walsurgery"
)

// promotion is in the log entry of a promotion, and of no other change (etcd membership.ConfigChangeContext).
const promotion = `"isPromote":true`

// promotionHole lets the promotion of a returned member reach it, and nothing later, and loses the survivor.
func promotionHole() Experiment {
	return Experiment{
		Name:  "promotion-hole",
		About: "the promotion reaches the returned member, what follows does not, the survivor is killed; CASE is how many more reads pass",
		Cases: []string{"0", "1", "2"},
		// One run is one pair.
		Programs: []Program{Twok, NoToken},
		Run: func(ctx context.Context, s *Session, n int) error {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
			defer cancel()
			return holeOnce(ctx, s)
		},
		Table: tableHole,
	}
}

// holeRun is one run, as it is left among the raw logs.
type holeRun struct {
	Acked      int    `json:"acked"`      // by the survivor, until it was killed
	Promotion  uint64 `json:"promotion"`  // the index of its entry in the returned member's log; 0: it is not there
	Last       uint64 `json:"last"`       // the end of that log
	Applied    uint64 `json:"applied"`    // of its database
	Reason     string `json:"reason"`     // why its agent does not claim
	ByHand     string `json:"by_hand"`    // what twok wal survive said
	RuleOff    string `json:"rule_off"`   // what it said without the rule
	Claimed    bool   `json:"claimed"`    // without the rule
	LostByRule []ack  `json:"lost_twok"`  // when the pair was whole again
	LostOff    []ack  `json:"lost_off"`   // at the member that claimed without the rule
	Generation uint64 `json:"generation"` // of the record while the survivor was dead
}

// waitAfter is how long the returned member's agent has for a claim that it must not make.
const (
	holeClaimAfter = 800 * time.Millisecond
	waitAfter      = 5 * holeClaimAfter
	holeClients    = 64
	holeFill       = 2000
)

func holeOnce(ctx context.Context, s *Session) error {
	c, err := lab.NewCluster(lab.Config{Dir: s.Dir, Etcd: s.Bin, Mode: lab.Supervise, Timing: lab.Fast, Twok: s.Program(Twok),
		ClaimAfter: holeClaimAfter, AgentFlags: []string{"--hold-down", "0", "--min-run", "3s"}})
	if err != nil {
		return err
	}
	g := newGate(promotion)
	r, err := hole(ctx, s, c, g)
	err = errors.Join(err, g.close(), c.Close())
	if r == nil {
		return err
	}
	data, jerr := json.MarshalIndent(r, "", " ")
	if err = errors.Join(err, jerr, os.WriteFile(filepath.Join(s.Dir, "run.json"), data, 0o644), s.Add(r.values())); err != nil {
		return err
	}
	for _, dir := range []string{c.Site("a").DataDir, c.Site("b").DataDir, filepath.Join(s.Dir, "off")} {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

func (r *holeRun) values() (map[string]float64, map[string]string) {
	v := map[string]float64{"acked": float64(r.Acked), "lost_twok": float64(len(r.LostByRule)), "promoted": 0, "claimed_off": 0}
	if r.Promotion != 0 {
		v["promoted"] = 1
	}
	if r.Claimed {
		v["claimed_off"], v["lost_off"] = 1, float64(len(r.LostOff))
	}
	return v, map[string]string{"agent": r.Reason, "by_hand": r.ByHand, "rule_off": r.RuleOff}
}

// hole: site a survives alone, site b returns and is promoted. With an error there is a run only if it lost what twok must not lose.
func hole(ctx context.Context, s *Session, c *lab.Cluster, g *gate) (*holeRun, error) {
	more, err := strconv.Atoi(s.Case)
	if err != nil {
		return nil, err
	}
	a, b := c.Site("a"), c.Site("b")
	// What b sends to a's port are requests, and a answers there; what a sends to b's are requests.
	for _, x := range []struct {
		site     *lab.Site
		requests bool
	}{{a, false}, {b, true}} {
		u, err := url.Parse(x.site.PeerURL)
		if err != nil {
			return nil, err
		}
		addr, err := g.open(u.Host, x.requests)
		if err != nil {
			return nil, err
		}
		x.site.AdvertisedPeerURL = "http://" + addr
	}
	if err := c.Start(ctx); err != nil {
		return nil, err
	}
	if _, err := c.WaitWhole(ctx, nil); err != nil {
		return nil, err
	}
	cls, err := dial(a.ClientURL)
	if err != nil {
		return nil, err
	}
	defer hangUp(cls)
	if err := fill(ctx, cls[0], "/fill/", holeFill, 64); err != nil {
		return nil, err
	}
	if err := b.Kill(); err != nil {
		return nil, err
	}
	if err := a.WaitServing(ctx); err != nil {
		return nil, err
	}
	if err := waitSurvivor(ctx, c, "a"); err != nil {
		return nil, err
	}
	r := &holeRun{}
	// Raft keeps the survivor's configuration of one until the promotion is applied. Writes that read much keep the
	// applying behind, so that there are writes in between.
	l := &ledger{prefix: "/hole/", size: 64, cl: cls, scan: "/fill/"}
	l.start(ctx, holeClients)
	g.arm(more)
	err = b.Start()
	if err == nil {
		select {
		case <-g.fired:
			c.CutLink() // the clients' ports, which agents use
		case <-ctx.Done():
			err = fmt.Errorf("wait for the promotion: %w; see %s", ctx.Err(), b.AgentLog)
		}
	}
	if err == nil { // whatever the survivor can still commit alone, it commits now
		time.Sleep(3*lab.Fast.Election + rand.N(100*time.Millisecond))
		err = a.Kill()
	}
	acks := l.stop()
	if err != nil {
		return nil, err
	}
	r.Acked = len(acks)
	time.Sleep(waitAfter)
	if err := r.refused(ctx, s, c, b); err != nil {
		return nil, err
	}
	if err := r.ruleOff(ctx, s, c, b, acks); err != nil {
		return nil, fmt.Errorf("with the rule off: %w", err)
	}

	// And on: the survivor is not lost after all.
	g.heal()
	c.HealLink()
	if err := errors.Join(a.Start(), b.Start()); err != nil {
		return nil, err
	}
	if _, err := c.WaitWhole(ctx, nil); err != nil {
		return nil, err
	}
	for _, x := range []*lab.Site{a, b} {
		cls, err := dial(x.ClientURL)
		if err != nil {
			return nil, err
		}
		have, err := keysOf(ctx, cls[0], l.prefix)
		if err = errors.Join(err, hangUp(cls)); err != nil {
			return nil, err
		}
		if lost := missing(acks, have); len(lost) > len(r.LostByRule) {
			r.LostByRule = lost
		}
	}
	if len(r.LostByRule) > 0 {
		return r, fmt.Errorf("%d acknowledged writes are missing though the returned member did not claim: %v", len(r.LostByRule), r.LostByRule)
	}
	return r, nil
}

func waitSurvivor(ctx context.Context, c *lab.Cluster, name string) error {
	for {
		rec, err := c.Record(ctx)
		if err == nil && rec.Survivor.Name == name && rec.Confirmed.Index > 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until the record names %s, confirmed: %w: %v", name, ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// refused: the agent has not claimed, and says why; nor does twok by hand. Etcd and agent of b are stopped then.
func (r *holeRun) refused(ctx context.Context, s *Session, c *lab.Cluster, b *lab.Site) error {
	h, err := b.Health(ctx)
	if err != nil {
		return err
	}
	r.Reason = h.Role + ", " + h.Reason
	rec, err := c.Record(ctx)
	if err != nil {
		return err
	}
	if r.Generation = rec.Generation; rec.Survivor.Name != "a" {
		return fmt.Errorf("the returned member claimed generation %d without the token; it must not", rec.Generation)
	}
	b.KillAgent()
	if err := b.StopEtcd(); err != nil {
		return err
	}
	status, text, err := surviveByHand(ctx, s.Program(Twok), c.Arbiter, b.DataDir)
	if err != nil {
		return err
	}
	if r.ByHand = text; status != 32 {
		return fmt.Errorf("twok wal survive ended with status %d, not 32: %s", status, text)
	}
	// What the promotion left in its log.
	log, err := walsurgery.Inspect(zap.NewNop(), filepath.Join(b.DataDir, "member", "wal"))
	if err != nil {
		return err
	}
	r.Last = log.Summary().Last.Index
	for e := range log.Changes() {
		if bytes.Contains(e.Data, []byte(promotion)) || e.Kind == walsurgery.KindConfChange && bytes.Contains(e.Change.Context, []byte(promotion)) {
			r.Promotion = e.Index
		}
	}
	return log.Close()
}

// surviveByHand runs twok wal survive and returns its first line.
func surviveByHand(ctx context.Context, twok, arbiter, dir string) (status int, text string, err error) {
	cmd := exec.CommandContext(ctx, twok, "wal", "survive", "--arbiter", arbiter, dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, "", err
	}
	text, _, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
	return cmd.ProcessState.ExitCode(), strings.ReplaceAll(text, dir, "DIR"), nil
}

// ruleOff lets a twok without the rule claim, on copies of the directory and of the arbiter's.
func (r *holeRun) ruleOff(ctx context.Context, s *Session, c *lab.Cluster, b *lab.Site, acks []ack) (err error) {
	off := filepath.Join(s.Dir, "off")
	dir, store := filepath.Join(off, "data"), filepath.Join(off, "arbiter")
	if err := errors.Join(copyTree(b.DataDir, dir), copyTree(filepath.Join(s.Dir, "arbiter"), store)); err != nil {
		return err
	}
	urls, err := freeURLs(1)
	if err != nil {
		return err
	}
	arb, err := startEtcd(filepath.Join(s.Dir, "off-arbiter.log"), urls[0], nil, s.Program(Twok), "arbiter", "serve", "--listen", strings.TrimPrefix(urls[0], "http://"), "--dir", store)
	if err != nil {
		return err
	}
	defer arb.kill()
	u, err := url.Parse(c.Arbiter)
	if err != nil {
		return err
	}
	status := 0
	for range 50 { // until the copy of the arbiter listens
		if status, r.RuleOff, err = surviveByHand(ctx, s.Program(NoToken), urls[0]+u.Path, dir); err != nil {
			return err
		}
		if status == 0 || status == 32 && !strings.Contains(r.RuleOff, "connection refused") {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	switch status {
	case 0:
	case 32:
		return nil
	default:
		return fmt.Errorf("twok wal survive ended with status %d: %s", status, r.RuleOff)
	}
	r.Claimed, r.RuleOff = true, "claimed"
	have, _, err := survive(ctx, s, b, dir, "/hole/")
	r.LostOff = missing(acks, have)
	return err
}

func tableHole(s Summary) string {
	var b strings.Builder
	b.WriteString("| Reads that pass after the promotion | etcd | Runs | The promotion is in the log | twok: lost | Rule off: claimed | lost acknowledged writes in | most lost |\n|---|---|---|---|---|---|---|---|\n")
	for _, c := range s.Of("promotion-hole") {
		v := c.Values
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %.0f of %.0f | %d | %d | %.0f |\n", c.Case, c.Etcd, runs(c), v["promoted"].NonZero,
			v["lost_twok"].Sum, v["acked"].Sum, v["claimed_off"].NonZero, v["lost_off"].NonZero, v["lost_off"].Max)
	}
	for _, note := range []string{"agent", "by_hand", "rule_off"} {
		counts := map[string]int{}
		for _, c := range s.Of("promotion-hole") {
			for text, n := range c.Notes[note] {
				counts[text] += n
			}
		}
		fmt.Fprintf(&b, "\n- %s: %s", map[string]string{"agent": "The agent says", "by_hand": "`twok wal survive` says", "rule_off": "Without the rule it says"}[note], tally(counts))
	}
	return b.String() + "\n"
}
