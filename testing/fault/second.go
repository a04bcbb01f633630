package fault

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/internal/lab"
	"twok/testing/cluster"
	"twok/walsurgery"
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
			Name: "mixed-versions", About: "site b has the minor version below: lost, it cannot return to the newer survivor and says so; upgraded, it returns", Claims: 1, Roles: []string{Pair},
			Needs:   Needs{Minors: []string{"3.6", "3.7"}},
			Prepare: func(o *cluster.Options) { o.MinorOf = map[string]string{"b": below(o.Minor)} },
			Run:     mixed,
		},
		{
			Name: "many", About: "1,000 watches and 10,000 leases through a failover and a return", Claims: 1, Roles: both,
			Run: many,
		},
		{
			Name: "wal-dir", About: "etcd has --wal-dir: both agents say so and do not arm, cut apart nobody writes; the log moved into the data directory, the pair arms", Claims: 1, Roles: []string{Pair},
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
			Name: "big", About: "a database of 1 GB: the target returns by log, and then with nothing, by a snapshot", Claims: 2, Roles: both, Slow: true, Disks: true,
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
	if err := cluster.Room(s.Options.Dir, bigSpace); err != nil {
		return fmt.Errorf("%w; free some, or give --dir", err)
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
