package walsurgery

import (
	"encoding/json"
	"errors"
	"slices"
)

// Join makes the append add its own member as a voter (P18): a member that its data know as removed, whose WAL
// carries a new ID by now. after is how many of the removals come first; they are of members with
// the same peer URLs, beside which etcd would reject the addition. Some voter has to be left at that point: Raft
// has no configuration without one.
func Join(peerURLs []string, after int) PlanOption {
	return func(p *Plan) { p.Join, p.JoinAfter = slices.Clone(peerURLs), after }
}

// changeContext is the context of an addition, as etcd writes it (etcd: server/etcdserver, AddMember: a
// membership.Member without attributes) and reads it (membership, ConfigChangeContext). etcd panics without one.
type changeContext struct {
	ID       uint64   `json:"id"`
	PeerURLs []string `json:"peerURLs"`
}

func (p Plan) joinContext() ([]byte, error) {
	return json.Marshal(changeContext{ID: p.Owner.MemberID, PeerURLs: p.Join})
}

func (p Plan) checkJoin() error {
	switch {
	case p.Join == nil:
		return nil
	case len(p.Join) == 0 || slices.Contains(p.Join, ""):
		return errors.New("the addition needs this member's peer URLs")
	case p.JoinAfter < 0 || p.JoinAfter > len(p.Remove):
		return errors.New("the addition comes after more removals than there are")
	}
	return nil
}

// changes are the append's membership changes, in order. None: it is one empty entry.
func (p Plan) changes() ([]Change, error) {
	var cs []Change
	for _, id := range p.Remove {
		cs = append(cs, Change{Type: RemoveNode, NodeID: id})
	}
	if p.Join != nil {
		ctx, err := p.joinContext()
		if err != nil {
			return nil, err
		}
		cs = slices.Insert(cs, p.JoinAfter, Change{Type: AddNode, NodeID: p.Owner.MemberID, Context: ctx})
	}
	return cs, nil
}
