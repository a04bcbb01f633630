package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"twok/arbiter"
	"twok/internal/etcdproc"
	"twok/internal/failover"
)

// Config is an agent's configuration. Default fills what is zero, Validate says what is wrong.
type Config struct {
	DataDir   string // etcd's data directory
	ClientURL string // the local etcd's client port
	PeerURL   string // the local etcd's peer port

	Arbiter     arbiter.Register
	ArbiterName string // for status and log
	// Scratch opens another independent client of a register beside the record, named
	// after it and the given suffix: the probe's. Nil: the store is trusted unseen.
	Scratch func(suffix string) (arbiter.Register, error)
	// Circular says whether the store of such a register stands on the guarded pair itself. Its error is or
	// wraps ErrCircular then; every other one means that it could not be found out. Nil: not asked.
	Circular func(ctx context.Context, scratch arbiter.Register, g Guarded) error
	// ArbiterHost is the host name or address of the store, for a warning; empty: none.
	ArbiterHost string
	Etcd        etcdproc.Etcd

	ClientTLS *tls.Config // towards client ports; nil: plain text
	PeerTLS   *tls.Config // towards peer ports
	// ClientRoots and PeerRoots are the authorities for each new connection (etcdapi.Dialer). nil: those of ClientTLS and PeerTLS.
	ClientRoots, PeerRoots func() *x509.CertPool

	ClaimAfter time.Duration // without a leader until a claim; 20 s
	HeadStart  time.Duration // added for everyone but the former leader; ClaimAfter/4
	Election   time.Duration // etcd's election timeout; 1 s
	Tick       time.Duration // between two looks; ClaimAfter/200 within 10 and 100 ms
	RecordIdle time.Duration // between two reads of the record in a whole pair; 1 min
	// RecordAlone is the same of a survivor that leads alone; 5 s, or RecordIdle if that is less.
	RecordAlone time.Duration
	RecordBusy  time.Duration // the same otherwise; 1 s, less with a short ClaimAfter
	TokenEach   time.Duration // the leader's agent renews the pair token so often, if anything was written (P5); 1 min
	MinRun      time.Duration // etcd runs at least this long between two stops; 30 s
	HoldDown    time.Duration // before promotion, at the second loss within ten minutes; 5 s, negative: none

	HealthListen string // where the health endpoint listens, for the checks; empty: none

	Trace  io.Writer // one JSON line a decision; nil: none
	Logger *zap.Logger
}

// Default returns c with everything set that has a default.
func (c Config) Default() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.ClaimAfter, 20*time.Second)
	def(&c.HeadStart, c.ClaimAfter/4)
	def(&c.Election, time.Second)
	def(&c.Tick, min(max(c.ClaimAfter/100, 10*time.Millisecond), 100*time.Millisecond))
	def(&c.RecordIdle, time.Minute)
	def(&c.RecordAlone, min(5*time.Second, c.RecordIdle))
	def(&c.RecordBusy, min(max(c.ClaimAfter/4, 100*time.Millisecond), time.Second))
	def(&c.TokenEach, time.Minute)
	def(&c.MinRun, 30*time.Second)
	def(&c.HoldDown, 5*time.Second)
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

// Validate checks a configuration after Default. It touches nothing.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.DataDir == "" {
		bad("no data directory: give etcd's --data-dir")
	}
	for name, u := range map[string]string{"client URL": c.ClientURL, "peer URL": c.PeerURL} {
		p, err := url.Parse(u)
		if err != nil || p.Host == "" || (p.Scheme != "http" && p.Scheme != "https") {
			bad("the %s %q is not http://HOST:PORT or https://HOST:PORT", name, u)
		}
	}
	if c.Arbiter == nil {
		bad("no arbiter")
	}
	if c.Etcd == nil {
		bad("no etcd")
	}
	if c.ClaimAfter < 2*c.Election {
		bad("claim-after is %v: it must be at least two election timeouts of etcd (%v), or an ordinary election looks like a lost site", c.ClaimAfter, 2*c.Election)
	}
	if c.HeadStart < 0 || c.HeadStart > c.ClaimAfter {
		bad("head-start is %v: it must be between 0 and claim-after (%v)", c.HeadStart, c.ClaimAfter)
	}
	if c.Tick < time.Millisecond || c.Tick > c.ClaimAfter/4 {
		bad("tick is %v: it must be between 1ms and a quarter of claim-after", c.Tick)
	}
	for name, d := range map[string]time.Duration{"record interval": c.RecordIdle, "token interval": c.TokenEach, "min-run": c.MinRun} {
		if d <= 0 {
			bad("%s is %v: it must be positive", name, d)
		}
	}
	return errors.Join(errs...)
}

// Params turns durations into the core's ticks.
func (c Config) Params() failover.Params {
	t := func(d time.Duration) uint32 { return uint32(max(1, (d+c.Tick-1)/c.Tick)) }
	p := failover.Params{
		ClaimAfter: t(c.ClaimAfter), HeadStart: uint32((c.HeadStart + c.Tick - 1) / c.Tick), Election: t(c.Election),
		WakeAfter: t(2 * time.Second), WakeOther: t(15 * time.Second),
		RecordIdle: t(c.RecordIdle), RecordAlone: t(c.RecordAlone), RecordBusy: t(c.RecordBusy),
		ListEvery: t(min(max(c.ClaimAfter/20, 50*time.Millisecond), 250*time.Millisecond)), ConfirmEach: t(time.Minute),
		TokenEach: t(c.TokenEach), TokenFew: 16, TokenSegs: 2,
		MinRun: t(c.MinRun), MaxRun: t(10 * time.Minute),
		HoldMax: t(5 * time.Minute), HoldWindow: t(10 * time.Minute),
	}
	if c.HoldDown > 0 {
		p.HoldFirst = t(c.HoldDown)
	}
	return p
}

func (c Config) walDir() string { return filepath.Join(c.DataDir, "member", "wal") }

// The deadlines of calls. They scale with ClaimAfter so that a silent arbiter or
// member never costs more than a part of it.
func (c Config) arbiterDeadline() time.Duration {
	return min(max(c.ClaimAfter/4, 300*time.Millisecond), 5*time.Second)
}
func (c Config) callDeadline() time.Duration {
	return min(max(c.ClaimAfter/4, 250*time.Millisecond), 2*time.Second)
}
func (c Config) probeDeadline() time.Duration {
	return min(max(c.ClaimAfter/8, 100*time.Millisecond), time.Second)
}

// stopDeadline bounds stopping etcd and taking the locks; after SIGKILL only a
// disk that hangs takes longer.
const stopDeadline = 15 * time.Second
