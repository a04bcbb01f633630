package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"twok/internal/failover"
)

// PresencePrefix begins the keys by which two agents know of each other: PresencePrefix and the member ID, bound to a lease
// that the agent keeps alive. A kept lease costs no entry in the log; a lease that ends costs one. No decision rests on them.
const PresencePrefix = "/twok/agent/"

// What an agent knows of the other one.
const (
	OtherUnknown = "unknown" // this is no pair with a leader at the moment, or it was not looked yet
	OtherPresent = "present"
	OtherMissing = "missing" // only one of the two members could take over
)

const (
	presenceTTL   = 20 // seconds; an agent that was killed is missed after so long
	presenceEvery = time.Second
	presenceRenew = 5 * time.Second
	// presencePatience is how long an agent that was not seen yet may take to come.
	presencePatience = 5 * time.Second
)

// presence is this agent's key, and its look at the other one's.
type presence struct {
	mu    sync.Mutex
	state string

	lease   clientv3.LeaseID
	as      uint64 // the member ID in the key
	renewed time.Time
	alone   time.Time // since when the other one is not seen
}

// other is OtherUnknown, OtherPresent or OtherMissing.
func (p *presence) other() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == "" {
		return OtherUnknown
	}
	return p.state
}

// pair is the own and the other voter of a pair with a leader.
func (w *watcher) pair() (self, other uint64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.obs
	if o.Etcd != failover.EtcdLed || o.Learner || o.Voters.Count != 2 {
		return 0, 0, false
	}
	switch o.Member {
	case o.Voters.IDs[0]:
		return o.Member, o.Voters.IDs[1], true
	case o.Voters.IDs[1]:
		return o.Member, o.Voters.IDs[0], true
	}
	return 0, 0, false
}

// bePresent runs until ctx ends.
func (a *Agent) bePresent(ctx context.Context) {
	c, err := a.dialer.Client(a.cfg.ClientURL)
	if err != nil {
		a.log.Warn("the other agent cannot be looked for", zap.Error(err))
		return
	}
	t := time.NewTicker(presenceEvery)
	defer t.Stop()
	for {
		if self, other, ok := a.watch.pair(); ok {
			call, cancel := context.WithTimeout(ctx, a.cfg.callDeadline())
			err := errors.Join(a.presence.announce(call, c, self), a.presence.look(call, c, other, a.log))
			cancel()
			if err != nil && ctx.Err() == nil {
				a.log.Debug("presence", zap.Error(err))
			}
		} else {
			a.presence.forget()
		}
		select {
		case <-ctx.Done():
			a.presence.leave(c, a)
			return
		case <-t.C:
		}
	}
}

// announce keeps the own key there.
func (p *presence) announce(ctx context.Context, c *clientv3.Client, self uint64) error {
	if p.lease != 0 && p.as == self {
		if time.Since(p.renewed) < presenceRenew {
			return nil
		}
		_, err := c.KeepAliveOnce(ctx, p.lease)
		switch {
		case err == nil:
			p.renewed = time.Now()
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			p.lease = 0
		}
		if err != nil {
			return fmt.Errorf("keep the lease of %s%016x: %w", PresencePrefix, self, err)
		}
		return nil
	}
	if p.lease != 0 { // this member has another ID by now
		if _, err := c.Revoke(ctx, p.lease); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return fmt.Errorf("give up the lease of %s%016x: %w", PresencePrefix, p.as, err)
		}
		p.lease = 0
	}
	l, err := c.Grant(ctx, presenceTTL)
	if err != nil {
		return fmt.Errorf("a lease for %s%016x: %w", PresencePrefix, self, err)
	}
	if _, err := c.Put(ctx, fmt.Sprintf("%s%016x", PresencePrefix, self), "", clientv3.WithLease(l.ID)); err != nil {
		return fmt.Errorf("write %s%016x: %w", PresencePrefix, self, err) // the lease ends by itself
	}
	p.lease, p.as, p.renewed = l.ID, self, time.Now()
	return nil
}

// look reads the other one's key, as this member has it.
func (p *presence) look(ctx context.Context, c *clientv3.Client, other uint64, log *zap.Logger) error {
	get, err := c.Get(ctx, fmt.Sprintf("%s%016x", PresencePrefix, other), clientv3.WithSerializable(), clientv3.WithKeysOnly())
	if err != nil {
		return fmt.Errorf("read %s%016x: %w", PresencePrefix, other, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.state
	switch {
	case len(get.Kvs) > 0:
		p.state, p.alone = OtherPresent, time.Time{}
	case p.alone.IsZero() && before != OtherPresent:
		p.alone = time.Now()
	case before == OtherPresent || time.Since(p.alone) >= presencePatience:
		p.state = OtherMissing
	}
	if p.state == before {
		return nil
	}
	if p.state == OtherMissing {
		log.Warn("the other member has no agent: if this member is lost, nobody takes over; start its agent", zap.String("member", hex(other)))
	} else if before == OtherMissing {
		log.Info("the other member has an agent again", zap.String("member", hex(other)))
	}
	return nil
}

func (p *presence) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.alone = OtherUnknown, time.Time{}
}

// leave gives the lease up, so that the other agent knows at once; without a leader the lease ends by itself.
func (p *presence) leave(c *clientv3.Client, a *Agent) {
	if _, _, ok := a.watch.pair(); ok && p.lease != 0 {
		ctx, cancel := context.WithTimeout(context.Background(), a.cfg.callDeadline())
		defer cancel()
		if _, err := c.Revoke(ctx, p.lease); err != nil {
			a.log.Info("the lease could not be given up, it ends by itself", zap.Error(err))
		}
	}
	if err := c.Close(); err != nil {
		a.log.Debug("presence", zap.Error(err))
	}
}
