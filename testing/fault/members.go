package fault

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"twok/internal/lab"
	"twok/testing/cluster"
	"twok/walsurgery"
)

// members are rows of docs/scenarios.md in which somebody else changes the member list, or the names in it mislead.
func members() []Fault {
	return []Fault{
		{
			Name: "F21", About: "a learner of somebody else is in the newest snapshot of both members when they are cut apart: the survivor removes it with the loser", Rows: []string{"F21"}, Claims: 1, Roles: []string{Pair}, Users: true,
			Prepare: func(o *cluster.Options) { o.EtcdFlags = append(o.EtcdFlags, "--snapshot-count", "50") },
			Run:     learnerInSnapshot,
		},
		{
			Name: "F3", About: "the target is removed by hand, and both sites are lost; alone the target, whose log holds its own removal, says so and nobody writes; with the other one back it stays out until it is added again with etcd's own means",
			Rows: []string{"F3"}, Roles: both, Users: true, Disks: true,
			Untraced: "in the model a removed member does not learn that its removal is committed",
			Run:      removedByHand,
		},
		{
			Name: "F17", About: "the members are called node1 and node10: each is lost and returns, and the other one keeps its ID", Rows: []string{"F17"}, Claims: 2, Roles: []string{Pair},
			Prepare: func(o *cluster.Options) { o.Names = map[string]string{"a": "node1", "b": "node10"} },
			Run:     similarNames,
		},
	}
}

// removedByHand makes the pair whole again as a person would: the removed member's data are put away, and it is added as a learner,
// started without an agent, and promoted.
func removedByHand(ctx context.Context, s *Stage) error {
	before, err := s.Record(ctx)
	if err != nil {
		return err
	}
	x := s.Site(s.Target)
	st, err := x.Status(ctx)
	if err != nil {
		return err
	}
	id := st.Header.MemberId
	s.Note("%s, member %x, is removed by hand", s.Target, id)
	err = s.Client(s.Other(), func(cl *clientv3.Client) error {
		return s.Until(ctx, "remove it", func(ctx context.Context) error {
			_, err := cl.MemberRemove(ctx, id)
			if errors.Is(err, rpctypes.ErrMemberNotFound) { // the answer to the first try was lost
				err = nil
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	err = s.Until(ctx, "the target's log holds its removal", func(context.Context) error {
		at, err := s.removal(s.Target, id)
		if err == nil && at == 0 {
			err = errors.New("it does not")
		}
		return err
	})
	if err != nil {
		return err
	}
	s.Note("the log of %s holds its removal", s.Target)
	if err := errors.Join(s.Kill(s.Target), s.Kill(s.Other())); err != nil { // its etcd may have ended itself by now
		return err
	}
	err = do(ctx, func(context.Context) error { return s.Up(s.Target) },
		func(ctx context.Context) error { return s.Reason(ctx, s.Target, "own-removal") },
		func(ctx context.Context) error {
			return s.Silence(ctx, "only the removed member is there", s.Between(3*time.Second, 5*time.Second))
		}, func(ctx context.Context) error { return s.Reason(ctx, s.Target, "own-removal") },
		func(context.Context) error { s.Note("%s says own-removal", s.Target); return s.Up(s.Other()) }, s.Resumes,
		func(ctx context.Context) error { return s.Reason(ctx, s.Target, "removed-by-hand") },
		func(ctx context.Context) error { return s.Reason(ctx, s.Other(), "alone-unclaimed") })
	if err != nil {
		return err
	}
	s.Note("%s says removed-by-hand, %s alone-unclaimed", s.Target, s.Other())
	if at, err := s.removal(s.Target, id); err != nil || at == 0 {
		return errors.Join(err, fmt.Errorf("the log of %s does not hold its removal any more", s.Target))
	}
	if rec, err := s.Record(ctx); err != nil || rec.Generation != before.Generation {
		return errors.Join(err, fmt.Errorf("the record was of generation %d and is of %d: somebody claimed", before.Generation, rec.Generation))
	}
	return s.addAgain(ctx)
}

// addAgain brings the target, which is no member any more, back with nothing and without twok.
func (s *Stage) addAgain(ctx context.Context) error {
	s.Note("%s is added again by hand, with nothing", s.Target)
	x := s.Site(s.Target)
	if err := x.Kill(); err != nil {
		return err
	}
	if err := os.Rename(x.DataDir, x.DataDir+".moved-away"); err != nil {
		return err
	}
	mode := cluster.Modes[s.Options.Mode]
	return s.Client(s.Other(), func(cl *clientv3.Client) error {
		added, err := cl.MemberAddAsLearner(ctx, []string{x.AdvertisedPeerURL})
		if err != nil {
			return fmt.Errorf("add %s as a learner: %w", s.Target, err)
		}
		x.UseMode(lab.Plain)
		x.EtcdFlags("--initial-cluster-state", "existing")
		if err := x.StartEtcd(); err != nil {
			return err
		}
		err = s.Until(ctx, "promote it", func(ctx context.Context) error {
			_, err := cl.MemberPromote(ctx, added.Member.ID)
			if errors.Is(err, rpctypes.ErrMemberNotLearner) { // the answer to the first try was lost
				err = nil
			}
			return err
		})
		if err != nil {
			return err
		}
		s.Note("it is a voter, member %x, and gets its agent", added.Member.ID)
		if err := x.StopEtcd(); err != nil {
			return err
		}
		x.UseMode(mode)
		x.EtcdFlags()
		return do(ctx, func(context.Context) error { return s.Up(s.Target) }, s.Resumes)
	})
}

// similarNames: who is removed and who comes back goes by the member ID.
func similarNames(ctx context.Context, s *Stage) error {
	for _, lost := range lab.Sites {
		stays := lab.Other(lost)
		name := s.Options.Names
		kept, err := s.Site(stays).Status(ctx)
		if err != nil {
			return err
		}
		was, err := s.Site(lost).Status(ctx)
		if err != nil {
			return err
		}
		if err := do(ctx, func(context.Context) error { return s.Kill(lost) }, s.Resumes); err != nil {
			return err
		}
		if err := s.Survives(ctx, name[stays]); err != nil {
			return err
		}
		if err := s.listed(ctx, stays, map[string]uint64{name[stays]: kept.Header.MemberId}); err != nil {
			return err
		}
		s.Note("%s is lost, and %s alone has its name and its ID", name[lost], name[stays])
		if err := s.Up(lost); err != nil {
			return err
		}
		if _, err := s.Whole(ctx); err != nil {
			return err
		}
		now, err := s.Site(lost).Status(ctx)
		if err != nil {
			return err
		}
		if now.Header.MemberId == was.Header.MemberId {
			return fmt.Errorf("%s returned under its old ID %x", name[lost], was.Header.MemberId)
		}
		if err := s.listed(ctx, stays, map[string]uint64{name[stays]: kept.Header.MemberId, name[lost]: now.Header.MemberId}); err != nil {
			return err
		}
	}
	return nil
}

// listed is an error if the member list at a site is not this one, IDs by name.
func (s *Stage) listed(ctx context.Context, site string, want map[string]uint64) error {
	return s.Client(site, func(cl *clientv3.Client) error {
		list, err := cl.MemberList(ctx)
		if err != nil {
			return err
		}
		have := map[string]uint64{}
		for _, m := range list.Members {
			have[m.Name] = m.ID
		}
		if len(list.Members) != len(want) || !maps.Equal(have, want) {
			return fmt.Errorf("the member list of %s is %x, want %x", site, have, want)
		}
		return nil
	})
}

// learnerInSnapshot waits until the learner is recorded in both members' snapshots: which of them survives is open.
func learnerInSnapshot(ctx context.Context, s *Stage) error {
	var learner uint64
	s.Note("a learner of somebody else is added")
	err := s.Client(s.Leader, func(cl *clientv3.Client) error {
		// etcd refuses it until its peers have been connected for five seconds.
		return s.Until(ctx, "add a learner", func(ctx context.Context) error {
			resp, err := cl.MemberAddAsLearner(ctx, []string{"http://127.0.0.1:1"})
			if err == nil {
				learner = resp.Member.ID
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	if err := s.Writes(ctx, 300); err != nil {
		return err
	}
	for _, site := range lab.Sites {
		err := s.Until(ctx, "the newest snapshot of "+site+" lists the learner", func(context.Context) error {
			sum, _, err := s.log(site)
			if err == nil && !slices.Contains(sum.Learners, learner) {
				err = fmt.Errorf("at %s it has the voters %x and the learners %x, and %x is not among them", sum.Snapshot, sum.Voters, sum.Learners, learner)
			}
			if err == nil {
				s.Note("the newest snapshot of %s, at %s, lists the learner %x", site, sum.Snapshot, learner)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := do(ctx, now(s.CutLink), s.Resumes); err != nil {
		return err
	}
	rec, err := s.Record(ctx)
	if err != nil {
		return err
	}
	survivor := rec.Survivor.Name
	err = s.Client(survivor, func(cl *clientv3.Client) error {
		list, err := cl.MemberList(ctx)
		if err == nil && (len(list.Members) != 1 || list.Members[0].ID != rec.Survivor.ID) {
			err = fmt.Errorf("the survivor's list is %v", list.Members)
		}
		return err
	})
	if err != nil {
		return err
	}
	if at, err := s.removal(survivor, learner); err != nil || at == 0 {
		return errors.Join(err, fmt.Errorf("the survivor's log does not hold the removal of the learner %x", learner))
	}
	s.Note("%s has removed the learner", survivor)
	return s.HealLink()
}

// log reads the log of a site, which may be in use: its summary, and every membership change in it.
func (s *Stage) log(site string) (sum walsurgery.Summary, changes []walsurgery.Entry, err error) {
	l, err := walsurgery.Inspect(zap.NewNop(), filepath.Join(s.Site(site).DataDir, "member", "wal"))
	if err != nil {
		return sum, nil, err
	}
	return l.Summary(), slices.Collect(l.Changes()), l.Close()
}

// removal is where the log of a site has the removal of a member, 0 if nowhere.
func (s *Stage) removal(site string, id uint64) (at uint64, err error) {
	_, changes, err := s.log(site)
	for _, e := range changes {
		if e.Kind == walsurgery.KindConfChange && e.Change.Type == walsurgery.RemoveNode && e.Change.NodeID == id {
			at = e.Index
		}
	}
	return at, err
}
