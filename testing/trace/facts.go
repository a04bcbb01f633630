package trace

import (
	"slices"

	"twok/arbiter"
	"twok/internal/failover"
	"twok/testing/explore"
)

// slots is how many entries of the model stand for all that lie between two indices that
// matter. Members, tokens and leaders' first entries that no line shows have their places there;
// clients leave them the last few until the next index that matters is reached.
const (
	slots = 12
	spare = 5
)

// facts is what the whole trace says before the first step of the model: which indices,
// terms and members there are. Its foresight chooses among hidden moves; what is chosen is checked.
type facts struct {
	lines   []Line
	idx     []uint64 // indices that matter, ascending
	at      []uint64 // where they are in the model
	terms   []uint64 // all terms, ascending
	cluster uint64
	record  string
	ids     [2]uint64   // the first members
	later   [2][]uint64 // the IDs that the sites had after these, in order
	third   []uint64    // members of neither
	reads   [2][]dataRead
	leaders map[uint32]uint64           // who was seen to lead most in a term of the model
	shown   []dated                     // when a higher term was seen than ever before
	tokens  [2][]int                    // the lines that say what became of a token's write
	written map[arbiter.Position]int    // of these, the one that says that it wrote the entry
	special map[arbiter.Position]uint64 // entries of the model that are no client's: the member that a change is of, aToken
}

type dataRead struct {
	line int
	d    failover.Data // in the model's values
	who  uint64
}

const aToken = 1

func gather(ls []Line) *facts {
	f := &facts{lines: ls, special: map[arbiter.Position]uint64{}, written: map[arbiter.Position]int{}}
	idx := map[uint64]bool{0: true, 1: true, 2: true}
	terms := map[uint64]bool{0: true, 1: true}
	led := map[uint64]uint64{}
	top := uint64(0)
	show := func(at int64, terms ...uint64) {
		if t := slices.Max(terms); t > top {
			top = t
			f.shown = append(f.shown, dated{at, t})
		}
	}
	pos := func(ps ...arbiter.Position) {
		for _, p := range ps {
			idx[p.Index], terms[p.Term] = true, true
		}
	}
	f.record, f.cluster = came(ls)
	record := func(r *arbiter.Record) {
		if r.ID == "" {
			return
		}
		pos(r.ClaimEnd, r.Fork, r.Confirmed)
		idx[r.MarkIndex] = true
		for _, h := range r.History {
			pos(h.Fork)
		}
	}
	var all []uint64
	known := func(site int, id uint64) {
		switch {
		case id == 0 || id == f.ids[0] || id == f.ids[1] || slices.Contains(f.later[0], id) || slices.Contains(f.later[1], id):
		case f.ids[site] == 0:
			f.ids[site] = id
		default:
			f.later[site] = append(f.later[site], id)
		}
	}
	seen := func(ids ...uint64) { all = append(all, ids...) }
	for n := range ls {
		l := &ls[n]
		if l.Edit != nil {
			if r, err := arbiter.Decode(l.Edit.Value); err == nil && r.ID == f.record {
				record(&r)
			}
			continue
		}
		if l.In == nil {
			pos(l.Start.Own.End, l.Start.Own.Fork)
			continue
		}
		e := &l.In.Event
		known(l.Site, e.Obs.Member)
		known(l.Site, e.ID)
		known(l.Site, e.List.Leftover)
		seen(e.Obs.Voters.IDs[:]...)
		seen(e.List.Voters.IDs[:]...)
		seen(e.List.Stranger, e.Obs.Leader)
		terms[e.Obs.Term], terms[e.Obs.Token.Term], terms[e.Token.Term], terms[e.Token.EntryTerm] = true, true, true, true
		if f.cluster == 0 {
			f.cluster = e.Obs.Cluster
		}
		record(&e.Record)
		pos(e.Position)
		show(l.At, e.Obs.Term, e.Token.Term, e.Token.EntryTerm, e.Data.Term, e.Position.Term, e.Obs.Token.Term, e.Record.Fork.Term)
		// A second leader in one term: the term that is shown beside it is one of before (look).
		if o := &e.Obs; o.Etcd == failover.EtcdLed && o.Term != 0 {
			if first, ok := led[o.Term]; !ok {
				led[o.Term] = o.Leader
			} else if first != o.Leader {
				terms[o.Term+1] = true
				show(l.At, o.Term+1)
			}
		}
		if d := &e.Data; e.Kind == failover.DataRead && d.Problem == failover.None && d.Member != 0 {
			known(l.Site, d.Member)
			pos(d.Last)
			idx[d.Commit], idx[d.Applied], idx[d.TokenIndex], idx[d.Past.More] = true, true, true, true
			if d.First > 0 {
				idx[d.First-1], idx[d.First] = true, true
			}
			terms[d.Term], terms[d.Asked], terms[d.Token.Term], terms[d.Token.EntryTerm] = true, true, true, true
			for _, c := range d.Past.Newest {
				pos(arbiter.Position{Index: c.Index, Term: c.Term})
			}
			seen(d.Confs.Remove[:]...)
		}
		for k := range l.Out {
			a := &l.Out[k].Action
			record(&a.Record)
			idx[a.Index], terms[a.Term] = true, true
			if a.Kind == failover.Rewrite {
				known(l.Site, a.ID)
			}
		}
	}
	for i := range idx {
		f.idx = append(f.idx, i)
	}
	slices.Sort(f.idx)
	for k, i := range f.idx {
		at := uint64(0)
		if k > 0 {
			at = f.at[k-1] + min(i-f.idx[k-1]-1, slots) + 1
		}
		f.at = append(f.at, at)
	}
	for t := range terms {
		f.terms = append(f.terms, t)
	}
	slices.Sort(f.terms)
	for _, id := range all {
		if id != 0 && id != f.ids[0] && id != f.ids[1] && !slices.Contains(f.later[0], id) && !slices.Contains(f.later[1], id) && !slices.Contains(f.third, id) {
			f.third = append(f.third, id)
		}
	}
	f.lead()
	for n := range ls {
		l := &ls[n]
		if l.In == nil {
			continue
		}
		if l.In.Kind == failover.TokenWritten {
			f.tokens[l.Site] = append(f.tokens[l.Site], n)
		}
		if d := l.In.Data; l.In.Kind == failover.DataRead && d.Problem == failover.None && d.Member != 0 {
			m := f.data(d)
			f.reads[l.Site] = append(f.reads[l.Site], dataRead{n, m, d.Member})
			if d.TokenIndex != 0 && d.Token.EntryTerm != 0 {
				p := f.pos(arbiter.Position{Index: d.TokenIndex, Term: d.Token.EntryTerm})
				f.special[p] = aToken
				for _, k := range append(f.tokens[0][:len(f.tokens[0]):len(f.tokens[0])], f.tokens[1]...) {
					if e := &ls[k].In.Event; e.Outcome == failover.Done && e.Token.Generation == d.Token.Generation && e.Token.Term == d.Token.Term {
						f.written[p] = max(f.written[p], k)
					}
				}
			}
			for _, c := range d.Past.Newest {
				if c.Index > 2 {
					f.special[f.pos(arbiter.Position{Index: c.Index, Term: c.Term})] = c.ID
				}
			}
		}
	}
	return f
}

// lead finds out who led in which term. Now and then a new leader is seen in the term before its own.
func (f *facts) lead() {
	type key struct {
		term   uint32
		leader uint64
	}
	n, most := map[key]int{}, map[uint32]int{}
	for k := range f.lines {
		if l := &f.lines[k]; l.In != nil && l.In.Obs.Etcd == failover.EtcdLed {
			n[key{uint32(f.term(l.In.Obs.Term)), l.In.Obs.Leader}] += int(l.Ticks)
		}
	}
	f.leaders = map[uint32]uint64{}
	for k, c := range n {
		if c > most[k.term] {
			most[k.term], f.leaders[k.term] = c, k.leader
		}
	}
	for k, c := range n {
		if c == most[k.term] && k.leader != f.leaders[k.term] {
			f.leaders[k.term] = 0 // nobody knows
		}
	}
}

// mayLead says whether the trace has nothing against this leader of a term.
func (f *facts) mayLead(id uint64, term uint32) bool {
	who := f.leaders[term]
	return who == 0 || who == id
}

type dated struct {
	at   int64
	term uint64
}

// topTerm is the model's highest term that is seen until then.
func (f *facts) topTerm(until int64) uint32 {
	top := uint64(1)
	for _, d := range f.shown {
		if d.at <= until {
			top = max(top, d.term)
		}
	}
	return uint32(f.term(top))
}

// next is what site i's data say the next time that they are read, on line n or later.
func (f *facts) next(i, n int, who uint64) *failover.Data {
	for k := range f.reads[i] {
		if r := &f.reads[i][k]; r.line >= n {
			if r.who != who {
				return nil
			}
			return &r.d
		}
	}
	return nil
}

// index is where an index of etcd's log is in the model's.
func (f *facts) index(v uint64) uint64 {
	k, ok := slices.BinarySearch(f.idx, v)
	if ok {
		return f.at[k]
	}
	n := v - f.idx[k-1] - 1
	if k < len(f.idx) {
		n = min(n+1, f.at[k]-f.at[k-1]-1)
	} else {
		n = min(n+1, slots)
	}
	return f.at[k-1] + n - min(n, spare)
}

// term is the model's term for one of etcd's. Both have the same order.
func (f *facts) term(v uint64) uint64 {
	k, _ := slices.BinarySearch(f.terms, v)
	return uint64(k)
}

// came is the record that came to be: the first that was read, or else the last that was proposed. A creation
// that failed may be proposed again under another ID.
func came(ls []Line) (id string, cluster uint64) {
	for n := range ls {
		l := &ls[n]
		if l.In == nil {
			continue
		}
		if r := &l.In.Event.Record; r.ID != "" {
			return r.ID, r.ClusterID
		}
		for k := range l.Out {
			if r := &l.Out[k].Action.Record; r.ID != "" {
				id, cluster = r.ID, r.ClusterID
			}
		}
	}
	return id, cluster
}

func (f *facts) pos(p arbiter.Position) arbiter.Position {
	return arbiter.Position{Index: f.index(p.Index), Term: f.term(p.Term)}
}

func (f *facts) clusterOf(v uint64) uint64 {
	if v == f.cluster && v != 0 {
		return explore.Cluster
	}
	return v
}

func (f *facts) recordOf(v string) string {
	if v == f.record && v != "" {
		return explore.RecordID
	}
	return v
}

func (f *facts) token(t failover.Token) failover.Token {
	t.Term, t.EntryTerm = f.term(t.Term), f.term(t.EntryTerm)
	t.Cluster, t.RecordID = f.clusterOf(t.Cluster), f.recordOf(t.RecordID)
	return t
}

func (f *facts) data(d failover.Data) failover.Data {
	d.Name, d.Cluster = "", f.clusterOf(d.Cluster)
	d.Term, d.Asked = f.term(d.Term), f.term(d.Asked)
	d.Commit, d.Applied, d.Last = f.index(d.Commit), f.index(d.Applied), f.pos(d.Last)
	d.Snap, d.First, d.TokenIndex = 0, f.index(d.First), f.index(d.TokenIndex)
	d.Token = f.token(d.Token)
	d.Tail.RecordID = f.recordOf(d.Tail.RecordID)
	d.Past.More = f.index(d.Past.More)
	if d.Past.More <= d.TokenIndex {
		d.Past.More = 0
	}
	for k := range d.Past.Newest {
		c := &d.Past.Newest[k]
		c.Index, c.Term = f.index(c.Index), f.term(c.Term)
		if c.Index <= d.TokenIndex {
			*c = failover.Change{} // what came before the token is asked for by no rule
		}
	}
	return d
}

// bare is the record without what is for people and without nonces.
func bare(r arbiter.Record) arbiter.Record {
	r.Nonce, r.ClaimNonce, r.Reason, r.Extra, r.Survivor.Name = "", "", "", "", ""
	r.CreatedAt, r.ClaimedAt, r.WrittenAt, r.ConfirmedAt, r.WholeAt = 0, 0, 0, 0, 0
	for k := range r.History {
		r.History[k].At, r.History[k].Extra = 0, ""
	}
	return r
}

// rec is a real record in the model's values, bare.
func (f *facts) rec(r arbiter.Record) arbiter.Record {
	r = bare(r)
	r.ID, r.ClusterID = f.recordOf(r.ID), f.clusterOf(r.ClusterID)
	r.ClaimEnd, r.Fork, r.Confirmed, r.MarkIndex = f.pos(r.ClaimEnd), f.pos(r.Fork), f.pos(r.Confirmed), f.index(r.MarkIndex)
	for k := range r.History {
		r.History[k].Fork = f.pos(r.History[k].Fork)
	}
	return r
}
