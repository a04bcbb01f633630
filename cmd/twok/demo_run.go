package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"twok/internal/lab"
)

// demoResult is the demo's one JSON object. Times are in seconds.
type demoResult struct {
	EtcdVersion    string      `json:"etcd_version"`
	Arbiter        string      `json:"arbiter"`
	Cut            string      `json:"cut"`
	ClaimAfter     float64     `json:"claim_after_s"`
	HeadStart      float64     `json:"head_start_s"`
	Acked          int64       `json:"acked"`                   // sum
	Lost           int64       `json:"lost"`                    // sum
	FirstWrite     *float64    `json:"first_write_after_cut_s"` // maximum; null: in some round there was none
	WholeAfterHeal *float64    `json:"whole_after_heal_s"`      // maximum; null: in some round it did not become whole
	Survivor       *string     `json:"survivor"`                // of the last round
	Generation     uint64      `json:"generation"`              // at the end
	HashesEqual    bool        `json:"hashes_equal"`            // in every round
	Rounds         []demoRound `json:"rounds"`
}

// demoRound is one cut and its heal.
type demoRound struct {
	Round          int      `json:"round"`
	Leader         string   `json:"leader"` // before the cut
	Survivor       *string  `json:"survivor"`
	Generation     uint64   `json:"generation"`
	Acked          int64    `json:"acked"`   // looked for by this round's audit and by none before
	Unknown        int64    `json:"unknown"` // the same without an answer: may be there or not
	Lost           int64    `json:"lost"`    // found missing or altered for the first time in this round's audit
	FirstWrite     *float64 `json:"first_write_after_cut_s"`
	WholeAfterHeal *float64 `json:"whole_after_heal_s"`
	HashesEqual    bool     `json:"hashes_equal"`
	Audit          string   `json:"audit"`
	Error          string   `json:"error,omitempty"`
}

// add takes a round into the totals.
func (r *demoResult) add(x demoRound) {
	first := len(r.Rounds) == 0
	r.Rounds = append(r.Rounds, x)
	r.Acked += x.Acked
	r.Lost += x.Lost
	r.Survivor = x.Survivor
	if x.Generation != 0 {
		r.Generation = x.Generation
	}
	r.HashesEqual = x.HashesEqual && (first || r.HashesEqual)
	worst := func(total *float64, v *float64) *float64 {
		if v == nil || !first && total == nil {
			return nil
		}
		if first || *v > *total {
			return v
		}
		return total
	}
	r.FirstWrite = worst(r.FirstWrite, x.FirstWrite)
	r.WholeAfterHeal = worst(r.WholeAfterHeal, x.WholeAfterHeal)
}

// summary is the result of a good run in one line.
func (r *demoResult) summary() string {
	survivor := "nobody had to claim"
	if r.Survivor != nil {
		survivor = *r.Survivor + " survived"
	}
	text := fmt.Sprintf("nothing was lost of %d acknowledged writes; %s, generation %d", r.Acked, survivor, r.Generation)
	if len(r.Rounds) > 1 {
		text += fmt.Sprintf("; %d rounds, at most", len(r.Rounds))
	} else {
		text += ";"
	}
	return fmt.Sprintf("%s %.2f s from the cut to the first write and %.2f s from the heal to whole", text, *r.FirstWrite, *r.WholeAfterHeal)
}

// demo is one run.
type demo struct {
	cfg    lab.Config
	cut    lab.CutKind
	rounds int
	tell   *narrator

	c *lab.Cluster
	w *lab.Writer

	mu    sync.Mutex // guards story
	story *lab.Story

	acked, unknown, lost int64 // of the rounds so far
}

// patience is how long the demo waits for what should take seconds.
func (d *demo) patience() time.Duration {
	return 3*(d.cfg.ClaimAfter+d.cfg.HeadStart) + 90*time.Second
}

// run does everything. The result is as far as it got.
func (d *demo) run(ctx context.Context) (result demoResult, err error) {
	result = demoResult{
		EtcdVersion: d.cfg.Etcd.Version, Cut: string(d.cut), Rounds: []demoRound{},
		ClaimAfter: d.cfg.ClaimAfter.Seconds(), HeadStart: d.cfg.HeadStart.Seconds(),
	}
	if d.c, err = lab.NewCluster(d.cfg); err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, d.c.Close()) }()
	result.Arbiter = d.c.Arbiter

	d.story = lab.NewStory()
	d.tell.begin(lab.Event{Kind: lab.EventStart, Text: fmt.Sprintf(
		"etcd %s, who runs it: %s, arbiter %s, claim-after %s (outside the demo %s), head start %s",
		d.cfg.Etcd.Version, d.cfg.Mode, d.c.Arbiter, d.cfg.ClaimAfter, productClaimAfter, d.cfg.HeadStart)})
	defer d.tell.end()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	for _, name := range lab.Sites {
		wg.Go(func() {
			if err := lab.FollowTrace(ctx, d.c.Site(name).Trace, func(l lab.TraceLine) { d.trace(name, l) }); err != nil {
				cancel(err)
			}
		})
	}
	wg.Go(func() { d.watch(ctx) })

	if err := d.c.Start(ctx); err != nil {
		return result, err
	}
	if _, err := d.whole(ctx, "the new pair"); err != nil {
		return result, err
	}
	d.w, err = lab.StartWriter(lab.WriterConfig{
		Endpoints: []string{d.c.Site("a").ClientURL, d.c.Site("b").ClientURL},
		Clients:   8, Deadline: 300 * time.Millisecond, Pause: 10 * time.Millisecond,
		Prefix: "/demo/",
	})
	if err != nil {
		return result, err
	}
	defer d.w.Stop()
	d.tell.counter(d.w.Acked)
	for n := 1; n <= d.rounds; n++ {
		round, err := d.round(ctx, n)
		if err != nil {
			round.Error = err.Error()
			d.tell.event(lab.Event{At: time.Now(), Kind: lab.EventFailed, Text: err.Error()})
		}
		result.add(round)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
				err = errors.Join(err, cause)
			}
			return result, fmt.Errorf("round %d of %d: %w", n, d.rounds, err)
		}
	}
	d.tell.event(lab.Event{At: time.Now(), Kind: lab.EventDone, Text: result.summary(), Generation: result.Generation})
	return result, nil
}

// round is one cut, heal and audit.
func (d *demo) round(ctx context.Context, n int) (r demoRound, err error) {
	r.Round = n
	d.tell.round(n, d.rounds)
	if err := sleep(ctx, time.Second); err != nil { // writes before the cut
		return r, err
	}
	find, cancel := context.WithTimeout(ctx, d.patience())
	r.Leader, err = d.c.Leader(find)
	cancel()
	if err != nil {
		return r, withCode(err, exitNotWhole)
	}

	d.mu.Lock()
	d.story.Cut()
	d.mu.Unlock()
	cutAt := time.Now()
	d.tell.mark(lab.Event{At: cutAt, Kind: lab.EventCut, Site: r.Leader, Text: cutText(d.cut, r.Leader)})
	if err := d.c.Cut(d.cut, r.Leader); err != nil {
		return r, fmt.Errorf("make the cut: %w", err)
	}
	next := d.w.NextAck()
	if d.cut.Claims() {
		err = d.firstWrite(ctx, &r, cutAt, next)
		if ctx.Err() != nil {
			return r, err
		}
		if err == nil {
			err = sleep(ctx, 2*time.Second) // alone for a while
		}
	}
	healAt := time.Now()
	d.tell.mark(lab.Event{At: healAt, Kind: lab.EventHeal, Text: healText(d.cut)})
	if e := d.c.Heal(); e != nil {
		return r, errors.Join(err, fmt.Errorf("heal: %w", e))
	}
	if !d.cut.Claims() {
		err = d.firstWrite(ctx, &r, cutAt, next)
	}
	generation, e := d.whole(ctx, "the pair")
	if err = errors.Join(err, e); err == nil {
		took := time.Since(healAt).Seconds()
		r.WholeAfterHeal, r.Generation = &took, generation
	}
	d.mu.Lock()
	if s := d.story.Survivor(); s != "" {
		r.Survivor = &s
	}
	d.mu.Unlock()
	if n == d.rounds || err != nil {
		d.w.Stop() // so that the last audit sees every write
	}
	return r, errors.Join(err, d.audit(ctx, &r))
}

// firstWrite waits for the first write that began after the cut.
func (d *demo) firstWrite(ctx context.Context, r *demoRound, cutAt time.Time, next <-chan time.Time) error {
	select {
	case at := <-next:
		took := at.Sub(cutAt).Seconds()
		r.FirstWrite = &took
		d.mu.Lock()
		events := d.story.FirstWrite(at, fmt.Sprintf("a write is acknowledged again, %.2f s after the cut", took))
		d.mu.Unlock()
		d.tell.event(events...)
		return nil
	case <-time.After(d.patience()):
		return hint(withCode(fmt.Errorf("no write was acknowledged within %s of the cut", d.patience()), exitNotWhole),
			"the timeline says what each agent waited for")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// whole waits until the pair is whole and returns the generation.
func (d *demo) whole(ctx context.Context, what string) (uint64, error) {
	wait, cancel := context.WithTimeout(ctx, d.patience())
	defer cancel()
	rec, err := d.c.WaitWhole(wait, d.tell.missing)
	d.tell.missing("")
	if err != nil {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		if errors.Is(err, lab.ErrAgentEnded) {
			return 0, withCode(fmt.Errorf("%s did not become whole: %w", what, err), exitNotWhole)
		}
		return 0, withCode(fmt.Errorf("%s did not become whole within %s: %w", what, d.patience(), err), exitNotWhole)
	}
	d.tell.mark(lab.Event{At: time.Now(), Kind: lab.EventWhole, Generation: rec.Generation,
		Text: fmt.Sprintf("both members could take over, generation %d", rec.Generation)})
	return rec.Generation, nil
}

// audit checks all writes so far. The writer may go on.
func (d *demo) audit(ctx context.Context, r *demoRound) error {
	ctx, cancel := context.WithTimeout(ctx, d.patience())
	defer cancel()
	report, err := lab.Audit(ctx, d.w, d.c.AuditMembers())
	r.Acked, r.Unknown = report.Acked-d.acked, max(0, report.Unknown-d.unknown)
	d.acked, d.unknown = report.Acked, report.Unknown
	if err != nil {
		r.Audit = "not checked: " + err.Error()
		return withCode(err, exitLost)
	}
	r.Lost = max(0, report.LostKeys-d.lost)
	d.lost = max(d.lost, report.LostKeys)
	r.HashesEqual, r.Audit = report.HashesEqual, report.String()
	d.tell.event(lab.Event{At: time.Now(), Kind: lab.EventAudit, Text: report.String()})
	if !report.OK() {
		return hint(withCode(fmt.Errorf("the audit failed: %s", report), exitLost), "keep the directory: this must never happen")
	}
	return nil
}

func (d *demo) trace(site string, l lab.TraceLine) {
	d.mu.Lock()
	events := d.story.Trace(site, l)
	d.mu.Unlock()
	d.tell.event(events...)
}

// watch shows once a second what each agent does.
func (d *demo) watch(ctx context.Context) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		agents := map[string]agentView{}
		for _, name := range lab.Sites {
			h, err := d.c.Site(name).Health(ctx)
			agents[name] = agentView{Health: h, err: err}
		}
		if ctx.Err() == nil {
			d.tell.status(agents)
		}
	}
}

func sleep(ctx context.Context, t time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(t):
		return nil
	}
}

func cutText(k lab.CutKind, leader string) string {
	other := lab.Other(leader)
	switch k {
	case lab.CutLink:
		return fmt.Sprintf("nothing passes between a and b any more; %s leads", leader)
	case lab.CutKillLeader:
		return fmt.Sprintf("etcd and agent of %s, which leads, are killed", leader)
	case lab.CutKillFollower:
		return fmt.Sprintf("etcd and agent of %s are killed; %s leads", other, leader)
	case lab.CutOneWayToLeader:
		return fmt.Sprintf("what %s sends to %s, which leads, stalls", other, leader)
	case lab.CutOneWayToFollower:
		return fmt.Sprintf("what %s, which leads, sends to %s stalls", leader, other)
	default:
		return fmt.Sprintf("etcd and agent of both sites are killed; %s led", leader)
	}
}

func healText(k lab.CutKind) string {
	switch k {
	case lab.CutKillLeader, lab.CutKillFollower, lab.CutRestartBoth:
		return "what was killed is started"
	default:
		return "what was stalled flows again"
	}
}
