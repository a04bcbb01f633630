package lostwrites

import (
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
	// doubtful are entries that may have made a revision of which nothing is left, or none.
	doubtful []uint64
	broken   bool // log and database do not fit together
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

// names collects the revisions that transactions name as a key's mod revision, as Kubernetes does: a client knows it only from a
// reply. That tells who made a revision of which the database has nothing left.
func (d *dir) names(first uint64) {
	d.named = map[int64]map[string]bool{}
	var txn func(t *pb.TxnRequest)
	txn = func(t *pb.TxnRequest) {
		for _, c := range t.Compare {
			if rev := c.GetModRevision(); c.Target == pb.Compare_MOD && c.Result == pb.Compare_EQUAL && rev > 1 && rev <= d.compacted && len(c.RangeEnd) == 0 {
				if d.named[rev] == nil {
					d.named[rev] = map[string]bool{}
				}
				d.named[rev][string(c.Key)] = true
			}
		}
		for _, ops := range [][]*pb.RequestOp{t.Success, t.Failure} {
			for _, op := range ops {
				if n := op.GetRequestTxn(); n != nil {
					txn(n)
				}
			}
		}
	}
	for e := range d.log.From(first) {
		if e.Kind != walsurgery.KindNormal {
			continue
		}
		if r, err := member.DecodeRequest(e.Data); err == nil && r.GetTxn() != nil {
			txn(r.Txn)
		}
	}
	d.namesOf = map[string][]int64{}
	for rev, keys := range d.named {
		for key := range keys {
			d.namesOf[key] = append(d.namesOf[key], rev)
		}
	}
	for _, revs := range d.namesOf {
		slices.Sort(revs)
	}
}

// maxStates bounds how many revisions are followed at one entry.
const maxStates = 512

// align finds the revision at which the first entry of the own history (index fork, applied) met the database, by
// laying the entries of the log against the revisions of the database, backwards from consistent_index, where the
// revision is known. Each entry makes one revision or none. floor is a revision
// that is surely older, for where the log does not tell.
func (d *dir) align(fork uint64, floor int64) (boundary, error) {
	b, err := d.lay(fork, floor)
	if err != nil || b.broken || len(b.doubtful) == 0 {
		return b, err
	}
	// Where the fork is does not rest on names, which a client may have made up; who made what of the rest does.
	d.names(d.sum.First.Index)
	defer func() { d.named, d.namesOf = nil, nil }()
	n, err := d.lay(fork, floor)
	if err == nil && !n.broken && n.lo >= b.lo && n.hi <= b.hi {
		b.madeBy, b.doubtful = n.madeBy, n.doubtful
	}
	return b, err
}

func (d *dir) lay(fork uint64, floor int64) (boundary, error) {
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
		switch index := first + uint64(i); {
		case len(reach) == 1 && len(next) == 1 && next[0] == reach[0]+1:
			b.madeBy[next[0]] = index
		case index >= fork && slices.ContainsFunc(next, func(r int64) bool {
			return slices.Contains(reach, r-1) && slices.Contains(steps[i], r) && r <= d.compacted && len(d.group(r)) == 0
		}):
			b.doubtful = append(b.doubtful, index)
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
			for _, op := range p.ops {
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
