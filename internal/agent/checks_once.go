package agent

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"twok/internal/failover"
	"twok/internal/preflight"
	"twok/internal/probe"
	"twok/walsurgery"
)

// Check looks once at everything that an agent with this configuration looks at before it arms, and says
// what it found. It needs no agent and may run beside one; it stops and locks nothing and writes nothing but the probe's scratch register
// and, for a moment, scratch directories in the data directory. An error: the configuration is wrong, or ctx has ended.
func Check(ctx context.Context, cfg Config) (rs []preflight.Result, err error) {
	a, err := New(cfg)
	if err != nil {
		return nil, err
	}
	a.mem = borrowMemory(a.cfg.DataDir)
	local, err := a.dialer.Client(a.cfg.ClientURL)
	if err != nil {
		return nil, err
	}
	a.watch = &watcher{cfg: a.cfg, dialer: a.dialer, mem: a.mem, log: a.log, local: local}
	defer func() { err = errors.Join(err, local.Close()) }()

	var f preflight.Facts
	a.look(ctx, &f, true)
	a.askArbiter(ctx, &f)
	id := f.Etcd.Member
	if id == 0 { // after a double failure etcd gives no answer, and the agent that is to go on has the port
		id = f.Etcd.Data
	}
	f.Health = preflight.LookHealth(ctx, a.cfg.HealthListen, hex(id))
	return preflight.Run(&f), ctx.Err()
}

// borrowMemory is the memory of the agent of that directory, which may be running: what this process learns stays
// its own. One that cannot be read is empty; that is a check's own finding.
func borrowMemory(dataDir string) *memory {
	m := &memory{}
	if b, err := os.ReadFile(filepath.Join(dataDir, MemoryName)); err != nil || json.Unmarshal(b, &m.d) != nil {
		m.d = memoryFile{}
	}
	if m.d.Seen == nil {
		m.d.Seen = map[string]uint64{}
	}
	return m
}

// askArbiter probes the store, reads the record, and lets the core say whether this member would be armed.
func (a *Agent) askArbiter(ctx context.Context, f *preflight.Facts) {
	id, cluster := f.Etcd.Member, f.Etcd.Cluster
	if id == 0 {
		if md, err := walsurgery.ReadMetadata(a.cfg.walDir()); err == nil {
			id, cluster = md.MemberID, md.ClusterID
		}
	}
	as := a.mem.probeAs(id)
	arb := &f.Arbiter
	arb.Circular = errors.New("etcd does not answer, so its store cannot be compared with the arbiter's")
	if f.Etcd.Err == nil || a.cfg.Circular == nil {
		a.checks.setCircular(a.circular(ctx, as, cluster))
	}
	if a.cfg.Scratch == nil {
		a.checks.setProbe(probe.Report{}, errors.New("no way to a scratch register"))
	} else {
		rep, err := a.probe(ctx, as)
		for try := 0; errors.Is(err, probe.ErrBusy) && try < 5 && sleep(ctx, probeAgain); try++ {
			rep, err = a.probe(ctx, as) // this member's agent probes too, at its start
		}
		a.checks.setProbe(rep, err)
	}
	asked := arb.Circular
	a.checks.arbiter(arb)
	if !arb.Asked {
		arb.Circular = asked
	}
	arb.SharedHost = a.sharedHost()

	a.watch.lookHere(ctx, 0)
	a.watch.lookThere(ctx, 0)
	a.watch.lookAtBinary(ctx, 0)
	switch {
	case arb.IsCircular || arb.Report.Problem != nil:
		a.watch.trust(failover.StoreFaulty)
	case arb.ProbeErr != nil || arb.Circular != nil:
		a.watch.trust(failover.StoreUntested)
	}
	obs := a.watch.take(false)
	tick := failover.Event{Kind: failover.Tick, Ticks: 1, Obs: obs}
	read := failover.Event{Kind: failover.RecordRead}
	rctx, cancel := context.WithTimeout(ctx, a.cfg.arbiterDeadline())
	arb.ReadErr = a.readRecord(rctx, &read)
	cancel()
	arb.Status = read.Status
	s, _ := failover.Step(failover.New(a.cfg.Params(), a.mem.own()), tick)
	asks := s.Arb == failover.ReadRecord
	for _, e := range []failover.Event{read, tick} {
		s, _ = failover.Step(s, e) // what it asks for is not done
	}
	arb.Armed, arb.Reason = s.Armed()
	arb.Assessed = asks && obs.Etcd == failover.EtcdLed && obs.Voters.Count > 0
	arb.Alone = s.Phase == failover.Alone
	if read.Status == failover.Readable {
		r := read.Record
		arb.Record, arb.Cluster, arb.Gen, arb.Written = r.ID, r.ClusterID, r.Generation, time.UnixMilli(r.WrittenAt)
	}
}
