package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/arbiter"
	"twok/internal/etcdapi"
	"twok/internal/member"
	"twok/internal/preflight"
	"twok/walsurgery"
)

// look sees what a running agent and a check without one see alike.
func (a *Agent) look(ctx context.Context, f *preflight.Facts, deep bool) {
	cfg := a.cfg
	f.Now = time.Now()
	f.Settings = preflight.Settings{DataDir: cfg.DataDir, ClientURL: cfg.ClientURL, PeerURL: cfg.PeerURL,
		ClaimAfter: cfg.ClaimAfter, Election: cfg.Election, HealthListen: cfg.HealthListen}
	if deep {
		f.Dir = preflight.LookDir(cfg.DataDir, MemoryName)
		f.Trial = preflight.LookTrial(cfg.DataDir)
		f.Locks = preflight.LookLocks(cfg.DataDir)
	}
	f.Space = preflight.LookSpace(cfg.DataDir)
	a.lookProcess(ctx, f)
	ms := a.lookMembers(ctx, &f.Etcd)
	for range 5 { // a return changes the ID in the log, and then etcd's: one may be seen without the other
		if f.Etcd.Member == 0 || f.Etcd.Data == 0 || f.Etcd.Member == f.Etcd.Data || !sleep(ctx, 300*time.Millisecond) {
			break
		}
		ms = a.lookMembers(ctx, &f.Etcd)
	}
	a.lookOthers(ctx, f, ms)
	if deep {
		a.lookCertificates(ctx, f, ms)
	}
	f.Client.TLS, f.Peer.TLS = strings.HasPrefix(cfg.ClientURL, "https:"), strings.HasPrefix(cfg.PeerURL, "https:")
}

// lookProcess looks at etcd's process and at the WAL's lock until they agree: an etcd that starts, or ends, has
// one without the other for a moment.
func (a *Agent) lookProcess(ctx context.Context, f *preflight.Facts) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for range 15 {
		f.Process = preflight.LookProcess(ctx, a.cfg.Etcd, staleReads)
		f.Locks.WALHeld, f.Locks.WAL = walsurgery.Locked(a.cfg.walDir())
		if f.Locks.WAL != nil || f.Process.Err != nil || f.Process.Waiting || f.Process.Running == f.Locks.WALHeld || !sleep(ctx, 200*time.Millisecond) {
			return
		}
	}
}

// checkDeadline is what one call of a check may take.
const checkDeadline = 3 * time.Second

// lookMembers reads the member list, linearizably, and the token's key through the local client port.
func (a *Agent) lookMembers(ctx context.Context, e *preflight.Etcd) []etcdapi.Member {
	*e = preflight.Etcd{}
	if md, err := walsurgery.ReadMetadata(a.cfg.walDir()); err == nil { // what is wrong with it is the check of the WAL's
		e.Data = md.MemberID
	}
	pctx, cancel := context.WithTimeout(ctx, checkDeadline)
	_, _, e.Peer = a.dialer.PeerVersion(pctx, a.cfg.PeerURL)
	cancel()
	ctx, cancel = context.WithTimeout(ctx, checkDeadline)
	defer cancel()
	resp, err := a.watch.local.MemberList(ctx)
	if err != nil {
		e.Err = a.why(a.cfg.ClientURL, err)
		return nil
	}
	st, err := etcdapi.Status(ctx, a.watch.local)
	if err != nil {
		e.Err = err
		return nil
	}
	e.Member, e.Cluster, e.Leader = st.Header.MemberId, st.Header.ClusterId, st.Leader
	for _, s := range st.Errors {
		e.Alarm = e.Alarm || strings.Contains(s, "NOSPACE")
	}
	var ms []etcdapi.Member
	for _, m := range resp.Members {
		ms = append(ms, etcdapi.Member{ID: m.ID, Name: m.Name, PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs, Learner: m.IsLearner})
		name := called(m.Name, m.ID)
		if m.IsLearner {
			e.Learners = append(e.Learners, name)
			continue
		}
		e.Voters = append(e.Voters, name)
		e.Listed = e.Listed || m.ID == e.Member
	}
	get, err := a.watch.local.Get(ctx, member.TokenKey, clientv3.WithSerializable(), clientv3.WithKeysOnly())
	e.Token, e.HasToken = err, err == nil && len(get.Kvs) > 0
	return ms
}

// why adds to an error of a client port what a plain look at it says: gRPC's own is "deadline exceeded" mostly.
func (a *Agent) why(clientURL string, err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), checkDeadline)
	defer cancel()
	if cause := preflight.LookPort(ctx, etcdapi.WithRoots(a.cfg.ClientTLS, a.cfg.ClientRoots), clientURL); cause != nil {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

func called(name string, id uint64) string {
	if name == "" {
		return arbiter.FormatID(id)
	}
	return name
}

// lookOthers asks the other voters at the URLs that they advertise.
func (a *Agent) lookOthers(ctx context.Context, f *preflight.Facts, ms []etcdapi.Member) {
	f.Other = nil
	ctx, cancel := context.WithTimeout(ctx, checkDeadline)
	defer cancel()
	for _, m := range ms {
		if m.ID == f.Etcd.Member || m.Learner {
			continue
		}
		o := preflight.Other{Name: called(m.Name, m.ID), Peer: errors.New("it advertises no peer URL")}
		for _, u := range m.PeerURLs {
			if o.Version, _, o.Peer = a.dialer.PeerVersion(ctx, u); o.Peer == nil {
				break
			}
		}
		if len(m.ClientURLs) == 0 {
			o.Client = errors.New("it has not published its client URLs yet")
		} else if c, err := a.dialer.Client(m.ClientURLs...); err != nil {
			o.Client = err
		} else {
			st, err := c.MemberList(ctx, clientv3.WithSerializable())
			if err != nil {
				err = a.why(m.ClientURLs[0], err)
			}
			o.Client = errors.Join(err, c.Close())
			o.Self = err == nil && st.Header.MemberId == f.Etcd.Member
		}
		f.Other = append(f.Other, o)
	}
}

// lookCertificates looks at the agent's own, and dials both kinds of port of all members.
func (a *Agent) lookCertificates(ctx context.Context, f *preflight.Facts, ms []etcdapi.Member) {
	ctx, cancel := context.WithTimeout(ctx, checkDeadline)
	defer cancel()
	client, peer := []string{a.cfg.ClientURL}, []string{a.cfg.PeerURL}
	for _, m := range ms {
		if m.ID != f.Etcd.Member {
			client, peer = append(client, m.ClientURLs...), append(peer, m.PeerURLs...)
		}
	}
	for _, k := range []struct {
		to    *preflight.Certificates
		cfg   *tls.Config
		roots func() *x509.CertPool
		what  string
		urls  []string
	}{
		{&f.Client, a.cfg.ClientTLS, a.cfg.ClientRoots, "--client-cert", client},
		{&f.Peer, a.cfg.PeerTLS, a.cfg.PeerRoots, "--peer-cert", peer},
	} {
		k.to.Own, k.to.Served = preflight.LookOwn(k.cfg, k.what), nil
		k.cfg = etcdapi.WithRoots(k.cfg, k.roots)
		served := make([]*preflight.Certificate, len(k.urls))
		var g sync.WaitGroup
		for i, u := range k.urls {
			if strings.HasPrefix(u, "https:") {
				g.Go(func() {
					c := preflight.LookServed(ctx, k.cfg, u, f.Now)
					c.Local = i == 0
					served[i] = &c
				})
			}
		}
		g.Wait()
		for _, c := range served {
			if c != nil {
				k.to.Served = append(k.to.Served, *c)
			}
		}
	}
}

// leaf is the certificate that cfg presents now, as bytes to compare.
func leaf(cfg *tls.Config) []byte {
	if cfg == nil || cfg.GetClientCertificate == nil {
		return nil
	}
	pair, err := cfg.GetClientCertificate(&tls.CertificateRequestInfo{Version: tls.VersionTLS13})
	if err != nil || len(pair.Certificate) == 0 {
		return nil
	}
	return pair.Certificate[0]
}

// barred is what is known of a client port that speaks of certificates instead of answering.
type barred struct {
	is       bool
	at, last time.Time // of the last look, and of the last one that found it so
}

// barredAfter: once the port takes our certificate the client, which waits between two tries, needs a moment.
const barredAfter = 5 * time.Second

// barredFrom says whether the local client port is up and one of the certificates, its own or ours, keeps us out.
// It is asked while the port gives no answer, by lookHere alone, and looks once a second.
func (w *watcher) barredFrom(ctx context.Context) bool {
	if !strings.HasPrefix(w.cfg.ClientURL, "https:") {
		return false
	}
	if time.Since(w.barred.at) > time.Second {
		ctx, cancel := context.WithTimeout(ctx, w.cfg.probeDeadline())
		defer cancel()
		err := preflight.LookPort(ctx, etcdapi.WithRoots(w.cfg.ClientTLS, w.cfg.ClientRoots), w.cfg.ClientURL)
		w.barred.is, w.barred.at = preflight.OfCertificates(err), time.Now()
		if w.barred.is {
			w.barred.last = w.barred.at
		}
	}
	return w.barred.is || time.Since(w.barred.last) < barredAfter
}
