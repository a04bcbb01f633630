package lostwrites

import (
	"bytes"
	"cmp"
	"hash/maphash"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"twok/internal/member"
	"twok/walsurgery"
)

// boundary is where the fork lies in the revisions: those up to lo are from before it, those above hi from
// behind it, and those in between may be either.
type boundary struct {
	lo, hi int64
	// madeBy is the entry that made a revision, where the log says it without a doubt.
	madeBy map[int64]uint64
	broken bool // log and database do not fit together
}

// operation is one that an entry may have carried out: a put, the deletion of a range, or, both being
// nil, that of a lease's keys.
type operation struct {
	put    *pb.PutRequest
	remove *pb.DeleteRangeRequest
	lease  int64
}

// outcome is what an entry may have done: one of the paths, or nothing.
type outcome struct {
	paths   [][]operation
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
		return outcome{paths: [][]operation{{{put: r.Put}}}, nothing: refusable || conditional(r.Put)}
	case r.GetDeleteRange() != nil:
		return outcome{paths: [][]operation{{{remove: r.DeleteRange}}}, nothing: true}
	case r.GetLeaseRevoke() != nil:
		return outcome{paths: [][]operation{{{lease: r.LeaseRevoke.ID}}}, nothing: true}
	case r.GetTxn() != nil:
		o := outcome{nothing: refusable}
		if o.paths = o.txn(r.Txn); len(o.paths) > maxPaths {
			return outcome{any: true, nothing: true}
		}
		o.paths = slices.DeleteFunc(o.paths, func(p []operation) bool {
			if !slices.ContainsFunc(p, func(op operation) bool { return op.put != nil }) {
				o.nothing = true
			}
			return len(p) == 0
		})
		return o
	}
	return outcome{nothing: true}
}

// conditional puts may be refused by what is in the key space.
func conditional(p *pb.PutRequest) bool { return p.Lease != 0 || p.IgnoreValue || p.IgnoreLease }

// txn lists the ways through a transaction, up to a few more than maxPaths.
func (o *outcome) txn(t *pb.TxnRequest) [][]operation {
	var out [][]operation
	for i, ops := range [][]*pb.RequestOp{t.Success, t.Failure} {
		if i == 1 && len(t.Compare) == 0 {
			break // it succeeds
		}
		ways := [][]operation{nil}
		for _, op := range ops {
			more := [][]operation{nil}
			switch q := op.Request.(type) {
			case *pb.RequestOp_RequestPut:
				o.nothing = o.nothing || conditional(q.RequestPut)
				more = [][]operation{{{put: q.RequestPut}}}
			case *pb.RequestOp_RequestDeleteRange:
				more = [][]operation{{{remove: q.RequestDeleteRange}}}
			case *pb.RequestOp_RequestRange:
				o.nothing = o.nothing || q.RequestRange.GetRevision() != 0
			case *pb.RequestOp_RequestTxn:
				more = o.txn(q.RequestTxn)
			}
			var next [][]operation
			for _, w := range ways {
				for _, m := range more {
					if len(next) <= maxPaths {
						next = append(next, slices.Concat(w, m))
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
		if ok, err := d.follows(p, group, main > d.compacted); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
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

// refusable says whether permissions or alarms may have made etcd refuse entries of this log.
func (d *dir) refusable() bool {
	if d.auth.enabled || len(d.alarms) > 0 {
		return true
	}
	for e := range d.log.From(0) {
		if e.Kind != walsurgery.KindNormal || e.Index > d.applied {
			continue
		}
		r, err := member.DecodeRequest(e.Data)
		if err != nil || r.GetAuthEnable() != nil || r.GetAuthDisable() != nil || r.GetAlarm() != nil || r.GetHeader().GetUsername() != "" {
			return true
		}
	}
	return false
}

// maxStates bounds how many revisions are followed at one entry.
const maxStates = 512

// align finds the revision at which the first entry of the own history (index fork, applied) met the database, by
// laying the entries of the log against the revisions of the database, backwards from consistent_index, where the
// revision is known. Each entry makes one revision or none. floor is a revision
// that is surely older, for where the log does not tell.
func (d *dir) align(fork uint64, floor int64) (boundary, error) {
	first := d.sum.First.Index
	b := boundary{lo: floor, hi: d.newest, madeBy: map[int64]uint64{}}
	if first == 0 || first > d.applied {
		return b, nil // the log has nothing of what was applied
	}
	n := int(d.applied-first) + 1
	refusable := d.refusable()
	oldest, err := d.earliest(first, refusable)
	if err != nil {
		return b, err
	}
	// after[i] are the revisions that may be current once entry first+i-1 was applied, steps[i] those that entry
	// first+i may have made.
	after, steps := make([][]int64, n+1), make([][]int64, n)
	idle := make([]bool, n)
	after[n] = []int64{d.newest}
	from := 0
	for i := n - 1; i >= 0; i-- {
		o, err := d.outcome(first+uint64(i), refusable)
		if err != nil {
			return b, err
		}
		idle[i] = o.nothing
		for _, r := range after[i+1] {
			if o.nothing && alive(oldest, r, first+uint64(i)) {
				after[i] = append(after[i], r)
			}
			if ok, err := d.made(o, r); err != nil {
				return b, err
			} else if ok && alive(oldest, r-1, first+uint64(i)) {
				steps[i] = append(steps[i], r)
				after[i] = append(after[i], r-1)
			}
		}
		slices.Sort(after[i])
		after[i] = slices.Compact(after[i])
		if len(after[i]) == 0 {
			return boundary{lo: floor, hi: d.newest, broken: true}, nil
		}
		if len(after[i]) > maxStates {
			from = i
			break
		}
	}
	// Forwards: what cannot be reached from the oldest end is out.
	reach := after[from]
	start := first + uint64(from)
	if fork < start {
		b.hi = slices.Max(reach)
		if fork >= first {
			b.lo = max(floor, slices.Min(reach)-int64(start-fork))
		}
	}
	for i := from; ; i++ {
		if index := first + uint64(i); index == fork {
			b.lo, b.hi = slices.Min(reach), slices.Max(reach)
		}
		if i == n {
			break
		}
		var next []int64
		for _, r := range reach {
			if slices.Contains(steps[i], r+1) {
				next = append(next, r+1)
			}
			if idle[i] && slices.Contains(after[i+1], r) {
				next = append(next, r)
			}
		}
		slices.Sort(next)
		next = slices.Compact(next)
		if len(next) == 0 {
			return boundary{lo: floor, hi: d.newest, broken: true}, nil
		}
		if len(reach) == 1 && len(next) == 1 && next[0] == reach[0]+1 {
			b.madeBy[next[0]] = first + uint64(i)
		}
		reach = next
	}
	b.hi = max(b.hi, b.lo)
	return b, nil
}

func (d *dir) outcome(index uint64, refusable bool) (outcome, error) {
	for e := range d.log.From(index) {
		switch {
		case e.Err != nil && e.Data == nil:
			return outcome{}, e.Err
		case e.Kind == walsurgery.KindConfChange:
			return outcome{nothing: true}, nil
		case e.Kind != walsurgery.KindNormal:
			return outcome{any: true, nothing: true}, nil
		}
		r, err := member.DecodeRequest(e.Data)
		return outcomes(r, err, refusable), nil
	}
	return outcome{}, walsurgery.ErrCorrupt
}

// alive says whether revision r may be current once the entries below index were applied: not before an entry was that can
// have made it, or one that can have made an older one.
func alive(oldest map[int64]uint64, r int64, index uint64) bool {
	return oldest[r] < index
}

// content is what a put writes, its value by a hash.
type content struct {
	key   string
	value uint64
}

// earliest is, for each revision, the first entry from which on it may be current; 0: from before the log. A revision that some entry of
// the log can have made was made there, not before the log by a twin: that is assumed.
func (d *dir) earliest(first uint64, refusable bool) (map[int64]uint64, error) {
	low := d.newest - int64(d.applied-first) - 1
	var (
		same  = map[content][]int64{} // revisions that put the same
		puts  = map[string][]int64{}  // that put a key
		tombs = map[string][]int64{}  // that delete a key
		wild  []int64                 // that delete any
		seed  = maphash.MakeSeed()
	)
	i, _ := slices.BinarySearchFunc(d.revs, low, func(r revision, m int64) int { return cmp.Compare(r.main, m) })
	for ; i < len(d.revs); i++ {
		r := d.revs[i]
		if r.tomb {
			tombs[r.key] = append(tombs[r.key], r.main)
			wild = append(wild, r.main)
			continue
		}
		v, err := r.value.Bytes()
		if err != nil {
			return nil, err
		}
		c := content{r.key, maphash.Bytes(seed, v)}
		same[c], puts[r.key] = append(same[c], r.main), append(puts[r.key], r.main)
	}
	wild = slices.Compact(wild)
	by := map[int64]uint64{}
	for e := range d.log.From(first) {
		if e.Index > d.applied {
			break
		}
		o, err := d.outcome(e.Index, refusable)
		if err != nil {
			return nil, err
		}
		try := func(mains []int64) error {
			for _, m := range mains {
				if by[m] != 0 {
					continue
				}
				ok, err := d.made(o, m)
				if err != nil {
					return err
				}
				if ok {
					by[m] = e.Index
				}
			}
			return nil
		}
		for _, p := range o.paths {
			for _, op := range p {
				var err error
				switch {
				case op.put != nil && op.put.IgnoreValue:
					err = try(puts[string(op.put.Key)])
				case op.put != nil:
					err = try(same[content{string(op.put.Key), maphash.Bytes(seed, op.put.Value)}])
				case op.remove != nil && len(op.remove.RangeEnd) == 0:
					err = try(tombs[string(op.remove.Key)])
				default:
					err = try(wild)
				}
				if err != nil {
					return nil, err
				}
			}
		}
	}
	most := uint64(0)
	for m := low; m <= d.newest; m++ {
		most = max(most, by[m])
		by[m] = most
	}
	return by, nil
}
