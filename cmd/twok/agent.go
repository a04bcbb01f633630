package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sync/errgroup"

	"twok/arbiter"
	"twok/internal/agent"
	"twok/internal/etcdproc"
)

func agentCommand() *cli.Command {
	return &cli.Command{
		Name:      "agent",
		Usage:     "watch over one member of a pair, and fail over when the other one is lost",
		ArgsUsage: "[-- etcd FLAGS...]",
		Description: `Run one agent beside each of the two etcd members, both with the same --arbiter.

With "-- etcd FLAGS..." the agent runs etcd itself and ends it when it is ended
(supervise). Without, etcd is somebody else's process (kubelet, systemd), found by the
open file member/snap/db; whoever runs it restarts it when the agent has stopped it,
and it stays up when the agent ends (signal). The agent then needs etcd's PID namespace, or
the host's, and etcd's user or CAP_SYS_PTRACE.

While there is a leader the agent does nothing. GET /health on --health-listen tells
its state: 200 while it is armed or leads alone as the survivor, 503 otherwise.

With --check it looks once, with the same flags, at everything that has to be right before
it arms, prints a line for each with what to do, and ends. It may be used beside a running agent
and a running etcd: it stops nothing, takes no lock of theirs, and writes only the probe's
scratch register and, for a moment, scratch directories in the data directory.

Each flag but --check may also come from the environment, as TWOK_ and its name.

Exit codes: 0 ended by SIGTERM or SIGINT, 1 failed, 2 wrong usage; with --check 0 nothing is
in the way (there may be warnings), 1 refused or failed, 2 wrong usage.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "data-dir", Usage: "etcd's data directory", EnvVars: []string{"TWOK_DATA_DIR"}, Required: true},
			&cli.StringFlag{Name: "arbiter", Usage: "the arbiter's `URL`", EnvVars: []string{"TWOK_ARBITER"}, Required: true},
			&cli.StringFlag{Name: "client-url", Usage: "the local etcd's client port", Value: "http://127.0.0.1:2379", EnvVars: []string{"TWOK_CLIENT_URL"}},
			&cli.StringFlag{Name: "peer-url", Usage: "the local etcd's peer port", Value: "http://127.0.0.1:2380", EnvVars: []string{"TWOK_PEER_URL"}},
			&cli.StringFlag{Name: "client-cert", Usage: "certificate for etcd's client ports (with auth on: of a user with the root role)"},
			&cli.StringFlag{Name: "client-key", Usage: "its key"},
			&cli.StringFlag{Name: "client-ca", Usage: "the CA of etcd's client ports"},
			&cli.StringFlag{Name: "peer-cert", Usage: "certificate for etcd's peer ports: the member's own peer certificate"},
			&cli.StringFlag{Name: "peer-key", Usage: "its key"},
			&cli.StringFlag{Name: "peer-ca", Usage: "the CA of etcd's peer ports"},
			&cli.DurationFlag{Name: "claim-after", Usage: "time without a leader until a claim", Value: 20 * time.Second},
			&cli.DurationFlag{Name: "head-start", Usage: "added for every agent but the former leader's", DefaultText: "claim-after/4"},
			&cli.DurationFlag{Name: "election-timeout", Usage: "etcd's election timeout", DefaultText: "as etcd's flags say, else 1s"},
			&cli.DurationFlag{Name: "tick", Usage: "time between two looks at etcd", DefaultText: "claim-after/100, 10ms to 100ms"},
			&cli.DurationFlag{Name: "record-interval", Usage: "time between two reads of the record while the pair is whole", Value: time.Minute},
			&cli.DurationFlag{Name: "token-interval", Usage: "the pair token is written again so often, if anything was written; after a sixth of it if the WAL got two new segments", Value: time.Minute},
			&cli.DurationFlag{Name: "min-run", Usage: "etcd runs at least this long between two stops of a claim", Value: 30 * time.Second},
			&cli.DurationFlag{Name: "hold-down", Usage: "wait before promotion at the second loss within ten minutes, doubling with each; 0: none", Value: 5 * time.Second},
			&cli.StringFlag{Name: "health-listen", Usage: "`HOST:PORT` of the health endpoint", DefaultText: "none"},
			&cli.StringFlag{Name: "trace", Usage: "append each decision to `FILE`, a JSON object a line"},
			&cli.BoolFlag{Name: "check", Usage: "look once whether this member could be armed, and end"},
			&cli.BoolFlag{Name: "json", Usage: "with --check: print one JSON object {ok, data_dir, arbiter, checks: [{name, state, detail, remedy}]}"},
			&cli.StringFlag{Name: "log-level", Usage: "debug, info, warn or error", Value: "info"},
		},
		Action: runAgent,
	}
}

func runAgent(c *cli.Context) (err error) {
	level, err := zap.ParseAtomicLevel(c.String("log-level"))
	if err != nil {
		return usageError("--log-level: %v", err)
	}
	zc := zap.NewProductionConfig()
	zc.Level, zc.Sampling, zc.DisableCaller, zc.DisableStacktrace = level, nil, true, true
	zc.EncoderConfig.EncodeTime = func(t time.Time, e zapcore.PrimitiveArrayEncoder) {
		e.AppendString(t.UTC().Format("2006-01-02T15:04:05.000Z"))
	}
	log, err := zc.Build()
	if err != nil {
		return err
	}
	log = log.Named("twok")
	if c.NArg() > 0 && !dashed(os.Args) {
		return hint(usageError("%q is not a flag of twok agent", c.Args().First()), "put etcd's command behind --")
	}
	for _, name := range []string{"claim-after", "head-start", "election-timeout", "tick", "record-interval", "token-interval", "min-run"} {
		if c.IsSet(name) && c.Duration(name) <= 0 {
			return usageError("--%s is %v: it must be positive", name, c.Duration(name))
		}
	}
	if d := c.Duration("hold-down"); d < 0 {
		return usageError("--hold-down is %v: it must not be negative", d)
	}
	if c.Bool("check") {
		return agentCheck(c)
	}
	if c.Bool("json") && os.Getenv(envName("json")) == "" {
		return usageError("--json goes with --check")
	}
	cfg, err := agentConfig(c, log)
	if err != nil {
		return err
	}
	if err := sameDirectory(cfg); err != nil {
		return err
	}
	if f := c.String("trace"); f != "" {
		w, oerr := openTrace(f)
		if oerr != nil {
			return oerr
		}
		defer func() { err = errors.Join(err, w.Close()) }()
		cfg.Trace = w
	}
	a, err := agent.New(cfg)
	if err != nil {
		return withCode(err, exitUsage)
	}
	var l net.Listener
	if addr := c.String("health-listen"); addr != "" {
		if l, err = net.Listen("tcp", addr); err != nil {
			return hint(err, "--health-listen needs a free port")
		}
	}
	ctx, stop := signal.NotifyContext(c.Context, endSignals()...)
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	done := make(chan struct{})
	g.Go(func() error {
		defer close(done)
		return agentHint(a.Run(gctx))
	})
	if l != nil {
		srv := &http.Server{Handler: a, ReadHeaderTimeout: 5 * time.Second}
		g.Go(func() error {
			if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("health endpoint: %w", err)
			}
			return nil
		})
		g.Go(func() error {
			<-done
			return srv.Close()
		})
	}
	return g.Wait()
}

// endSignals are the signals that end an agent: not those that whoever started it had it ignore (nohup, a shell's
// background), since with a supervised etcd that would end etcd.
func endSignals() []os.Signal {
	sigs := []os.Signal{syscall.SIGTERM}
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			sigs = append(sigs, s)
		}
	}
	return sigs
}

func agentConfig(c *cli.Context, log *zap.Logger) (agent.Config, error) {
	cfg := agent.Config{
		DataDir: c.String("data-dir"), ClientURL: c.String("client-url"), PeerURL: c.String("peer-url"),
		ClaimAfter: c.Duration("claim-after"), HeadStart: c.Duration("head-start"), Election: c.Duration("election-timeout"),
		Tick: c.Duration("tick"), RecordIdle: c.Duration("record-interval"), TokenEach: c.Duration("token-interval"), MinRun: c.Duration("min-run"),
		HoldDown: c.Duration("hold-down"), Logger: log, ArbiterName: c.String("arbiter"), HealthListen: c.String("health-listen"),
	}
	if c.IsSet("hold-down") && cfg.HoldDown == 0 {
		cfg.HoldDown = -1
	}
	var err error
	tell := func(err error) { log.Warn("certificates that cannot be read again", zap.Error(err)) }
	if cfg.Arbiter, err = arbiterRegisterTelling(cfg.ArbiterName, tell); err != nil {
		return cfg, err
	}
	cfg.Scratch = func(suffix string) (arbiter.Register, error) {
		return arbiterRegister(besideRecord(cfg.ArbiterName, suffix))
	}
	cfg.Circular, cfg.ArbiterHost = circular, storeHost(cfg.ArbiterName)
	if cfg.ClientTLS, cfg.ClientRoots, err = tlsConfig(c, "client", tell); err != nil {
		return cfg, err
	}
	if cfg.PeerTLS, cfg.PeerRoots, err = tlsConfig(c, "peer", tell); err != nil {
		return cfg, err
	}
	pc := etcdproc.Config{
		DataDir: cfg.DataDir, Argv: c.Args().Slice(), Logger: log,
		// Not SIGHUP: it would end etcd, as a hang-up ends the agent.
		Forward: []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2},
	}
	if len(pc.Argv) > 0 {
		cfg.Etcd, err = etcdproc.NewSupervisor(pc)
	} else {
		cfg.Etcd, err = etcdproc.NewSignal(pc)
	}
	if err != nil {
		return cfg, err
	}
	if cfg.Election == 0 {
		ctx, cancel := context.WithTimeout(c.Context, 5*time.Second)
		defer cancel()
		if f, ferr := cfg.Etcd.Flags(ctx); ferr == nil {
			cfg.Election = f.Election
		}
	}
	return cfg, nil
}

// sameDirectory refuses to supervise an etcd that says another data directory than the agent's: it would start with
// other data, or with none, as the voter that the pair knows, and the agent would guard data that nobody uses.
func sameDirectory(cfg agent.Config) error {
	command, ok := cfg.Etcd.(etcdproc.Commander)
	if !ok {
		return nil
	}
	told, err := command.Command()
	if err != nil || told.DataDir == "" { // it may be there later, and a wrapper may know; what runs is checked as well
		return nil
	}
	etcds, err := filepath.Abs(told.DataDir)
	if err != nil {
		return err
	}
	own, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return err
	}
	a, aerr := os.Stat(etcds)
	b, berr := os.Stat(own)
	if etcds == own || (aerr == nil && berr == nil && os.SameFile(a, b)) {
		return nil
	}
	return hint(usageError("etcd's command has --data-dir %s, the agent %s", told.DataDir, cfg.DataDir),
		"give both the same --data-dir: another one would make another member of it")
}

// agentHint adds a remedy to what keeps an agent from its start.
func agentHint(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return hint(err, "run the agent as the data directory's owner, which is etcd's user, or as root")
	}
	return err
}

// dashed says whether the command line has a "--", behind which everything is etcd's.
func dashed(args []string) bool {
	for _, a := range args {
		if a == "--" {
			return true
		}
	}
	return false
}

// openTrace opens a file that each decision is appended to.
func openTrace(path string) (*os.File, error) {
	w, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, hint(err, "--trace needs a file that can be written")
	}
	return w, nil
}
