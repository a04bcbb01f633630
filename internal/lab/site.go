package lab

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Site is one member's site: its etcd, its agent and what restarts etcd. Its
// methods that start or end processes are for one goroutine at a time.
type Site struct {
	Name    string
	Dir     string // the site's directory
	DataDir string // etcd's --data-dir

	ClientURL, PeerURL                     string // the real ports: local clients and the agent
	AdvertisedClientURL, AdvertisedPeerURL string // through the network: the other site
	HealthURL                              string // the agent's health endpoint

	EtcdLog, AgentLog, Trace string // files

	c         *Cluster
	change    change
	health    string
	arbiter   string
	restarter *restarter // mode External
	etcd      *proc      // mode Plain
	agent     *proc
}

// EtcdArgs is the command line of the site's etcd, its program first.
func (s *Site) EtcdArgs() []string {
	cfg := s.c.cfg
	bin := cfg.Etcd
	if b, ok := cfg.EtcdOf[s.Name]; ok {
		bin = b
	}
	if s.change.etcd.Etcd != "" {
		bin = s.change.etcd
	}
	initial := ""
	for _, name := range Sites {
		if initial != "" {
			initial += ","
		}
		initial += name + "=" + s.c.sites[name].AdvertisedPeerURL
	}
	args := []string{
		bin.Etcd,
		"--name", s.Name,
		"--data-dir", s.DataDir,
		"--listen-client-urls", s.ClientURL,
		"--advertise-client-urls", s.AdvertisedClientURL,
		"--listen-peer-urls", s.PeerURL,
		"--initial-advertise-peer-urls", s.AdvertisedPeerURL,
		"--initial-cluster", initial,
		"--initial-cluster-token", "twok-lab",
		"--initial-cluster-state", "new",
	}
	if t := cfg.Timing; t != Default {
		args = append(args,
			"--heartbeat-interval", strconv.FormatInt(t.Heartbeat.Milliseconds(), 10),
			"--election-timeout", strconv.FormatInt(t.Election.Milliseconds(), 10))
	}
	args = append(args, cfg.TLS.etcdFlags()...)
	return append(append(args, cfg.EtcdFlags...), s.change.etcdFlags...)
}

// AgentArgs is the command line of the site's agent, its program first.
func (s *Site) AgentArgs() []string {
	cfg := s.c.cfg
	args := []string{
		cfg.Twok, "agent",
		"--data-dir", s.DataDir,
		"--client-url", s.ClientURL,
		"--peer-url", s.PeerURL,
		"--arbiter", s.arbiter,
		"--trace", s.Trace,
		"--health-listen", s.health,
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"--claim-after", cfg.ClaimAfter}, {"--head-start", cfg.HeadStart}, {"--tick", cfg.Tick}} {
		if f.d != 0 {
			args = append(args, f.name, f.d.String())
		}
	}
	if cfg.Timing != Default && s.mode() != Supervise { // with etcd's flags behind "--" the agent knows
		args = append(args, "--election-timeout", cfg.Timing.Election.String())
	}
	args = append(args, cfg.TLS.agentFlags()...)
	args = append(append(args, cfg.AgentFlags...), s.change.agentFlags...)
	if s.mode() == Supervise {
		args = append(append(args, "--"), s.EtcdArgs()...)
	}
	return args
}

func (s *Site) runEtcd() (*proc, error) {
	return s.c.procs.start(s.Name, s.EtcdLog, nil, s.EtcdArgs()...)
}

// Start starts what is not running: etcd (or its restarter) and the agent.
func (s *Site) Start() error {
	return errors.Join(s.StartEtcd(), s.StartAgent())
}

// StartEtcd starts etcd, or lets the restarter do so. In mode Supervise that is
// the agent's part and nothing happens.
func (s *Site) StartEtcd() error {
	switch s.mode() {
	case External:
		s.restarter.setPaused(false)
	case Plain:
		if s.etcd.alive() {
			return nil
		}
		x, err := s.runEtcd()
		if err != nil {
			return err
		}
		s.etcd = x
	}
	return nil
}

// StartAgent starts the agent, in every mode but Plain.
func (s *Site) StartAgent() error {
	if s.c.cfg.Mode == Plain || s.agent.alive() {
		return nil
	}
	x, err := s.c.procs.start(s.Name, s.AgentLog, append(slices.Clone(s.c.cfg.AgentEnv), s.change.agentEnv...), s.AgentArgs()...)
	if err != nil {
		return err
	}
	s.agent = x
	return nil
}

// Kill ends everything of the site at once by SIGKILL. Start brings it back.
func (s *Site) Kill() error {
	if s.restarter != nil {
		s.restarter.setPaused(true)
	}
	if err := s.c.procs.kill(s.Name); err != nil {
		return err
	}
	s.reap()
	return nil
}

// Stop ends everything of the site by SIGTERM, agent first, and by SIGKILL what
// is left 20 seconds later.
func (s *Site) Stop() error {
	if s.restarter != nil {
		s.restarter.setPaused(true)
	}
	s.StopAgent()
	return s.StopEtcd()
}

// StopAgent ends the agent by SIGTERM.
func (s *Site) StopAgent() { s.agent.end(syscall.SIGTERM, 20*time.Second) }

// KillAgent ends the agent alone by SIGKILL.
func (s *Site) KillAgent() { s.agent.end(syscall.SIGKILL, time.Minute) }

// AgentAlive says whether the agent runs.
func (s *Site) AgentAlive() bool { return s.agent.alive() }

// AgentPID is the agent's process, 0 if it does not run.
func (s *Site) AgentPID() int {
	if !s.agent.alive() {
		return 0
	}
	return s.agent.pid()
}

// EtcdPID is the process that runs the site's etcd program, 0 if there is none.
func (s *Site) EtcdPID() (int, error) {
	pids, err := s.c.procs.marked(s.Name)
	if err != nil {
		return 0, err
	}
	program := s.EtcdArgs()[0]
	for _, pid := range pids {
		// A wrapper that execs etcd is etcd by then.
		exe, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
		if err == nil && (exe == program || filepath.Base(exe) == "etcd") {
			return pid, nil
		}
	}
	return 0, nil
}

// SignalEtcd sends sig to the site's etcd; none running is an error.
func (s *Site) SignalEtcd(sig syscall.Signal) error {
	pid, err := s.EtcdPID()
	if err != nil {
		return err
	}
	if pid == 0 {
		return fmt.Errorf("send %s to the etcd of %s: it does not run", sig, s.Name)
	}
	return syscall.Kill(pid, sig)
}

// StopEtcd ends etcd by SIGTERM and waits; after 20 s by SIGKILL. The restarter,
// or a supervising agent, starts it again unless it was paused or stopped.
func (s *Site) StopEtcd() error { return s.endEtcd(syscall.SIGTERM) }

// KillEtcd is StopEtcd by SIGKILL.
func (s *Site) KillEtcd() error { return s.endEtcd(syscall.SIGKILL) }

func (s *Site) endEtcd(sig syscall.Signal) error {
	pid, err := s.EtcdPID()
	if err != nil {
		return err
	}
	if pid == 0 {
		// None, or one that ends by itself: on its way out a process has no environment to find it by, and is not dead yet.
		return s.ended(20 * time.Second)
	}
	send := func(sig syscall.Signal) error {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("send %s to the etcd of %s: %w", sig, s.Name, err)
		}
		return nil
	}
	if err := send(sig); err != nil {
		return err
	}
	deadline := time.Now().Add(20 * time.Second)
	for !dying(filepath.Join("/proc", strconv.Itoa(pid))) {
		if time.Now().After(deadline) {
			if err := send(syscall.SIGKILL); err != nil {
				return err
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.reap()
	return nil
}

// ended waits for the end of an etcd that this program started itself.
func (s *Site) ended(patience time.Duration) error {
	x := s.etcd
	if s.mode() == External {
		x = s.restarter.running()
	}
	if !x.alive() {
		return nil
	}
	select {
	case <-x.done:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("process %d, the etcd of %s, is not to be found and does not end", x.pid(), s.Name)
	}
}

// reap waits until this program knows of the end of the site's processes that ended.
func (s *Site) reap() {
	for _, x := range []*proc{s.etcd, s.agent} {
		if x != nil && dying(filepath.Join("/proc", strconv.Itoa(x.pid()))) {
			<-x.done
		}
	}
}

// PauseRestarter keeps the restarter of mode External from starting etcd again.
func (s *Site) PauseRestarter() { s.restarter.setPaused(true) }

// Client is a client of this member's real client port alone. The caller closes it.
func (s *Site) Client() (*clientv3.Client, error) {
	cfg, err := s.c.cfg.TLS.Client()
	if err != nil {
		return nil, err
	}
	return dialEtcd(s.ClientURL, cfg)
}

// WaitServing waits until the member answers a linearizable read.
func (s *Site) WaitServing(ctx context.Context) error {
	cl, err := s.Client()
	if err != nil {
		return err
	}
	defer cl.Close()
	for {
		try, cancel := context.WithTimeout(ctx, time.Second)
		_, err := cl.Get(try, "/")
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait for the etcd of %s at %s: %w: %w; see %s", s.Name, s.ClientURL, ctx.Err(), err, s.EtcdLog)
		}
		if s.c.cfg.Mode == Plain && !s.etcd.alive() {
			return fmt.Errorf("the etcd of %s ended: %s; see %s", s.Name, lastLine(s.EtcdLog), s.EtcdLog)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// dialEtcd is a client of one endpoint that notices soon when a member is back.
func dialEtcd(endpoint string, cfg *tls.Config) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint},
		TLS:       cfg,
		Logger:    zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.3, Jitter: 0.1, MaxDelay: 100 * time.Millisecond},
			MinConnectTimeout: time.Second,
		})},
	})
}

// lastLine is the end of a log, for messages.
func lastLine(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if fi, err := f.Stat(); err == nil && fi.Size() > 4096 {
		f.Seek(-4096, io.SeekEnd)
	}
	data, _ := io.ReadAll(f)
	last := ""
	for line := range splitLines(data) {
		if line != "" {
			last = line
		}
	}
	return last
}
