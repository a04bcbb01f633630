package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/internal/lab"
	"twok/testing/cluster"
)

// failover is a cut, a survivor, and its end.
func failover(ctx context.Context, s *Stage) error {
	return do(ctx, now(s.CutLink), s.Resumes, now(s.HealLink))
}

func settings() []Fault {
	all := []Fault{
		{
			Name: "tls", About: "certificates on all ports: a cut, then the loss of the target", Claims: 2, Roles: both,
			Prepare: func(o *cluster.Options) { o.TLS = true },
			Run: func(ctx context.Context, s *Stage) error {
				return do(ctx, func(ctx context.Context) error { return failover(ctx, s) },
					func(ctx context.Context) error { _, err := s.Whole(ctx); return err },
					func(context.Context) error { return s.Kill(s.Target) }, s.Resumes, func(context.Context) error { return s.Up(s.Target) })
			},
		},
		{
			Name: "auth", About: "authentication is on, by certificate: a cut", Rows: []string{"F25"}, Claims: 1, Roles: []string{Pair},
			Prepare: func(o *cluster.Options) { o.TLS, o.Auth = true, true },
			Run:     func(ctx context.Context, s *Stage) error { return failover(ctx, s) },
		},
		{
			Name: "auth-simple", About: "clients log in with a password and get simple tokens, which a member forgets when it restarts: the target is lost and returns, and all clients go on", Rows: []string{"F25"}, Claims: 1, Roles: both,
			Prepare: func(o *cluster.Options) { o.TLS, o.Auth, o.Tokens = true, true, "simple" },
			Run:     func(ctx context.Context, s *Stage) error { return passwords(ctx, s, false) },
		},
		{
			Name: "auth-jwt", About: "clients log in with a password and get JWT tokens: the target is lost and returns, and takes the tokens of before", Rows: []string{"F25"}, Claims: 1, Roles: both,
			Prepare: func(o *cluster.Options) { o.TLS, o.Auth, o.Tokens = true, true, "jwt" },
			Run:     func(ctx context.Context, s *Stage) error { return passwords(ctx, s, true) },
		},
		{
			Name: "rotation", About: "the certificates are replaced: no role and no generation changes; then a cut", Rows: []string{"F12"}, Claims: 1, Roles: []string{Pair},
			Prepare: func(o *cluster.Options) { o.TLS = true },
			Run: func(ctx context.Context, s *Stage) error {
				before, err := s.Record(ctx)
				if err != nil {
					return err
				}
				s.Note("new certificates")
				err = do(ctx, now(s.Rotate), func(ctx context.Context) error { return s.Writes(ctx, 100) },
					func(ctx context.Context) error { return s.Wait(ctx, 2*time.Second) })
				if err != nil {
					return err
				}
				for _, site := range lab.Sites {
					if err := s.Serves(ctx, site); err != nil {
						return fmt.Errorf("the rotation: %w", err)
					}
				}
				after, err := s.Whole(ctx)
				if err != nil {
					return err
				}
				if after.Generation != before.Generation || after.WholeMembers != before.WholeMembers {
					return fmt.Errorf("the rotation changed generation %d and members %x to %d and %x", before.Generation, before.WholeMembers, after.Generation, after.WholeMembers)
				}
				return failover(ctx, s)
			},
		},
		{
			Name: "local-peer", About: "the agents ask their own etcd's peer port at loopback; the target is lost, and returns at the URL that it advertises", Claims: 1, Roles: both,
			Needs: Needs{Namespaces: true}, Prepare: func(o *cluster.Options) { o.LocalPeer = true },
			Run: func(ctx context.Context, s *Stage) error {
				s.AtEnd(func(ctx context.Context) error {
					return s.Client(s.Other(), func(cl *clientv3.Client) error {
						list, err := cl.MemberList(ctx)
						if err != nil {
							return err
						}
						for _, m := range list.Members {
							if len(m.PeerURLs) != 1 || m.PeerURLs[0] != s.Site("a").AdvertisedPeerURL && m.PeerURLs[0] != s.Site("b").AdvertisedPeerURL {
								return fmt.Errorf("the member %x is listed at %q", m.ID, m.PeerURLs)
							}
						}
						return nil
					})
				})
				return do(ctx, func(context.Context) error { return s.Kill(s.Target) }, s.Resumes, func(context.Context) error { return s.Up(s.Target) })
			},
		},
		{
			Name: "snapshot", About: "the survivor writes so much that the loser returns by a snapshot", Rows: []string{"F24", "F27"}, Claims: 1, Roles: []string{Pair},
			Prepare: func(o *cluster.Options) { o.EtcdFlags = append(o.EtcdFlags, "--snapshot-count", "500") },
			Run:     snapshot,
		},
		{
			Name: "snapshot-often", About: "a snapshot every 50 entries, through two failovers", Claims: 2, Roles: both,
			Prepare: func(o *cluster.Options) { o.EtcdFlags = append(o.EtcdFlags, "--snapshot-count", "50") },
			Run: func(ctx context.Context, s *Stage) error {
				return do(ctx, func(ctx context.Context) error { return failover(ctx, s) },
					func(ctx context.Context) error { _, err := s.Whole(ctx); return err },
					func(context.Context) error { return s.Kill(s.Target) }, s.Resumes, func(context.Context) error { return s.Up(s.Target) })
			},
		},
		{
			Name: "compaction", About: "etcd is compacted and defragmented all the time, by clients and by itself (periodic, 2 s), through a failover and a return", Claims: 2, Roles: both, Compacts: true,
			Prepare: func(o *cluster.Options) {
				o.EtcdFlags = append(o.EtcdFlags, "--auto-compaction-mode", "periodic", "--auto-compaction-retention", "2s")
			},
			Run: func(ctx context.Context, s *Stage) error {
				s.AtEnd(s.autoCompacted)
				busy, stop := context.WithCancel(ctx)
				ended := make(chan int, 1)
				go func() { ended <- s.compactAll(busy) }()
				err := do(ctx, func(ctx context.Context) error { return s.Wait(ctx, time.Second) }, func(ctx context.Context) error { return failover(ctx, s) },
					func(ctx context.Context) error { _, err := s.Whole(ctx); return err },
					func(context.Context) error { return s.Kill(s.Target) }, s.Resumes, func(context.Context) error { return s.Up(s.Target) },
					func(ctx context.Context) error { _, err := s.Whole(ctx); return err })
				stop()
				if n := <-ended; err == nil && n < 10 {
					err = fmt.Errorf("only %d compactions and defragmentations were made: this showed nothing", n)
				}
				return err
			},
		},
	}
	return append(all, expiries()...)
}

// autoCompacted waits for a leader that has compacted by itself. Either member may be it.
func (s *Stage) autoCompacted(ctx context.Context) error {
	return s.Until(ctx, "etcd compacts by itself", func(context.Context) error {
		for _, site := range lab.Sites {
			for _, path := range []string{s.Site(site).AgentLog, s.Site(site).EtcdLog} {
				if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), "completed auto periodic compaction") {
					return nil
				}
			}
		}
		return errors.New("no log says so")
	})
}

// passwords: the target is lost and returns. lasting says whether a token outlives the restart of the member that gave it.
func passwords(ctx context.Context, s *Stage, lasting bool) error {
	tokens := map[string]string{}
	for _, site := range lab.Sites {
		var err error
		if tokens[site], err = s.LogIn(ctx, site); err != nil {
			return err
		}
		for _, at := range lab.Sites { // whoever gave it, both members know it
			if err := s.Until(ctx, "the token is taken", func(ctx context.Context) error { return s.Takes(ctx, at, tokens[site]) }); err != nil {
				return err
			}
		}
	}
	s.Note("without a token both members refuse, with one of either both answer")
	// etcd writes its database ten times a second: from then on a restart does not make the logins of the log again.
	err := do(ctx, func(ctx context.Context) error { return s.Wait(ctx, time.Second) }, func(context.Context) error { return s.Kill(s.Target) }, s.Resumes,
		func(context.Context) error { return s.Up(s.Target) },
		func(ctx context.Context) error { _, err := s.Whole(ctx); return err })
	if err != nil {
		return err
	}
	for _, site := range lab.Sites {
		if err := s.WritesAt(ctx, site, 50); err != nil {
			return fmt.Errorf("the clients of %s go on: %w", site, err)
		}
		for _, at := range lab.Sites { // each etcd was started anew, with its log or for the claim
			err := s.Takes(ctx, at, tokens[site])
			if lasting && err != nil || !lasting && !errors.Is(err, rpctypes.ErrInvalidAuthToken) {
				return fmt.Errorf("a token of %s from before, at %s now: %w", site, at, err)
			}
		}
		if _, err := s.LogIn(ctx, site); err != nil {
			return err
		}
	}
	return nil
}

// compactAll compacts and defragments at both members until ctx ends, and counts what succeeded.
func (s *Stage) compactAll(ctx context.Context) (n int) {
	for ctx.Err() == nil {
		for _, site := range lab.Sites {
			err := s.Client(site, func(cl *clientv3.Client) error {
				cctx, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				st, err := cl.Status(cctx, s.Site(site).ClientURL)
				if err != nil {
					return err
				}
				_, cerr := cl.Compact(cctx, max(1, st.Header.Revision-100), clientv3.WithCompactPhysical())
				_, derr := cl.Defragment(cctx, s.Site(site).ClientURL)
				for _, err := range []error{cerr, derr} {
					if err == nil {
						n++
					}
				}
				return nil
			})
			if err != nil {
				pause(ctx, 100*time.Millisecond) // it is down, or has no leader
			}
		}
		pause(ctx, 200*time.Millisecond)
	}
	return n
}

// snapshot writes more than etcd keeps in its log, and says that a snapshot was sent.
func snapshot(ctx context.Context, s *Stage) error {
	if err := do(ctx, now(s.CutLink), s.Resumes); err != nil {
		return err
	}
	rec, err := s.Record(ctx)
	if err != nil {
		return err
	}
	survivor := rec.Survivor.Name
	bulk, err := lab.StartWriter(lab.WriterConfig{Endpoints: []string{s.Site(survivor).ClientURL}, Clients: 64, Deadline: 5 * time.Second, Prefix: "/bulk/"})
	if err != nil {
		return err
	}
	err = s.Until(ctx, "write much", func(context.Context) error {
		if n := bulk.Acked(); n < 7000 {
			return fmt.Errorf("%d of 7000 writes so far", n)
		}
		return nil
	})
	bulk.Stop()
	s.Note("%d writes more", bulk.Acked())
	s.AtEnd(func(ctx context.Context) error {
		r, err := lab.Audit(ctx, bulk, s.AuditMembers())
		if err == nil && !r.OK() {
			err = errors.New(r.String())
		}
		if err != nil {
			return fmt.Errorf("the many writes: %w", err)
		}
		for _, path := range []string{s.Site(lab.Other(survivor)).AgentLog, s.Site(lab.Other(survivor)).EtcdLog} {
			if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), "received and saved database snapshot") {
				return nil
			}
		}
		return errors.New("the loser received no snapshot: this showed nothing")
	})
	return errors.Join(err, s.HealLink())
}
