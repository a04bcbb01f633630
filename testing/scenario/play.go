package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"twok/internal/lab"
	"twok/testing/check"
	"twok/testing/cluster"
	"twok/testing/fault"
	"twok/testing/history"
	"twok/testing/report"
	"twok/testing/trace"
	"twok/testing/workload"
)

// Config of a run.
type Config struct {
	// Dir gets a directory for each scenario; it must exist.
	Dir  string
	Seed uint64
	// Real is etcd's and the agents' own timing.
	Real bool
	V6   bool
	// Keep keeps the data directories of green scenarios; those of others always stay.
	Keep bool
	// TraceLimit is how many states are looked at before a trace counts as undecided. 0: as many as it takes, which can be minutes.
	TraceLimit int
	// Log is told what takes long.
	Log io.Writer
}

// patience ends what hangs; nothing takes a tenth of it on an idle machine.
func (c Config) patience() time.Duration {
	if c.Real {
		return 15 * time.Minute
	}
	return 3 * time.Minute
}

// Play plays one scenario. Prepare comes before.
func Play(ctx context.Context, cell Cell, cfg Config) (r report.Result) {
	begun := time.Now()
	r = report.Result{Name: cell.Name(), Seed: cfg.Seed}
	if err := cell.Fault.Possible(); err != nil {
		r.Error = err.Error()
		return r
	}
	r.Dir = filepath.Join(cfg.Dir, strings.ReplaceAll(cell.Name(), "/", "_"))
	if err := os.Mkdir(r.Dir, 0o755); err != nil {
		r.Error = err.Error()
		return r
	}
	p := &play{cell: cell, cfg: cfg, r: &r, dir: r.Dir}
	err := p.run(ctx)
	err = errors.Join(err, p.close())
	if err != nil {
		r.Error = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	r.Took = time.Since(begun)
	if r.Ran {
		if perr := r.Page(p.h, p.phases, p.started); perr != nil && r.Error == "" {
			r.Error = perr.Error()
		}
	}
	if data, jerr := json.MarshalIndent(r, "", " "); jerr == nil {
		jerr = os.WriteFile(filepath.Join(r.Dir, resultFile), data, 0o644)
		if jerr != nil && r.Error == "" {
			r.Error = jerr.Error()
		}
	}
	if !r.Red() && !cfg.Keep {
		if err := p.tidy(); err != nil {
			r.Error = err.Error()
		}
	}
	return r
}

type play struct {
	cell Cell
	cfg  Config
	r    *report.Result
	dir  string

	c    *cluster.Cluster
	load *workload.Load
	h    history.History // of r.Ran

	phases map[string][]history.Phase // of the agents

	mu      sync.Mutex // of r.Moments
	started time.Time
}

func (p *play) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.r.Moments = append(p.r.Moments, report.Moment{At: time.Since(p.started), Text: fmt.Sprintf(format, args...)})
}

func (p *play) run(ctx context.Context) error {
	patience := p.cfg.patience()
	if p.cell.Fault.Slow {
		patience *= 4
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	begun := time.Now()
	f := p.cell.Fault
	twok, failpoints, err := programs()
	if err != nil {
		return err
	}
	o := cluster.Options{
		Dir: p.dir, Twok: twok, Minor: p.cell.Minor, Arbiter: p.cell.Arbiter, Mode: p.cell.Mode, Real: p.cfg.Real, V6: p.cfg.V6, Log: p.cfg.Log,
	}
	if f.Needs.Failpoints {
		o.Twok = failpoints
	}
	if f.Prepare != nil {
		f.Prepare(&o)
	}
	if p.c, err = cluster.New(ctx, o); err != nil {
		return err
	}
	if err := p.c.Start(ctx); err != nil {
		return fmt.Errorf("start the pair: %w", err)
	}
	if err := p.config(); err != nil {
		return err
	}
	sites, err := p.c.Clients()
	if err != nil {
		return err
	}
	p.r.Started = time.Since(begun)
	rec := history.NewRecorder()
	p.started = rec.Start()
	seed := p.cell.Seed(p.cfg.Seed)
	large := 0
	if f.Large {
		large = 4000
	}
	p.load, err = workload.Start(workload.Config{Sites: sites, Seed: seed, Large: large}, rec)
	if err != nil {
		return err
	}
	p.r.Ran = true
	seen := presence(p.c.Site, p.started)
	stage := &fault.Stage{Cluster: p.c, Rec: rec, Rand: rand.New(rand.NewPCG(seed, 1)), Note: p.note}
	played := p.play(ctx, stage)
	p.r.Refused = stage.RefusedAs()
	played = errors.Join(played, p.broken())
	p.load.Stop()
	p.note("the clients have stopped")
	p.r.Absent = seen()
	stopped := time.Now()
	defer func() { p.r.Judged = time.Since(stopped) }()
	var final *history.Final
	if played == nil {
		played = p.drain(ctx, rec)
		p.load.StopWatches() // an etcd that is asked to end waits for them
		var cerr error
		final, cerr = p.c.Collect(ctx)
		if cerr != nil {
			played = errors.Join(played, cerr)
		}
		for _, c := range final.Claims {
			if c.Won {
				p.r.Claims++
			}
		}
		if played == nil {
			p.r.Trace = p.traced()
			played = f.Shown(p.r.Claims)
		}
	}
	p.load.StopWatches()
	p.load = nil
	if final != nil {
		p.phases = final.Phases
	}
	if p.phases == nil { // what the agents did until then is shown all the same
		var perr error
		p.phases, perr = p.c.Phases()
		played = errors.Join(played, perr)
	}
	h := rec.History()
	h.Final = final
	p.h = h
	err = h.Save(p.dir)
	opts := options{check.Options{Compaction: f.Compacts}}
	err = errors.Join(err, opts.save(p.dir))
	cr := check.Run(h, opts.Options)
	p.r.Check = &cr
	return errors.Join(played, err)
}

// play is the scenario between the first write and the last one.
func (p *play) play(ctx context.Context, s *fault.Stage) (err error) {
	everywhere := func() error {
		for _, site := range lab.Sites {
			if err := s.WritesAt(ctx, site, 30); err != nil {
				return fmt.Errorf("writes at %s: %w", site, err)
			}
		}
		return nil
	}
	if err := everywhere(); err != nil {
		return err
	}
	if s.Leader, err = s.Cluster.Leader(ctx); err != nil {
		return err
	}
	switch p.cell.Role {
	case fault.Leader:
		s.Target = s.Leader
	case fault.Follower, fault.Pair:
		s.Target = lab.Other(s.Leader)
	}
	p.note("%s leads, the target is %s (%s)", s.Leader, s.Target, p.cell.Role)
	if err := p.cell.Fault.Run(ctx, s); err != nil {
		return fmt.Errorf("%s: %w", p.cell.Fault.Name, err)
	}
	p.note("the fault is over")
	if !p.cell.Fault.Random {
		if err := s.Idle(); err != nil {
			return fmt.Errorf("%s: %w", p.cell.Fault.Name, err)
		}
	}
	if _, err := s.Whole(ctx); err != nil {
		return err
	}
	if err := everywhere(); err != nil {
		return fmt.Errorf("in the whole pair: %w", err)
	}
	return s.Ended(ctx)
}

// broken says how the assumption was broken that the fault breaks. That it was not is an error: the scenario showed nothing.
func (p *play) broken() error {
	if p.cell.Fault.Breaks == "" {
		return nil
	}
	n, lie := p.c.Liar.Lies()
	if n == 0 {
		return fmt.Errorf("the fault did not break %s: this showed nothing", p.cell.Fault.Breaks)
	}
	p.r.Broken, p.r.Holds = p.cell.Fault.Breaks, p.cell.Fault.Holds
	p.r.How = fmt.Sprintf("the store %s, %d times", lie, n)
	p.note("%s is broken: %s", p.r.Broken, p.r.How)
	return nil
}

// traced validates the agents' traces, which have ended.
func (p *play) traced() *report.Trace {
	return validate(p.cell.Fault, p.c.Site("a").Trace, p.c.Site("b").Trace, p.cfg.TraceLimit)
}

func validate(f fault.Fault, a, b string, limit int) *report.Trace {
	if f.Untraced != "" {
		return &report.Trace{Verdict: report.Untraced, Detail: f.Untraced}
	}
	begun := time.Now()
	t := &report.Trace{}
	ls, err := trace.ReadFiles(a, b, "")
	if err == nil {
		var r trace.Report
		r, err = trace.Check(ls, trace.Options{Users: f.Users, Disks: f.Disks, Limit: limit})
		t.Detail = r.String()
	}
	switch t.Took = time.Since(begun); {
	case errors.Is(err, trace.ErrUndecided):
		t.Verdict, t.Detail = report.Undecided, err.Error()
	case err != nil:
		t.Verdict, t.Detail = report.Refused, err.Error()
	default:
		t.Verdict = report.Explained
	}
	return t
}

// drain waits until both watches have shown the last acknowledged write.
func (p *play) drain(ctx context.Context, rec *history.Recorder) error {
	var newest int64
	rec.Count(func(o *history.Op) bool {
		if o.Wrote() {
			newest = max(newest, o.Revision)
		}
		return false
	})
	for _, site := range lab.Sites {
		for rec.Watched(site) < newest {
			select {
			case <-ctx.Done():
				return fmt.Errorf("the watch of %s is at revision %d, acknowledged was %d: %w", site, rec.Watched(site), newest, ctx.Err())
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return nil
}

// config writes down how everything was started.
func (p *play) config() error {
	commands := map[string][]string{}
	for _, site := range lab.Sites {
		commands["etcd of "+site], commands["agent of "+site] = p.c.Site(site).EtcdArgs(), p.c.Site(site).AgentArgs()
	}
	data, err := json.MarshalIndent(map[string]any{
		"cell": p.cell.Name(), "about": p.cell.Fault.About, "seed": p.cfg.Seed, "real": p.cfg.Real, "v6": p.cfg.V6, "commands": commands,
	}, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(p.dir, "config.json"), append(data, '\n'), 0o644)
}

func (p *play) close() error {
	if p.load != nil {
		p.load.Stop()
		p.load.StopWatches()
	}
	if p.c == nil {
		return nil
	}
	if err := p.c.Close(); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// tidy removes what is large of a scenario that is green: data directories and stores.
func (p *play) tidy() error {
	var errs []error
	for _, name := range []string{"a/data", "b/data", "a/data.moved-away", "b/data.moved-away", "store", "arbiter"} {
		errs = append(errs, os.RemoveAll(filepath.Join(p.dir, name)))
	}
	return errors.Join(errs...)
}

// options of a check, as they are kept beside the history.
type options struct{ check.Options }

const (
	optionsFile = "check.json"
	resultFile  = "result.json"
)

func (o options) save(dir string) error {
	data, err := json.Marshal(o.Options)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, optionsFile), data, 0o644)
}

// Replay makes the checks of a scenario's directory again, and validates its traces again if it came to that. What went wrong while it
// was played cannot be made again and stays as it was: a scenario that failed is not good because its history is.
func Replay(dir string, traceLimit int) (r report.Result, err error) {
	fail := func(err error) (report.Result, error) { return r, fmt.Errorf("replay %s: %w", dir, err) }
	was, err := played(dir)
	if err != nil {
		return fail(err)
	}
	h, err := history.Load(dir)
	if err != nil {
		return fail(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, optionsFile))
	if err != nil {
		return fail(err)
	}
	var o options
	if err := json.Unmarshal(data, &o.Options); err != nil {
		return fail(err)
	}
	cr := check.Run(h, o.Options)
	r = report.Result{
		Name: was.Name, Seed: was.Seed, Ran: was.Ran, Dir: dir, Check: &cr, Moments: was.Moments, Claims: was.Claims,
		Broken: was.Broken, How: was.How, Holds: was.Holds, Refused: was.Refused,
	}
	if was.Error != "" {
		r.Error = "as it was played: " + was.Error
	}
	if was.Trace == nil {
		return r, nil
	}
	name, _, _ := strings.Cut(was.Name, "/")
	for _, f := range fault.All() {
		if f.Name == name {
			r.Trace = validate(f, filepath.Join(dir, "a", "trace.jsonl"), filepath.Join(dir, "b", "trace.jsonl"), traceLimit)
			return r, nil
		}
	}
	return fail(fmt.Errorf("there is no fault %q, and its traces cannot be validated", name))
}

// played is what became of the scenario in a directory.
func played(dir string) (r report.Result, err error) {
	data, err := os.ReadFile(filepath.Join(dir, resultFile))
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}
