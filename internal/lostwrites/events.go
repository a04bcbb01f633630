package lostwrites

import (
	"fmt"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"twok/internal/member"
	"twok/walsurgery"
)

// events lists the entries beyond the fork that change no key by themselves, from the WAL.
func (l *Listing) events() error {
	d := l.d
	if first := d.sum.First.Index; first > l.Fork.Index {
		l.note("the WAL no longer has the entries %d to %d: leases, users, alarms and members that changed there are not listed", l.Fork.Index, first-1)
	}
	for e := range d.log.From(l.Fork.Index) {
		ev := Event{Index: e.Index, Term: e.Term}
		if e.Index > l.Committed {
			ev.Certainty = Possibly
		}
		switch e.Kind {
		case walsurgery.KindConfChange:
			ev.Kind, ev.Detail = "membership", fmt.Sprintf("%s of member %x", e.Change.Type, e.Change.NodeID)
		case walsurgery.KindNormal:
			r, err := member.DecodeRequest(e.Data)
			switch {
			case err != nil:
				ev.Kind, ev.Detail = "unknown", err.Error()
			case r != nil:
				ev.Kind, ev.Detail = event(r)
				if r.LeaseGrant != nil {
					if _, ok := d.leases[r.LeaseGrant.ID]; !ok {
						d.leases[r.LeaseGrant.ID] = r.LeaseGrant.TTL
						l.ttl(r.LeaseGrant.ID, r.LeaseGrant.TTL)
					}
				}
			}
		default:
			if e.Data == nil && e.Err != nil {
				return e.Err
			}
			ev.Kind, ev.Detail = "unknown", fmt.Sprint(e.Err)
		}
		if ev.Kind != "" {
			l.Events = append(l.Events, ev)
		}
	}
	return nil
}

func (l *Listing) ttl(id, ttl int64) {
	for i := range l.Leases {
		if l.Leases[i].ID == id {
			l.Leases[i].TTL = ttl
		}
	}
}

// event names a request that is no write of keys; "" for those, and for what changes nothing. Passwords are not shown.
func event(r *pb.InternalRaftRequest) (kind, detail string) {
	switch {
	case r.LeaseGrant != nil:
		return "lease-grant", fmt.Sprintf("lease %016x, TTL %d s", uint64(r.LeaseGrant.ID), r.LeaseGrant.TTL)
	case r.LeaseRevoke != nil:
		return "lease-revoke", fmt.Sprintf("lease %016x", uint64(r.LeaseRevoke.ID))
	case r.Compaction != nil:
		return "compaction", fmt.Sprintf("to revision %d", r.Compaction.Revision)
	case r.Alarm != nil && r.Alarm.Action != pb.AlarmRequest_GET:
		return "alarm", fmt.Sprintf("%s of %s at member %x", strings.ToLower(r.Alarm.Action.String()), r.Alarm.Alarm, r.Alarm.MemberID)
	case r.AuthEnable != nil:
		return "auth", "enable"
	case r.AuthDisable != nil:
		return "auth", "disable"
	case r.AuthUserAdd != nil:
		return "auth", fmt.Sprintf("add user %q", r.AuthUserAdd.Name)
	case r.AuthUserDelete != nil:
		return "auth", fmt.Sprintf("delete user %q", r.AuthUserDelete.Name)
	case r.AuthUserChangePassword != nil:
		return "auth", fmt.Sprintf("change the password of user %q", r.AuthUserChangePassword.Name)
	case r.AuthUserGrantRole != nil:
		return "auth", fmt.Sprintf("grant role %q to user %q", r.AuthUserGrantRole.Role, r.AuthUserGrantRole.User)
	case r.AuthUserRevokeRole != nil:
		return "auth", fmt.Sprintf("revoke role %q of user %q", r.AuthUserRevokeRole.Role, r.AuthUserRevokeRole.Name)
	case r.AuthRoleAdd != nil:
		return "auth", fmt.Sprintf("add role %q", r.AuthRoleAdd.Name)
	case r.AuthRoleDelete != nil:
		return "auth", fmt.Sprintf("delete role %q", r.AuthRoleDelete.Role)
	case r.AuthRoleGrantPermission != nil:
		p := r.AuthRoleGrantPermission.Perm
		return "auth", fmt.Sprintf("grant role %q %s of %s", r.AuthRoleGrantPermission.Name, strings.ToLower(p.GetPermType().String()), span(p.GetKey(), p.GetRangeEnd()))
	case r.AuthRoleRevokePermission != nil:
		return "auth", fmt.Sprintf("revoke role %q %s", r.AuthRoleRevokePermission.Role, span(r.AuthRoleRevokePermission.Key, r.AuthRoleRevokePermission.RangeEnd))
	case r.ClusterVersionSet != nil:
		return "cluster", "version " + r.ClusterVersionSet.Ver
	case r.ClusterMemberAttrSet != nil:
		return "cluster", fmt.Sprintf("member %x publishes %q", r.ClusterMemberAttrSet.Member_ID, r.ClusterMemberAttrSet.GetMemberAttributes().GetClientUrls())
	case r.DowngradeInfoSet != nil:
		return "cluster", fmt.Sprintf("downgrade to %s: %t", r.DowngradeInfoSet.Ver, r.DowngradeInfoSet.Enabled)
	}
	return "", ""
}

func span(key, end []byte) string {
	switch {
	case len(end) == 0:
		return fmt.Sprintf("%q", key)
	case len(end) == 1 && end[0] == 0:
		return fmt.Sprintf("%q and all keys behind it", key)
	}
	return fmt.Sprintf("%q to %q", key, end)
}

// describe says what a request would write, where its result is gone.
func describe(r *pb.InternalRaftRequest) string {
	var parts []string
	var txn func(t *pb.TxnRequest)
	txn = func(t *pb.TxnRequest) {
		for _, ops := range [][]*pb.RequestOp{t.Success, t.Failure} {
			for _, op := range ops {
				switch {
				case op.GetRequestPut() != nil:
					parts = append(parts, "put "+span(op.GetRequestPut().Key, nil))
				case op.GetRequestDeleteRange() != nil:
					parts = append(parts, "delete "+span(op.GetRequestDeleteRange().Key, op.GetRequestDeleteRange().RangeEnd))
				case op.GetRequestTxn() != nil:
					txn(op.GetRequestTxn())
				}
			}
		}
	}
	switch {
	case r.GetDeleteRange() != nil:
		return "delete of " + span(r.DeleteRange.Key, r.DeleteRange.RangeEnd)
	case r.GetLeaseRevoke() != nil:
		return fmt.Sprintf("delete of the keys of lease %016x", uint64(r.LeaseRevoke.ID))
	case r.GetPut() != nil:
		return "put " + span(r.Put.Key, nil)
	case r.GetTxn() != nil:
		txn(r.Txn)
		return "a transaction that may: " + strings.Join(parts, ", ")
	}
	return "not understood"
}

// rebuild makes the changes of a compacted revision from the one way in which its entry can have made it; false if
// that does not tell them all: puts of whole values, and deletes of single keys.
func (d *dir) rebuild(path []operation, r *pb.InternalRaftRequest, main int64, index uint64) ([]revision, bool) {
	var out []revision
	ordinal := map[*pb.PutRequest]int{}
	for i, p := range puts(r) {
		ordinal[p] = i
	}
	for _, op := range path {
		rev := revision{main: main, sub: int64(len(out))}
		switch {
		case op.put != nil && !op.put.IgnoreValue && !op.put.IgnoreLease:
			rev.key, rev.lease = string(op.put.Key), op.put.Lease
			rev.value = Value{n: len(op.put.Value), d: d, index: index, put: ordinal[op.put]}
		case op.remove != nil && len(op.remove.RangeEnd) == 0 && len(path) == 1:
			rev.key, rev.tomb = string(op.remove.Key), true
		default:
			return nil, false
		}
		out = append(out, rev)
	}
	return out, true
}
