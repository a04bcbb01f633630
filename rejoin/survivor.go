package rejoin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/internal/etcdapi"
	"twok/internal/failover"
)

// NudgeKey is the small key that is written through the survivor to move the
// learner on. Its value means nothing.
const NudgeKey = "/twok/nudge"

var (
	// ErrNoLeader: the asked member has no leader, its list proves nothing.
	ErrNoLeader = errors.New("the asked member has no leader")
	// ErrOwnURL: the other member's client URL leads to this member: both advertise
	// the same address (localhost, a common virtual IP). Give each --advertise-client-urls of its own.
	ErrOwnURL = errors.New("the other member's client URL leads to this member: let each advertise its own address (--advertise-client-urls)")
	// ErrNotCaughtUp: the learner did not reach the survivor's revision in time. Try again.
	ErrNotCaughtUp = errors.New("the learner is not caught up yet")
	// ErrHashTime: the learner has the revision, but the hash of a key space did not
	// arrive in time. Try again with more: a large key space takes seconds.
	ErrHashTime = errors.New("the hash of the key space takes longer")
)

// Site is this site, as the survivor's list may show it.
type Site struct {
	ID       uint64 // member ID in the own WAL; zero: there are no data, and it is known by its peer URLs alone
	PeerURLs []string
	PeerURL  string // the local peer port, for hashes
}

// Survivor is the other member, as reached from here. Each method opens its own
// connection: after a cut a new one is quicker than one in TCP's backoff.
type Survivor struct {
	Dialer     *etcdapi.Dialer
	ClientURLs []string
	PeerURLs   []string
}

func (s *Survivor) with(f func(*clientv3.Client) error) error {
	c, err := s.Dialer.Client(s.ClientURLs...)
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.Close())
}

// List reads the member list, linearizably, and what it says of the site. After
// an error nothing is known. ErrNoLeader is possible right after an election.
func (s *Survivor) List(ctx context.Context, site Site) (failover.List, error) {
	var l failover.List
	err := s.with(func(c *clientv3.Client) error {
		resp, err := c.MemberList(ctx)
		if err != nil {
			return err
		}
		if resp.Header.MemberId == site.ID && site.ID != 0 {
			return ErrOwnURL
		}
		st, err := etcdapi.Status(ctx, c)
		if err != nil {
			return err
		}
		if st.Leader == 0 {
			return ErrNoLeader
		}
		_, cluster, err := s.version(ctx)
		if err != nil {
			return err
		}
		l = failover.List{OK: true, Leader: st.Leader, Cluster: resp.Header.ClusterId, Version: cluster}
		var voters []uint64
		for _, m := range resp.Members {
			switch {
			case m.ID == site.ID && m.IsLearner:
				l.Self = failover.ListedLearner
			case m.ID == site.ID, site.ID == 0 && !m.IsLearner && overlap(m.PeerURLs, site.PeerURLs):
				l.Self = failover.ListedVoter
			case m.IsLearner && overlap(m.PeerURLs, site.PeerURLs):
				l.Leftover = m.ID
			case m.IsLearner:
				l.Stranger = m.ID
			}
			if m.IsLearner {
				l.Voters.Learners++
			} else {
				voters = append(voters, m.ID)
			}
		}
		slices.Sort(voters)
		l.Voters.Count = uint8(min(len(voters), 255))
		copy(l.Voters.IDs[:], voters)
		return nil
	})
	if err != nil {
		return failover.List{}, fmt.Errorf("member list at %s: %w", strings.Join(s.ClientURLs, ","), err)
	}
	return l, nil
}

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(u string) bool { return slices.Contains(b, u) })
}

// version asks the survivor's peer ports for its cluster version.
func (s *Survivor) version(ctx context.Context) (server, cluster uint32, err error) {
	err = errors.New("no peer URL of the survivor is known")
	for i, u := range s.PeerURLs {
		var sv, cv string
		part, cancel := share(ctx, len(s.PeerURLs)-i)
		sv, cv, err = s.Dialer.PeerVersion(part, u)
		cancel()
		if err == nil {
			return Minor(sv), Minor(cv), nil
		}
	}
	return 0, 0, err
}

// share is an equal part of the time that ctx has left, for the first of n attempts: a URL that
// leads into the dark leaves time for the others.
func share(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok || n <= 1 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(end)/time.Duration(n))
}

// Minor turns "3.6.16" into 3<<16|6; zero if that is not a version.
func Minor(v string) uint32 {
	parts := strings.SplitN(v, ".", 3)
	if len(parts) < 2 {
		return 0
	}
	major, err1 := strconv.ParseUint(parts[0], 10, 15)
	minor, err2 := strconv.ParseUint(parts[1], 10, 16)
	if err1 != nil || err2 != nil {
		return 0
	}
	return uint32(major)<<16 | uint32(minor)
}

// AddLearner adds this site as a learner and returns the ID that it got. After an
// error it may have been added all the same.
func (s *Survivor) AddLearner(ctx context.Context, site Site) (uint64, error) {
	var id uint64
	err := s.with(func(c *clientv3.Client) error {
		resp, err := c.MemberAddAsLearner(ctx, site.PeerURLs)
		if err == nil {
			id = resp.Member.ID
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("adding the learner %s: %w", strings.Join(site.PeerURLs, ","), err)
	}
	return id, nil
}

// Remove removes a member. After an error it may have been removed all the same.
func (s *Survivor) Remove(ctx context.Context, id uint64) error {
	err := s.with(func(c *clientv3.Client) error {
		_, err := c.MemberRemove(ctx, id)
		return err
	})
	if err != nil {
		return fmt.Errorf("removing the member %016x: %w", id, err)
	}
	return nil
}

// Promote makes a learner a voter. After an error it may be one all the same.
func (s *Survivor) Promote(ctx context.Context, id uint64) error {
	err := s.with(func(c *clientv3.Client) error {
		_, err := c.MemberPromote(ctx, id)
		return err
	})
	if err != nil {
		return fmt.Errorf("promoting the learner %016x: %w", id, err)
	}
	return nil
}

// nudgeEvery is how often the survivor is written to (etcd-facts: every 200 ms).
const nudgeEvery = 200 * time.Millisecond

// Compare says whether both members have the same key space at one revision that
// the survivor had at the time of the call, so that the learner also has every
// entry up to an index sampled now. ErrNotCaughtUp when the context ends first, and
// ErrHashTime with it if a hash was under way: no hash is cut short for the next nudge.
func (s *Survivor) Compare(ctx context.Context, site Site) (equal bool, err error) {
	err = s.with(func(c *clientv3.Client) error {
		var pause time.Duration
		for {
			resp, err := c.Put(ctx, NudgeKey, time.Now().UTC().Format(time.RFC3339Nano))
			if err != nil {
				return err
			}
			done, eq, err := s.compareAt(ctx, nudgeEvery+pause, site, resp.Header.ClusterId, resp.Header.Revision)
			switch {
			case done:
				equal = eq
				return nil
			case ctx.Err() != nil:
				return errors.Join(ErrNotCaughtUp, err)
			case errors.Is(err, etcdapi.ErrOtherCluster):
				return err
			}
			// A learner far behind needs its time; do not write faster than it reads.
			pause = min(pause+nudgeEvery/4, time.Second)
		}
	})
	if err != nil {
		return false, fmt.Errorf("comparing the key spaces: %w", err)
	}
	return equal, nil
}

// compareAt waits this long for the learner to have the revision, and for the hashes
// as long as the context allows.
func (s *Survivor) compareAt(ctx context.Context, wait time.Duration, site Site, cluster uint64, revision int64) (done, equal bool, err error) {
	over := time.NewTimer(wait)
	defer over.Stop()
	for {
		var here, there etcdapi.Hash
		here, err = s.Dialer.HashKV(ctx, site.PeerURL, cluster, revision)
		if err == nil {
			there, err = s.hashThere(ctx, cluster, revision)
		}
		if err == nil && here.CompactRevision == there.CompactRevision {
			return true, here.Hash == there.Hash, nil
		}
		if err == nil || errors.Is(err, etcdapi.ErrCompacted) {
			return false, false, err // compacted at different revisions: take a newer one
		}
		if ctx.Err() != nil && !errors.Is(err, etcdapi.ErrFutureRevision) {
			return false, false, errors.Join(ErrHashTime, err)
		}
		select {
		case <-ctx.Done():
			return false, false, err
		case <-over.C:
			return false, false, err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (s *Survivor) hashThere(ctx context.Context, cluster uint64, revision int64) (etcdapi.Hash, error) {
	err := errors.New("no peer URL of the survivor is known")
	for i, u := range s.PeerURLs {
		var h etcdapi.Hash
		part, cancel := share(ctx, len(s.PeerURLs)-i)
		h, err = s.Dialer.HashKV(part, u, cluster, revision)
		cancel()
		if err == nil {
			return h, nil
		}
	}
	return etcdapi.Hash{}, err
}
