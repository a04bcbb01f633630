package fault

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/internal/lab"
	"twok/testing/cluster"
	"twok/testing/history"
)

// What quota fills: the database of both members, with keys that no client has.
const (
	quotaBytes  = 16 << 20
	quotaValue  = 200 << 10
	quotaPrefix = "/fill/"
)

// quotas are faults of etcd's own limit of its database, and of who else's disk is touched.
func quotas() []Fault {
	return []Fault{{
		Name: "quota", About: "the database is at its quota and etcd has a NOSPACE alarm when the target is lost: the other one survives, says etcd-alarm, and takes no put; compacted, defragmented and disarmed it writes alone, and the target returns", Rows: []string{"F31"}, Claims: 1, Roles: both, Compacts: true,
		Prepare: func(o *cluster.Options) {
			o.EtcdFlags = append(o.EtcdFlags, "--quota-backend-bytes", fmt.Sprint(quotaBytes))
		},
		Run: quota,
	}, {
		Name: "F14", About: "which files are synced is taken down from the start on, through a claim and two returns: no whole file system is, and no file of anybody else; what the agents write for a claim and a return is", Rows: []string{"F14"}, Claims: 2, Roles: []string{Pair},
		Needs:   Needs{Strace: true, Modes: []string{"signal"}}, // where an agent's own syncs are told from etcd's
		Prepare: func(o *cluster.Options) { o.Syncs = true },
		Run: func(ctx context.Context, s *Stage) error {
			s.AtEnd(s.ownFiles)
			return do(ctx, func(ctx context.Context) error { return failover(ctx, s) },
				func(ctx context.Context) error { _, err := s.Whole(ctx); return err },
				func(context.Context) error { return s.Kill(s.Target) }, s.Resumes, func(context.Context) error { return s.Up(s.Target) })
		},
	}}
}

// ownFiles is an error if anything else was synced than the members' own files, or nothing at one of them; or if of what has to outlive
// a power failure, which nobody can make here, something was not.
func (s *Stage) ownFiles(context.Context) error {
	files, err := s.Synced()
	if err != nil {
		return err
	}
	claims, err := s.Claims()
	if err != nil {
		return err
	}
	back, err := s.Replaced()
	if err != nil {
		return err
	}
	return durable(files, claims, back, s.Note)
}

// durable judges what strace saw. back are the sites whose WAL was replaced by a copy.
func durable(files map[cluster.Sync]int, claims []history.Claim, back map[string]bool, note func(string, ...any)) error {
	all := map[string]int{}
	for f, n := range files {
		all[f.Site] += n
	}
	need := map[string][]string{} // patterns of paths that the site's agent has to have synced
	for _, c := range claims {
		if c.Won {
			need[c.Site] = append(need[c.Site], "data/twok-memory.json*", "data", "data/member/wal/*.wal")
		}
	}
	for site := range back {
		need[site] = append(need[site], "data/member/wal.staging-*/*.wal", "data/member/wal.staging-*", "data/member")
	}
	for _, site := range lab.Sites {
		if all[site] == 0 {
			return fmt.Errorf("strace saw %s sync nothing: this showed nothing", site)
		}
		for _, pattern := range need[site] {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(files)), func(f cluster.Sync) bool {
				ok, err := path.Match(pattern, f.Path)
				return f.Agent && f.Site == site && ok && err == nil
			}) {
				return fmt.Errorf("the agent of %s has not synced %s: after a power failure what it wrote there may be gone", site, pattern)
			}
		}
	}
	note("syncs of own files, and of nothing else: %v; among them %v", all, need)
	return nil
}

func quota(ctx context.Context, s *Stage) error {
	survivor := s.Other()
	if err := s.fillQuota(ctx); err != nil {
		return err
	}
	if err := s.Kill(s.Target); err != nil {
		return err
	}
	err := s.Until(ctx, "the record names the survivor, which leads", func(ctx context.Context) error {
		if err := s.Survives(ctx, survivor); err != nil {
			return err
		}
		return s.Client(survivor, func(cl *clientv3.Client) error {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			_, err := cl.Get(ctx, quotaPrefix)
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("the alarm does not stop a failover: %w", err)
	}
	if err := s.Reason(ctx, survivor, "etcd-alarm"); err != nil {
		return err
	}
	s.Note("%s survives, and says etcd-alarm", survivor)
	err = s.Client(survivor, func(cl *clientv3.Client) error {
		if _, err := cl.Put(ctx, quotaPrefix+"more", ""); !errors.Is(err, rpctypes.ErrNoSpace) {
			return fmt.Errorf("a put at the survivor: %v, want %q", err, rpctypes.ErrNoSpace)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.makeSpace(ctx, survivor); err != nil {
		return err
	}
	s.Note("there is space at %s, and no alarm", survivor)
	if err := do(ctx, s.Resumes, s.Confirmed); err != nil { // its confirmation is a put
		return err
	}
	err = s.Until(ctx, "the survivor has no reason any more", func(ctx context.Context) error {
		h, err := s.Site(survivor).Health(ctx)
		if err == nil && h.Reason != "none" {
			err = errors.New(h.String())
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := s.Up(s.Target); err != nil {
		return err
	}
	// Its database is as large as it was, and raises the alarm again with the first put that comes there, until it is defragmented too.
	return s.Until(ctx, "the target returns, and is defragmented", func(ctx context.Context) error {
		if _, err := s.Cluster.Whole(ctx); err == nil {
			return nil
		}
		return s.makeSpace(ctx, s.Target)
	})
}

// fillQuota writes until etcd has the alarm.
func (s *Stage) fillQuota(ctx context.Context) error {
	value := make([]byte, quotaValue)
	for i := range value {
		value[i] = byte(s.Rand.Uint32())
	}
	return s.Client(s.Leader, func(cl *clientv3.Client) error {
		for i := range 10 * quotaBytes / quotaValue {
			_, err := cl.Put(ctx, fmt.Sprintf("%s%04d", quotaPrefix, i), string(value))
			if errors.Is(err, rpctypes.ErrNoSpace) {
				break
			}
			if err != nil {
				return fmt.Errorf("write the %d th value: %w", i, err)
			}
		}
		return s.Until(ctx, "both members have the alarm", func(ctx context.Context) error {
			for _, site := range lab.Sites {
				st, err := s.Site(site).Status(ctx)
				if err == nil && len(st.Errors) == 0 {
					err = fmt.Errorf("%s has none at %d bytes", site, st.DbSize)
				}
				if err != nil {
					return err
				}
			}
			s.Note("the database is full, and both members have the alarm")
			return nil
		})
	})
}

// makeSpace is what a person does about the alarm at one member: compact, defragment, disarm.
func (s *Stage) makeSpace(ctx context.Context, site string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return s.Client(site, func(cl *clientv3.Client) error {
		gone, err := cl.Delete(ctx, quotaPrefix, clientv3.WithPrefix())
		if err != nil {
			return fmt.Errorf("delete what fills the database: %w", err)
		}
		if _, err := cl.Compact(ctx, gone.Header.Revision, clientv3.WithCompactPhysical()); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
			return fmt.Errorf("compact at revision %d: %w", gone.Header.Revision, err)
		}
		if _, err := cl.Defragment(ctx, s.Site(site).ClientURL); err != nil {
			return fmt.Errorf("defragment %s: %w", site, err)
		}
		if _, err := cl.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
			return fmt.Errorf("disarm: %w", err)
		}
		list, err := cl.AlarmList(ctx)
		if err == nil && len(list.Alarms) > 0 {
			err = fmt.Errorf("there is an alarm still: %v", list.Alarms)
		}
		return err
	})
}
