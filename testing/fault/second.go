package fault

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"twok/internal/lab"
	"twok/testing/cluster"
	"twok/walsurgery"
)

// What many has.
const (
	watchers  = 1000
	leases    = 10_000
	watchKeys = 100
)

// What big writes: 1 GiB, in values that etcd's limit of a request lets through.
const (
	bigValues = 1024
	bigValue  = 1 << 20
	bigSpace  = 14 << 30 // free for two databases, their logs, one set-aside directory and what a snapshot takes on its way
)

// second are faults that take long or are seldom met; they are there by selection.
func second() []Fault {
	return []Fault{
		{
			Name: "mixed-versions", About: "site b has the minor version below: lost, it cannot return to the newer survivor and says so; upgraded, it returns", Roles: []string{Pair},
			Needs:   Needs{Minors: []string{"3.6", "3.7"}},
			Prepare: func(o *cluster.Options) { o.MinorOf = map[string]string{"b": below(o.Minor)} },
			Run:     mixed,
		},
		{
			Name: "many", About: "1,000 watches and 10,000 leases through a failover and a return", Roles: both,
			Run: many,
		},
		{
			Name: "wal-dir", About: "etcd has --wal-dir: both agents say so and do not arm, cut apart nobody writes; the log moved into the data directory, the pair arms", Roles: []string{Pair},
			Prepare: func(o *cluster.Options) {
				o.Unarmed = true
				o.SiteEtcdFlags = map[string][]string{}
				for _, site := range lab.Sites {
					o.SiteEtcdFlags[site] = []string{"--wal-dir", filepath.Join(o.Dir, site, "wal-apart")}
				}
			},
			Run: walDir,
		},
		{
			Name: "big", About: "a database of 1 GB: the target returns by log, and then with nothing, by a snapshot", Roles: both, Slow: true,
			Prepare: func(o *cluster.Options) {
				// The log is purged as it grows, as a large database's is.
				o.EtcdFlags = append(o.EtcdFlags, "--quota-backend-bytes", "8589934592", "--snapshot-count", "200")
			},
			Run: big,
		},
	}
}

func below(minor string) string { return lab.Minors[max(0, slices.Index(lab.Minors, minor)-1)] }

// mixed: whichever member led, the newer one survives.
func mixed(ctx context.Context, s *Stage) error {
	const newer, older = "a", "b"
	if err := do(ctx, func(context.Context) error { return s.Kill(older) }, s.Resumes); err != nil {
		return err
	}
	err := s.Until(ctx, "the cluster version rises", func(ctx context.Context) error {
		st, err := s.Site(newer).Status(ctx)
		if err == nil && st.StorageVersion != s.Options.Minor+".0" {
			err = fmt.Errorf("the storage version is %s", st.StorageVersion)
		}
		return err
	})
	if err != nil {
		return err
	}
	wal := filepath.Join(s.Site(older).DataDir, "member", "wal")
	before, err := walsurgery.ReadMetadata(wal)
	if err != nil {
		return err
	}
	if err := do(ctx, func(context.Context) error { return s.Up(older) }, func(ctx context.Context) error { return s.Reason(ctx, older, "version-too-old") }); err != nil {
		return err
	}
	s.Note("%s says version-too-old", older)
	if err := s.Wait(ctx, s.Between(time.Second, 3*time.Second)); err != nil {
		return err
	}
	err = s.Client(newer, func(cl *clientv3.Client) error {
		list, err := cl.MemberList(ctx)
		if err == nil && len(list.Members) != 1 {
			err = fmt.Errorf("the survivor's list has %d members", len(list.Members))
		}
		return err
	})
	if err != nil {
		return err
	}
	if after, err := walsurgery.ReadMetadata(wal); err != nil || after != before {
		return fmt.Errorf("the WAL of a refused loser was %v, is %v (%v)", before, after, err)
	}
	bin, err := lab.Etcd(ctx, s.Options.Minor, s.Options.Log)
	if err != nil {
		return err
	}
	s.Note("%s is upgraded to %s", older, s.Options.Minor)
	if err := s.Site(older).Kill(); err != nil {
		return err
	}
	s.Site(older).UseEtcd(bin)
	return s.Up(older)
}

// each runs f for 0 to n-1, some at a time, and returns the first error.
func each(ctx context.Context, n int, f func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var g sync.WaitGroup
	for range 64 {
		g.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := f(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	g.Wait()
	return context.Cause(ctx)
}

// many has watches at both members, and leases with a key each. Every watch has to see every version of its key, in order;
// at the end both members have to know all leases, and a key goes with its lease.
func many(ctx context.Context, s *Stage) error {
	var clients []*clientv3.Client
	for _, site := range lab.Sites {
		cl, err := s.Site(site).Client()
		if err != nil {
			return err
		}
		defer cl.Close()
		clients = append(clients, cl)
	}
	wctx, stop := context.WithCancel(ctx)
	defer stop()
	w := &seen{newest: make([]int64, watchers), ended: map[string]int{}}
	for i := range watchers {
		w.group.Go(func() { w.follow(wctx, i, clients[i%2]) })
	}
	s.Note("%d watches", watchers)
	ids := make([]clientv3.LeaseID, leases)
	err := each(ctx, leases, func(ctx context.Context, i int) error {
		g, err := clients[i%2].Grant(ctx, 24*3600)
		if err == nil {
			ids[i] = g.ID
			_, err = clients[i%2].Put(ctx, leaseKey(i), "x", clientv3.WithLease(g.ID))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("grant %d leases: %w", leases, err)
	}
	s.Note("%d leases, each with a key", leases)
	round := func(ctx context.Context) error {
		return each(ctx, watchKeys, func(ctx context.Context, i int) error {
			return s.Until(ctx, "write "+watchKey(i), func(ctx context.Context) error {
				try, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				_, err := clients[s.siteOf(s.Other())].Put(try, watchKey(i), "x")
				return err
			})
		})
	}
	err = do(ctx, round, func(context.Context) error { return s.Kill(s.Target) }, s.Resumes, round, func(context.Context) error { return s.Up(s.Target) },
		func(ctx context.Context) error { _, err := s.Whole(ctx); return err }, round)
	if err != nil {
		return err
	}
	if err := w.complete(ctx, s, clients[0]); err != nil {
		return err
	}
	w.mu.Lock()
	for why, n := range w.ended {
		s.Note("%d watches were ended by etcd and begun again: %s", n, why)
	}
	w.mu.Unlock()
	s.Note("each watch saw each version of its key, in order, %d events in all", w.events.Load())
	for i, cl := range clients {
		resp, err := cl.Leases(ctx)
		if err != nil {
			return err
		}
		have := map[clientv3.LeaseID]bool{}
		for _, l := range resp.Leases {
			have[l.ID] = true
		}
		for _, id := range ids {
			if !have[id] {
				return fmt.Errorf("%s does not know the lease %x, one of %d that it has", lab.Sites[i], id, len(have))
			}
		}
	}
	if err := each(ctx, leases/2, func(ctx context.Context, i int) error {
		_, err := clients[i%2].Revoke(ctx, ids[i])
		return err
	}); err != nil {
		return fmt.Errorf("revoke half of the leases: %w", err)
	}
	for i, cl := range clients {
		n, err := cl.Get(ctx, "/lease/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err == nil && n.Count != leases/2 {
			err = fmt.Errorf("%d keys are left of %d whose leases live on", n.Count, leases/2)
		}
		if err != nil {
			return fmt.Errorf("after the revocation, at %s: %w", lab.Sites[i], err)
		}
	}
	s.Note("both members know all leases; half of them are revoked, their keys are gone")
	return nil
}

func (s *Stage) siteOf(site string) int { return slices.Index(lab.Sites[:], site) }

func watchKey(i int) string { return fmt.Sprintf("/watch/%03d", i) }
func leaseKey(i int) string { return fmt.Sprintf("/lease/%05d", i) }

// seen is what the watches saw.
type seen struct {
	group  sync.WaitGroup
	events atomic.Int64

	mu     sync.Mutex
	newest []int64 // by watch: the key's version
	wrong  error   // the first one
	ended  map[string]int
}

// follow goes on where it was when etcd ends the watch, as it does at a member that is a learner for a moment.
func (w *seen) follow(ctx context.Context, i int, cl *clientv3.Client) {
	for next := int64(1); ctx.Err() == nil; pause(ctx, 50*time.Millisecond) {
		for resp := range cl.Watch(ctx, watchKey(i/2%watchKeys), clientv3.WithRev(next)) {
			w.mu.Lock()
			if err := resp.Err(); err != nil && ctx.Err() == nil {
				w.ended[err.Error()]++
			}
			for _, e := range resp.Events {
				w.events.Add(1)
				if want := w.newest[i] + 1; e.Kv.Version != want && w.wrong == nil {
					w.wrong = fmt.Errorf("watch %d of %s saw version %d, not %d", i, e.Kv.Key, e.Kv.Version, want)
				}
				w.newest[i], next = e.Kv.Version, e.Kv.ModRevision+1
			}
			w.mu.Unlock()
		}
	}
}

// complete waits until each watch has seen the last version of its key.
func (w *seen) complete(ctx context.Context, s *Stage, cl *clientv3.Client) error {
	all, err := cl.Get(ctx, "/watch/", clientv3.WithPrefix())
	if err != nil {
		return err
	}
	if len(all.Kvs) != watchKeys {
		return fmt.Errorf("%d keys are watched, not %d", len(all.Kvs), watchKeys)
	}
	last := map[string]int64{}
	for _, kv := range all.Kvs {
		last[string(kv.Key)] = kv.Version
	}
	return s.Until(ctx, "each watch sees all", func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.wrong != nil {
			return w.wrong
		}
		for i, v := range w.newest {
			if want := last[watchKey(i/2%watchKeys)]; v != want {
				return fmt.Errorf("watch %d saw version %d of %d", i, v, want)
			}
		}
		return nil
	})
}

// walDir: named, not armed, and in order once the log is where it belongs.
func walDir(ctx context.Context, s *Stage) error {
	refused := func(ctx context.Context) error {
		for _, site := range lab.Sites {
			if err := s.Reason(ctx, site, "preflight"); err != nil {
				return err
			}
			h, err := s.Site(site).Health(ctx)
			if err == nil && !strings.Contains(h.Remedy, "wal-dir") {
				err = fmt.Errorf("the remedy does not name wal-dir: %q", h.Remedy)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := refused(ctx); err != nil {
		return err
	}
	s.Note("both say preflight, and name wal-dir")
	err := do(ctx, func(ctx context.Context) error { return s.Writes(ctx, 50) }, now(s.CutLink), func(ctx context.Context) error {
		return s.Silence(ctx, "cut apart, with --wal-dir", s.Between(2500*time.Millisecond, 4*time.Second))
	}, now(s.HealLink), s.Resumes, refused)
	if err != nil {
		return err
	}
	for _, site := range lab.Sites {
		x := s.Site(site)
		if err := x.Kill(); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(x.Dir, "wal-apart"), filepath.Join(x.DataDir, "member", "wal")); err != nil {
			return err
		}
		x.EtcdFlags()
		s.Note("the log of %s is in its data directory now", site)
		if err := s.Up(site); err != nil {
			return err
		}
	}
	if err := s.Resumes(ctx); err != nil {
		return err
	}
	if _, err := s.Whole(ctx); err != nil {
		return err
	}
	return failover(ctx, s)
}

// big notes how long each return took.
func big(ctx context.Context, s *Stage) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(s.Options.Dir, &fs); err != nil {
		return err
	}
	if free := int64(fs.Bavail) * fs.Bsize; free < bigSpace {
		return fmt.Errorf("%d GB are free at %s and %d are needed; free some, or give --dir", free>>30, s.Options.Dir, int64(bigSpace)>>30)
	}
	cl, err := s.Site(s.Leader).Client()
	if err != nil {
		return err
	}
	defer cl.Close()
	value := make([]byte, bigValue)
	for i := range value {
		value[i] = byte(s.Rand.Uint32())
	}
	for i := range bigValues {
		at := fmt.Sprintf("/big/%04d", i)
		copy(value, at)
		if _, err := cl.Put(ctx, at, string(value)); err != nil {
			return fmt.Errorf("write the %d th MB: %w", i, err)
		}
	}
	s.AtEnd(func(ctx context.Context) error {
		for _, site := range lab.Sites {
			st, err := s.Site(site).Status(ctx)
			if err == nil && st.DbSize < bigValues*bigValue {
				err = fmt.Errorf("its database has %d MB: this showed nothing", st.DbSize>>20)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", site, err)
			}
		}
		return nil
	})
	s.Note("1 GB is written")
	if _, err := s.Whole(ctx); err != nil {
		return err
	}
	back := func(how string, prepare func() error) error {
		if err := do(ctx, func(context.Context) error { return s.Kill(s.Target) }, s.Resumes, s.Confirmed, now(prepare)); err != nil {
			return err
		}
		_, before, err := s.Bytes(s.Target)
		if err != nil {
			return err
		}
		begun := time.Now()
		if err := s.Up(s.Target); err != nil {
			return err
		}
		if _, err := s.Whole(ctx); err != nil {
			return fmt.Errorf("return %s: %w", how, err)
		}
		_, after, err := s.Bytes(s.Target)
		if err != nil {
			return err
		}
		aside, err := filepath.Glob(filepath.Join(s.Site(s.Target).DataDir, "member.set-aside-*"))
		if err != nil {
			return err
		}
		s.Note("returned %s in %.1f s, %d MB to %s, set aside: %d", how, time.Since(begun).Seconds(), (after-before)>>20, s.Target, len(aside))
		if sent := after - before; (sent > bigValues*bigValue) != (how == "with nothing") {
			return fmt.Errorf("return %s: %d MB were sent", how, sent>>20)
		}
		return nil
	}
	if err := back("by log", func() error { return nil }); err != nil {
		return err
	}
	return back("with nothing", func() error {
		dir := s.Site(s.Target).DataDir
		return os.Rename(dir, dir+".moved-away")
	})
}
