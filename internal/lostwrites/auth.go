package lostwrites

import (
	"bytes"
	"slices"
	"sort"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// authState is etcd's store of users and roles as far as it decides what an entry does (server/auth/store.go and
// server/etcdserver/apply/auth.go of 3.7.3; the same in 3.5.35 and 3.6.16).
type authState struct {
	enabled  bool
	revision uint64
	users    map[string]*authpb.User
	roles    map[string]*authpb.Role
}

func (a *authState) clone() authState {
	c := authState{enabled: a.enabled, revision: a.revision, users: map[string]*authpb.User{}, roles: map[string]*authpb.Role{}}
	for n, u := range a.users {
		c.users[n] = &authpb.User{Name: u.Name, Roles: slices.Clone(u.Roles), Password: u.Password, Options: u.Options}
	}
	for n, r := range a.roles {
		c.roles[n] = &authpb.Role{Name: r.Name, KeyPermission: slices.Clone(r.KeyPermission)}
	}
	return c
}

const root = "root"

func isRoot(u *authpb.User) bool { return slices.Contains(u.GetRoles(), root) }

// admin: IsAdminPermitted.
func (a *authState) admin(h *pb.RequestHeader) bool {
	return !a.enabled || h.GetUsername() != "" && isRoot(a.users[h.Username])
}

// may: isOpPermitted.
func (a *authState) may(h *pb.RequestHeader, key, end []byte, perm authpb.Permission_Type) bool {
	if !a.enabled {
		return true
	}
	if h.GetAuthRevision() == 0 || h.AuthRevision < a.revision {
		return false
	}
	u := a.users[h.GetUsername()]
	if u == nil {
		return false
	}
	return isRoot(u) || a.covered(u, key, end, perm)
}

// interval is [from, to); to nil: without an end.
type interval struct{ from, to []byte }

func newInterval(key, end []byte) interval {
	switch {
	case len(end) == 0:
		return interval{key, append(slices.Clone(key), 0)} // a point
	case len(end) == 1 && end[0] == 0:
		return interval{key, nil}
	}
	return interval{key, end}
}

// covered says whether the user's permissions together cover the range.
func (a *authState) covered(u *authpb.User, key, end []byte, want authpb.Permission_Type) bool {
	var has []interval
	for _, name := range u.Roles {
		for _, p := range a.roles[name].GetKeyPermission() {
			if p.PermType == want || p.PermType == authpb.Permission_READWRITE {
				has = append(has, newInterval(p.Key, p.RangeEnd))
			}
		}
	}
	slices.SortFunc(has, func(x, y interval) int { return bytes.Compare(x.from, y.from) })
	need := newInterval(key, end)
	at := need.from // everything before it is covered
	for _, i := range has {
		if bytes.Compare(i.from, at) > 0 {
			return false
		}
		if i.to == nil {
			return true
		}
		if bytes.Compare(i.to, at) > 0 {
			at = i.to
		}
		if need.to != nil && bytes.Compare(at, need.to) >= 0 {
			return true
		}
	}
	return false
}

// administer applies a request that changes users and roles; false if it is none. What etcd refuses changes nothing.
func (a *authState) administer(r *pb.InternalRaftRequest) bool {
	switch {
	case r.AuthEnable != nil:
		if a.admin(r.Header) && !a.enabled && isRoot(a.users[root]) {
			a.enabled = true
		}
	case r.AuthDisable != nil:
		if a.admin(r.Header) && a.enabled {
			a.enabled = false
			a.revision++
		}
	case r.AuthUserAdd != nil, r.AuthUserDelete != nil, r.AuthUserChangePassword != nil, r.AuthUserGrantRole != nil, r.AuthUserRevokeRole != nil:
		if a.admin(r.Header) && a.user(r) {
			a.revision++
		}
	case r.AuthRoleAdd != nil, r.AuthRoleDelete != nil, r.AuthRoleGrantPermission != nil, r.AuthRoleRevokePermission != nil:
		if a.admin(r.Header) && a.role(r) {
			a.revision++
		}
	default:
		return false
	}
	return true
}

// user applies a change of a user and says whether etcd counts it.
func (a *authState) user(r *pb.InternalRaftRequest) bool {
	switch {
	case r.AuthUserAdd != nil:
		q := r.AuthUserAdd
		if q.Name == "" || a.users[q.Name] != nil {
			return false
		}
		a.users[q.Name] = &authpb.User{Name: []byte(q.Name), Options: q.Options}
		return true
	case r.AuthUserDelete != nil:
		q := r.AuthUserDelete
		if a.users[q.Name] == nil || a.enabled && q.Name == root {
			return false
		}
		delete(a.users, q.Name)
		return true
	case r.AuthUserChangePassword != nil:
		return a.users[r.AuthUserChangePassword.Name] != nil
	case r.AuthUserGrantRole != nil:
		q := r.AuthUserGrantRole
		u := a.users[q.User]
		if u == nil || q.Role != root && a.roles[q.Role] == nil || slices.Contains(u.Roles, q.Role) {
			return false
		}
		u.Roles = append(u.Roles, q.Role)
		sort.Strings(u.Roles)
		return true
	}
	q := r.AuthUserRevokeRole
	u := a.users[q.Name]
	if u == nil || a.enabled && q.Name == root && q.Role == root || !slices.Contains(u.Roles, q.Role) {
		return false
	}
	u.Roles = slices.DeleteFunc(u.Roles, func(n string) bool { return n == q.Role })
	return true
}

// role applies a change of a role and says whether etcd counts it.
func (a *authState) role(r *pb.InternalRaftRequest) bool {
	switch {
	case r.AuthRoleAdd != nil:
		q := r.AuthRoleAdd
		if q.Name == "" || a.roles[q.Name] != nil {
			return false
		}
		a.roles[q.Name] = &authpb.Role{Name: []byte(q.Name)}
		return true
	case r.AuthRoleDelete != nil:
		q := r.AuthRoleDelete
		if a.roles[q.Role] == nil || a.enabled && q.Role == root {
			return false
		}
		delete(a.roles, q.Role)
		for _, u := range a.users {
			u.Roles = slices.DeleteFunc(u.Roles, func(n string) bool { return n == q.Role })
		}
		return true
	case r.AuthRoleGrantPermission != nil:
		q := r.AuthRoleGrantPermission
		role := a.roles[q.Name]
		if q.Perm == nil || role == nil || !validRange(q.Perm.Key, q.Perm.RangeEnd) {
			return false
		}
		i := sort.Search(len(role.KeyPermission), func(i int) bool { return bytes.Compare(role.KeyPermission[i].Key, q.Perm.Key) >= 0 })
		if i < len(role.KeyPermission) && bytes.Equal(role.KeyPermission[i].Key, q.Perm.Key) && bytes.Equal(role.KeyPermission[i].RangeEnd, q.Perm.RangeEnd) {
			role.KeyPermission[i] = q.Perm
		} else {
			role.KeyPermission = slices.Insert(role.KeyPermission, i, q.Perm)
		}
		return true
	}
	q := r.AuthRoleRevokePermission
	role := a.roles[q.Role]
	if role == nil {
		return false
	}
	n := len(role.KeyPermission)
	role.KeyPermission = slices.DeleteFunc(role.KeyPermission, func(p *authpb.Permission) bool {
		return bytes.Equal(p.Key, q.Key) && bytes.Equal(p.RangeEnd, q.RangeEnd)
	})
	return len(role.KeyPermission) < n
}

// validRange: isValidPermissionRange.
func validRange(key, end []byte) bool {
	return len(key) > 0 && (len(end) == 0 || bytes.Compare(key, end) < 0 || len(end) == 1 && end[0] == 0)
}
