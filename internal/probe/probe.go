package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"twok/arbiter"
)

// Config says how to probe. Open is required.
type Config struct {
	// Open returns another independent client of the scratch register, as another
	// process would have. Called Clients+1 times; what it returns is closed if it is an io.Closer.
	Open func() (arbiter.Register, error)

	Clients int           // that race; 8
	Rounds  int           // races with a winner; 10
	Storm   int           // swaps to be applied in the storm after them, if 2 s suffice; ten for each round
	Timeout time.Duration // of a call; 10 s
	// ClaimAfter is the agents' setting. A p99 above a tenth of it is a warning. Zero: none.
	ClaimAfter time.Duration
	// RunID tells this probe's values from another one's: a fresh nonce.
	RunID string
}

// maxRepeats is how many races without a winner, or calls without an answer, end a probe.
const maxRepeats = 20

// Run probes. See the package comment for what its results mean.
func Run(ctx context.Context, cfg Config) (rep Report, err error) {
	if cfg.Clients < 2 {
		cfg.Clients = 8
	}
	if cfg.Rounds < 1 {
		cfg.Rounds = 10
	}
	if cfg.Storm < 1 {
		cfg.Storm = 10 * cfg.Rounds
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 10 * time.Second
	}
	p := &prober{cfg: cfg}
	begin := time.Now()
	defer func() {
		rep.Clients, rep.Rounds, rep.Repeated, rep.Storm = cfg.Clients, p.won, p.repeated, p.stormed
		rep.Read, rep.Swap, rep.Took = p.reads.latency(), p.swaps.latency(), time.Since(begin)
		rep.Warnings = p.warnings(rep)
		err = errors.Join(err, p.close())
	}()
	for range cfg.Clients + 1 {
		r, err := cfg.Open()
		if err != nil {
			return rep, fmt.Errorf("probe: %w", err)
		}
		p.clients = append(p.clients, r)
	}
	rep.Problem, err = p.run(ctx)
	if err != nil {
		err = fmt.Errorf("probe %v: %w", p.clients[0], err)
	}
	return rep, err
}

type prober struct {
	cfg      Config
	clients  []arbiter.Register // the last one watches
	turn     int
	now      []byte   // what the register must hold
	older    int      // turns up to this one were written before it
	late     [][]byte // of races without a winner: swaps from this version that may still be applied
	won      int
	repeated int
	stormed  int  // swaps applied in the storm
	storming bool // what calls take in it is not sampled

	reads, swaps samples
}

func (p *prober) close() error {
	var errs []error
	for _, c := range p.clients {
		if c, ok := c.(interface{ Close() error }); ok {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

func (p *prober) warnings(rep Report) []string {
	ws := []string{}
	if limit := p.cfg.ClaimAfter / 10; limit > 0 {
		for _, l := range []struct {
			name string
			Latency
		}{{"read", rep.Read}, {"swap", rep.Swap}} {
			if l.P99 > limit {
				ws = append(ws, fmt.Sprintf("the p99 of a %s, %v, is above a tenth of claim-after (%v): a failover waits for it; raise --claim-after or use a nearer store",
					l.name, l.P99.Round(time.Millisecond), p.cfg.ClaimAfter))
			}
		}
	}
	return ws
}

func problem(f Fault, format string, args ...any) *Problem {
	return &Problem{Fault: f, What: fmt.Sprintf(format, args...), Remedy: remedies[f]}
}

func (p *prober) next(writer int) []byte {
	p.turn++
	return value{Run: p.cfg.RunID, Writer: writer, Turn: p.turn}.encode()
}

func (p *prober) read(ctx context.Context, r arbiter.Register) ([]byte, arbiter.Version, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	at := time.Now()
	b, v, err := r.Read(ctx)
	if err == nil && !p.storming {
		p.reads.add(time.Since(at))
	}
	return b, v, err
}

func (p *prober) swap(ctx context.Context, r arbiter.Register, prev arbiter.Version, next []byte) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	at := time.Now()
	err := r.CompareAndSwap(ctx, prev, next)
	if c := arbiter.Class(err); !p.storming && (c == nil || c == arbiter.ErrConflict) {
		p.swaps.add(time.Since(at))
	}
	return err
}

// run is the probe: the first value, the sequential checks, the races, the storm.
func (p *prober) run(ctx context.Context) (*Problem, error) {
	_, v, err := p.read(ctx, p.clients[0])
	if err != nil {
		return nil, err
	}
	for !v.Exists() {
		bad, err := p.race(ctx, arbiter.Absent)
		if bad != nil {
			return p.plainer(ctx, bad), nil
		}
		if err != nil {
			return nil, err
		}
		if p.now != nil {
			break
		}
	}
	if bad, err := p.conditions(ctx); bad != nil || err != nil {
		return bad, err
	}
	for p.won < p.cfg.Rounds {
		b, v, err := p.read(ctx, p.clients[p.won%p.cfg.Clients])
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(p.late, func(l []byte) bool { return bytes.Equal(l, b) }) {
			p.now, p.late = b, nil
		}
		if bad, err := p.holds(b, v); bad != nil || err != nil {
			return bad, err
		}
		if bad, err := p.race(ctx, v); bad != nil || err != nil {
			return bad, err
		}
	}
	return p.storm(ctx)
}

// plainer looks for the reason of what the first race showed: a store that ignores
// conditions lets all clients win, and is told apart by checking one after the other.
func (p *prober) plainer(ctx context.Context, bad *Problem) *Problem {
	p.now = nil
	again, err := p.conditions(ctx)
	if err == nil && again != nil && (again.Fault == IgnoresVersion || again.Fault == IgnoresAbsence) {
		return again
	}
	return bad
}

// holds judges what a read showed against what the register must hold.
func (p *prober) holds(b []byte, v arbiter.Version) (*Problem, error) {
	if bytes.Equal(b, p.now) && v.Exists() {
		return nil, nil
	}
	want, _ := decode(p.now)
	got, whole := decode(b)
	switch {
	case !v.Exists():
		return problem(Vanishes, "a read found no value, although the write of one had been acknowledged"), nil
	case whole && got.Run != p.cfg.RunID:
		return nil, ErrBusy
	case !whole:
		return problem(OtherBytes, "%d bytes were written and acknowledged, a read gave %d others", len(p.now), len(b)), nil
	case got.Turn <= p.older:
		return problem(StaleRead, "a client read value %d after another one had been told that value %d is written", got.Turn, want.Turn), nil
	}
	return problem(LosesWin, "value %d was acknowledged, value %d, which was refused or older, is what a read gives", want.Turn, got.Turn), nil
}

// write swaps from v by client k until the outcome is known, and says whether it was applied.
func (p *prober) write(ctx context.Context, k int, v arbiter.Version) (applied bool, err error) {
	var tried [][]byte
	older := p.turn
	for range maxRepeats {
		next := p.next(k)
		tried = append(tried, next)
		err := p.swap(ctx, p.clients[k], v, next)
		switch arbiter.Class(err) {
		case nil:
			p.now, p.older = next, older
			return true, nil
		case arbiter.ErrConflict, arbiter.ErrUnknown:
			// One of the earlier ones may have been applied late.
			if len(tried) == 1 && arbiter.Class(err) == arbiter.ErrConflict {
				return false, nil
			}
			b, _, rerr := p.read(ctx, p.clients[k])
			if rerr != nil {
				return false, rerr
			}
			for _, t := range tried {
				if bytes.Equal(b, t) {
					p.now, p.older = t, older
					return true, nil
				}
			}
			if arbiter.Class(err) == arbiter.ErrConflict {
				return false, nil
			}
		default:
			return false, err
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
	return false, fmt.Errorf("%w: %d swaps in a row without a known outcome", ErrInconclusive, maxRepeats)
}

// conditions are the sequential checks, by clients that take turns.
func (p *prober) conditions(ctx context.Context) (*Problem, error) {
	b, old, err := p.read(ctx, p.clients[0])
	if err != nil {
		return nil, err
	}
	if p.now != nil { // created by this probe
		if bad, err := p.holds(b, old); bad != nil || err != nil {
			return bad, err
		}
	}
	if ok, err := p.write(ctx, 0, old); err != nil || !ok {
		if err == nil {
			err = ErrBusy
		}
		return nil, err
	}
	if bad, err := p.everybody(ctx); bad != nil || err != nil {
		return bad, err
	}
	// From a version that is gone, and from none: both must be refused.
	keep := p.now
	for _, c := range []struct {
		from  arbiter.Version
		fault Fault
		what  string
	}{
		{old, IgnoresVersion, "a swap from a version that had been replaced was taken"},
		{arbiter.Absent, IgnoresAbsence, "a create, meant for a register without a value, overwrote one"},
	} {
		if ok, err := p.write(ctx, 1, c.from); err != nil {
			return nil, err
		} else if ok {
			return problem(c.fault, "%s", c.what), nil
		}
		p.now = keep
		if bad, err := p.everybody(ctx); bad != nil || err != nil {
			return bad, err
		}
	}
	return nil, nil
}

// everybody reads by every client, at the same time.
func (p *prober) everybody(ctx context.Context) (*Problem, error) {
	bad, errs := make([]*Problem, len(p.clients)), make([]error, len(p.clients))
	var g sync.WaitGroup
	for i, c := range p.clients {
		g.Go(func() {
			b, v, err := p.read(ctx, c)
			if err == nil {
				bad[i], err = p.holds(b, v)
			}
			errs[i] = err
		})
	}
	g.Wait()
	for _, b := range bad {
		if b != nil {
			return b, nil
		}
	}
	return nil, errors.Join(errs...)
}

// race lets all clients swap from one version at once, while the last one reads.
func (p *prober) race(ctx context.Context, from arbiter.Version) (*Problem, error) {
	n := p.cfg.Clients
	values, errs := make([][]byte, n), make([]error, n)
	older := p.turn
	for i := range n {
		values[i] = p.next(i)
	}
	before := p.now
	// A swap of an earlier race from this version may be applied now.
	values = append(values, p.late...)
	for range p.late {
		errs = append(errs, arbiter.ErrUnknown)
	}
	var start, done sync.WaitGroup
	start.Add(1)
	for i := range n {
		done.Go(func() {
			start.Wait()
			errs[i] = p.swap(ctx, p.clients[i], from, values[i])
		})
	}
	stop := make(chan struct{})
	seen := make(chan *Problem, 1)
	go func() { seen <- p.watch(ctx, before, values, stop) }()
	start.Done()
	done.Wait()
	close(stop)
	if bad := <-seen; bad != nil {
		return bad, nil
	}
	return p.settle(ctx, before, older, values, errs)
}

// watch reads during a race: the value before it, or one of the race's, whole.
func (p *prober) watch(ctx context.Context, before []byte, values [][]byte, stop <-chan struct{}) *Problem {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		b, v, err := p.read(ctx, p.clients[p.cfg.Clients])
		if err != nil {
			return nil // the race's own calls say what is wrong with the store
		}
		if !v.Exists() {
			if before != nil {
				return problem(Vanishes, "a read found no value while one was being replaced")
			}
			continue
		}
		ok := bytes.Equal(b, before)
		for _, w := range values {
			ok = ok || bytes.Equal(b, w)
		}
		if got, whole := decode(b); !ok && !(whole && got.Run != p.cfg.RunID) && before != nil {
			return problem(TornRead, "a read during a write gave %d bytes that nobody wrote", len(b))
		}
	}
}

// settle finds out who won a race, and whether that is the whole truth.
func (p *prober) settle(ctx context.Context, before []byte, older int, values [][]byte, errs []error) (*Problem, error) {
	var winners, unknown []int
	for i, err := range errs {
		switch arbiter.Class(err) {
		case nil:
			winners = append(winners, i)
		case arbiter.ErrConflict:
		case arbiter.ErrUnknown, arbiter.ErrUnavailable:
			unknown = append(unknown, i)
		default:
			return nil, err
		}
	}
	if len(winners) > 1 {
		return problem(TwoWinners, "of %d swaps from one version, made at the same time, %d were told that they won", p.cfg.Clients, len(winners)), nil
	}
	b, v, err := p.read(ctx, p.clients[0])
	if err != nil {
		return nil, err
	}
	at := -1
	for i := range values {
		if bytes.Equal(b, values[i]) {
			at = i
		}
	}
	isUnknown := func(i int) bool { return slices.Contains(unknown, i) }
	switch {
	case len(winners) == 1 && at >= 0 && at != winners[0] && isUnknown(at):
		return problem(TwoWinners, "one of %d swaps from one version was told that it won, another one was applied after it", p.cfg.Clients), nil
	case len(winners) == 1:
		p.now, p.older, p.late = values[winners[0]], older, nil
		if bad, err := p.holds(b, v); bad != nil || err != nil {
			return bad, err
		}
		p.won++
		return p.everybody(ctx)
	case at >= 0 && !isUnknown(at):
		return problem(DeniesWin, "a swap was answered with \"changed\", and is what the register holds"), nil
	case at >= 0:
		p.now, p.older, unknown = values[at], older, nil
	case before != nil:
		p.now = before
		if bad, err := p.holds(b, v); bad != nil || err != nil {
			return bad, err
		}
	case v.Exists(): // created by somebody else meanwhile
		return nil, ErrBusy
	}
	p.late = nil
	for _, i := range unknown {
		p.late = append(p.late, values[i])
	}
	p.repeated++
	if p.repeated > maxRepeats {
		return nil, fmt.Errorf("%w: %d races had no winner: %w", ErrInconclusive, p.repeated, errors.Join(errs...))
	}
	return nil, ctx.Err()
}
