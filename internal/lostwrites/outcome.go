package lostwrites

import (
	"bytes"
	"cmp"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// operation is one that an entry may have carried out: a put, the deletion of a range, or, both being
// nil, that of a lease's keys.
type operation struct {
	put    *pb.PutRequest
	remove *pb.DeleteRangeRequest
	lease  int64
}

// path is one way through a request: what it writes, and what its compares ask for on that way.
type path struct {
	ops  []operation
	when []*pb.Compare
}

// outcome is what an entry may have done: one of the paths, or nothing.
type outcome struct {
	paths   []path
	any     bool // anything
	nothing bool
}

const maxPaths = 64

// outcomes tells what a request may have done without knowing the state that it met. refusable says that
// permissions or alarms may have stood in the way.
func outcomes(r *pb.InternalRaftRequest, err error, refusable bool) outcome {
	switch {
	case err != nil:
		return outcome{any: true, nothing: true}
	case r.GetPut() != nil:
		return outcome{paths: []path{{ops: []operation{{put: r.Put}}}}, nothing: refusable || conditional(r.Put)}
	case r.GetDeleteRange() != nil:
		return outcome{paths: []path{{ops: []operation{{remove: r.DeleteRange}}}}, nothing: true}
	case r.GetLeaseRevoke() != nil:
		return outcome{paths: []path{{ops: []operation{{lease: r.LeaseRevoke.ID}}}}, nothing: true}
	case r.GetTxn() != nil:
		o := outcome{nothing: refusable}
		if o.paths = o.txn(r.Txn); len(o.paths) > maxPaths {
			return outcome{any: true, nothing: true}
		}
		o.paths = slices.DeleteFunc(o.paths, func(p path) bool {
			if !slices.ContainsFunc(p.ops, func(op operation) bool { return op.put != nil }) {
				o.nothing = true
			}
			return len(p.ops) == 0
		})
		return o
	}
	return outcome{nothing: true}
}

// conditional puts may be refused by what is in the key space.
func conditional(p *pb.PutRequest) bool { return p.Lease != 0 || p.IgnoreValue || p.IgnoreLease }

// txn lists the ways through a transaction, up to a few more than maxPaths.
func (o *outcome) txn(t *pb.TxnRequest) []path {
	var out []path
	for i, ops := range [][]*pb.RequestOp{t.Success, t.Failure} {
		if i == 1 && len(t.Compare) == 0 {
			break // it succeeds
		}
		ways := []path{{}}
		if i == 0 {
			ways[0].when = t.Compare
		}
		for _, op := range ops {
			more := []path{{}}
			switch q := op.Request.(type) {
			case *pb.RequestOp_RequestPut:
				o.nothing = o.nothing || conditional(q.RequestPut)
				more[0].ops = []operation{{put: q.RequestPut}}
			case *pb.RequestOp_RequestDeleteRange:
				more[0].ops = []operation{{remove: q.RequestDeleteRange}}
			case *pb.RequestOp_RequestRange:
				o.nothing = o.nothing || q.RequestRange.GetRevision() != 0
			case *pb.RequestOp_RequestTxn:
				more = o.txn(q.RequestTxn)
			}
			var next []path
			for _, w := range ways {
				for _, m := range more {
					if len(next) <= maxPaths {
						next = append(next, path{slices.Concat(w.ops, m.ops), slices.Concat(w.when, m.when)})
					}
				}
			}
			ways = next
		}
		out = append(out, ways...)
	}
	return out[:min(len(out), maxPaths+1)]
}

// group are the changes of one main revision that the database still has.
func (d *dir) group(main int64) []revision {
	i, _ := slices.BinarySearchFunc(d.revs, main, func(r revision, m int64) int { return cmp.Compare(r.main, m) })
	j := i
	for j < len(d.revs) && d.revs[j].main == main {
		j++
	}
	return d.revs[i:j]
}

// made says whether an entry may have made a main revision.
func (d *dir) made(o outcome, main int64) (bool, error) {
	group := d.group(main)
	switch {
	case main <= 1 || len(group) == 0 && main > d.compacted:
		return false, nil
	case o.any:
		return true, nil
	}
	for _, p := range o.paths {
		if len(group) == 0 && !writes(p, d.named[main]) || !d.possible(p, main) {
			continue
		}
		if ok, err := d.follows(p.ops, group, main > d.compacted); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// writes says whether a path puts one of the keys; any path does if there are none.
func writes(p path, keys map[string]bool) bool {
	return len(keys) == 0 || slices.ContainsFunc(p.ops, func(op operation) bool { return op.put != nil && keys[string(op.put.Key)] })
}

// possible says whether the compares of a way can have held when it made a revision: a key's mod revision is an older one, and no
// revision of the key lies between, as far as the database or a name tells.
func (d *dir) possible(p path, main int64) bool {
	for _, c := range p.when {
		rev := c.GetModRevision()
		if c.Target != pb.Compare_MOD || c.Result != pb.Compare_EQUAL || len(c.RangeEnd) > 0 {
			continue
		}
		if rev == 1 || rev >= main {
			return false
		}
		at := d.byKey[string(c.Key)]
		i, _ := slices.BinarySearchFunc(at, main, func(i int32, m int64) int { return cmp.Compare(d.revs[i].main, m) })
		if i > 0 {
			switch last := d.revs[at[i-1]]; {
			case last.main > rev && (rev > 0 || !last.tomb), rev > 0 && last.main == rev && last.tomb:
				return false
			}
		}
		if rev > 0 {
			named := d.namesOf[string(c.Key)]
			if j, found := slices.BinarySearch(named, rev); found && j+1 < len(named) && named[j+1] < main || !found && j < len(named) && named[j] < main {
				return false
			}
		}
	}
	return true
}

// follows says whether the changes are what the operations make, in their order; if they are not all there
// any more, whether each of them is.
func (d *dir) follows(path []operation, group []revision, whole bool) (bool, error) {
	if !whole {
		for _, r := range group {
			ok := false
			for _, op := range path {
				m, err := d.matches(op, r)
				if err != nil {
					return false, err
				}
				ok = ok || m
			}
			if !ok {
				return false, nil
			}
		}
		return true, nil
	}
	at := 0
	for _, op := range path {
		for at < len(group) {
			ok, err := d.matches(op, group[at])
			if err != nil {
				return false, err
			}
			if !ok {
				break
			}
			at++
			if op.put != nil {
				break
			}
		}
		if op.put != nil && (at == 0 || group[at-1].tomb || group[at-1].key != string(op.put.Key)) {
			return false, nil
		}
	}
	return at == len(group) && at > 0, nil
}

func (d *dir) matches(op operation, r revision) (bool, error) {
	switch {
	case op.put == nil && op.remove == nil:
		if !r.tomb {
			return false, nil
		}
		before := d.before(r.key, r.main)
		return !before.Exists || before.Lease == op.lease, nil
	case op.put == nil:
		return r.tomb && within(r.key, op.remove.Key, op.remove.RangeEnd), nil
	case r.tomb || r.key != string(op.put.Key) || !op.put.IgnoreLease && r.lease != op.put.Lease:
		return false, nil
	case op.put.IgnoreValue:
		return true, nil
	case r.value.n != len(op.put.Value):
		return false, nil
	}
	v, err := r.value.Bytes()
	return bytes.Equal(v, op.put.Value), err
}
