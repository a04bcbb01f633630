package agent

import (
	"context"
	"errors"
	"fmt"

	"twok/internal/failover"
	"twok/rejoin"
	"twok/walsurgery"
)

// survivor is the other member as it was last known, and this site as it sees it.
func (a *Agent) survivor() (*rejoin.Survivor, rejoin.Site, error) {
	info := a.mem.site()
	site := rejoin.Site{PeerURLs: info.PeerURLs, PeerURL: a.cfg.PeerURL}
	md, err := walsurgery.ReadMetadata(a.cfg.walDir())
	switch {
	case err == nil:
		site.ID = md.MemberID
	case errors.Is(err, walsurgery.ErrNoWAL) && len(info.PeerURLs) > 0:
		// The disk was replaced, or emptied.
	case info.MemberID != 0:
		// The WAL is damaged in its first record: the survivor is asked all the same
		// whether this member is out, and then it returns from an empty log.
		site.ID = info.MemberID
	default:
		return nil, site, err
	}
	s := &rejoin.Survivor{Dialer: a.dialer}
	for _, m := range info.Other {
		s.ClientURLs = append(s.ClientURLs, m.ClientURLs...)
		s.PeerURLs = append(s.PeerURLs, m.PeerURLs...)
	}
	if len(s.ClientURLs) == 0 && len(s.PeerURLs) > 0 {
		return nil, site, errUnmet
	}
	if len(s.ClientURLs) == 0 || len(s.PeerURLs) == 0 {
		return nil, site, errors.New("the other member's URLs are not known yet")
	}
	return s, site, nil
}

func (a *Agent) lookAtList(ctx context.Context, e *failover.Event) error {
	s, site, err := a.survivor()
	if errors.Is(err, errUnmet) {
		a.meet(ctx)
		s, site, err = a.survivor()
	}
	if err == nil {
		e.List, err = s.List(ctx, site)
	}
	return a.done(e, err)
}

func (a *Agent) changeMember(ctx context.Context, act failover.Action, e *failover.Event) error {
	s, site, err := a.survivor()
	if err != nil {
		e.Outcome = failover.Failed
		return err
	}
	switch act.Kind {
	case failover.AddLearner:
		if len(site.PeerURLs) == 0 {
			e.Outcome = failover.Failed
			return errors.New("this member's own peer URLs are not known")
		}
		e.ID, err = s.AddLearner(ctx, site)
	case failover.RemoveLearner:
		err = s.Remove(ctx, act.ID)
	case failover.Promote:
		err = s.Promote(ctx, act.ID)
	}
	if err == nil {
		e.Outcome = failover.Done
	}
	return err // Unknown: the list tells
}

func (a *Agent) compare(ctx context.Context, act failover.Action, e *failover.Event) error {
	s, site, err := a.survivor()
	if err != nil {
		return a.done(e, err)
	}
	if site.ID != act.ID {
		return a.done(e, fmt.Errorf("the WAL carries the ID %s, not %s", hex(site.ID), hex(act.ID)))
	}
	e.Equal, err = s.Compare(ctx, site)
	switch {
	case errors.Is(err, rejoin.ErrHashTime):
		a.compFor = min(2*max(compareFirst, a.compFor), compareMax)
	case err != nil:
		a.compFor = 0
	}
	return a.done(e, err)
}
