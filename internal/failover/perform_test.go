package failover

import (
	"fmt"
	"slices"

	"twok/arbiter"
)

// perform carries out one action and returns its answer. How it ends can be told
// in advance, once for each action of a kind:
//
//	fail      not carried out, Failed
//	lose      carried out, but the answer is Unknown
//	nothing   not carried out, the answer is Unknown
//	late      a swap: Unknown, and the store applies it at the command "apply-late"
//	own-412   a swap: carried out, but the answer is Conflict (F29)
func (s *site) perform(a Action) Event {
	how := ""
	if q := s.next[a.Kind]; len(q) > 0 {
		how, s.next[a.Kind] = q[0], q[1:]
	}
	e := Event{Kind: a.Kind.Reply()}
	switch how {
	case "fail":
		e.Outcome = Failed
		if a.Kind == Swap {
			e.Why = RecordForbidden
		}
		if a.Kind == ReadRecord {
			e.Status = Unavailable
		}
		return e
	case "nothing":
		if a.Kind == ReadRecord {
			e.Status = Unavailable
		}
		return e
	case "late":
		s.store(a)
		s.w.late = append(s.w.late, lateSwap{prevOf(a), a.Record})
		return e
	}
	s.carry(a, &e)
	switch how {
	case "lose":
		e = Event{Kind: e.Kind}
		if a.Kind == AddLearner {
			s.added = 0
		}
	case "own-412":
		e.Outcome = Conflict
	}
	return e
}

func prevOf(a Action) int {
	n := 0
	if a.Prev.Exists() {
		if _, err := fmt.Sscan(a.Prev.Tag(), &n); err != nil {
			panic(err)
		}
	}
	return n
}

func (s *site) store(a Action) {
	if a.Claim {
		s.own = s.s.Mine
	}
}

// put is the store's compare-and-swap.
func (w *world) put(prev int, next arbiter.Record) bool {
	if prev != w.ver || w.status > Readable {
		return false
	}
	w.old = append(w.old, w.rec)
	w.rec = next
	w.ver = len(w.old)
	return true
}

func (s *site) carry(a Action, e *Event) {
	w, d := s.w, &s.etcd
	switch a.Kind {
	case ReadRecord:
		switch {
		case s.arb != "up":
			e.Status = Unavailable
		case w.status > Readable:
			e.Status = w.status
		case w.ver == 0:
			e.Outcome, e.Status = Done, Absent
		default:
			s.seen[w.rec.ID] = max(s.seen[w.rec.ID], w.rec.Generation)
			e.Outcome, e.Status, e.Record, e.Version, e.Seen = Done, Readable, w.rec, arbiter.At(fmt.Sprint(w.ver)), s.seen[w.rec.ID]
		}
	case Swap:
		s.store(a)
		switch {
		case s.arb == "silent":
		case s.arb != "up":
			e.Outcome, e.Why = Failed, RecordUnavailable
		case w.put(prevOf(a), a.Record):
			e.Outcome = Done
			s.won = s.won || (a.Claim && s.locked)
			if c := a.Record.Confirmed.Index; c != 0 && !w.current(s) {
				w.lineage = w.of(s) // forced, and its append was not needed to lead: it led already
				w.forget(s)
			}
			if a.Claim {
				s.term = a.Record.Fork.Term
			}
		default:
			e.Outcome = Conflict
		}
	case Preflight, Tidy:
		e.Outcome = Done
	case Stop:
		if !s.locked {
			s.locked, s.won, d.leads = true, false, false
		}
		e.Outcome = Done
	case ReadData:
		e.Outcome, e.Data = Failed, Data{}
		if s.locked {
			e.Outcome, e.Data = Done, s.data(a.Index)
		}
		if s.locked && s.blank {
			e.Data = Data{Problem: DiskBlank}
		}
	case Append:
		e.Outcome = Failed
		if s.locked && a.Term > d.term {
			e.Outcome = Done
			if a.Term > d.term+1 {
				w.fork(s, a.Term)
			}
			d.term = a.Term
			n := len(d.log)
			if a.ID != 0 {
				d.id, d.dead, w.joins = a.ID, false, w.joins+1
				for _, id := range a.Remove[:a.Twins] {
					d.log = append(d.log, entry{term: d.term, conf: ConfChange{Kind: ChangeRemove, ID: id}})
				}
				d.log = append(d.log, entry{term: d.term, conf: ConfChange{Kind: ChangeAdd, ID: a.ID, PeerURLs: s.url()}})
			}
			for i, id := range a.Remove {
				if id != 0 && (a.ID == 0 || i >= int(a.Twins)) {
					d.log = append(d.log, entry{term: d.term, conf: ConfChange{Kind: ChangeRemove, ID: id}})
				}
			}
			if len(d.log) == n {
				d.log = append(d.log, entry{term: d.term})
			}
			d.commit = len(d.log)
		}
	case Release:
		if s.blank && s.etcd.id == 0 && w.ver != 0 {
			w.violation("%s starts etcd on an empty disk, and there is a record", s.name)
		}
		s.blank = false
		if s.locked || !d.running {
			s.startEtcd()
		}
		s.locked, s.won, e.Outcome = false, false, Done
	case Restart:
		s.startEtcd()
		e.Outcome = Done
	case LookAtList:
		e.Outcome = Failed
		if o := s.other(); w.link && o.alive() && o.etcd.leads {
			e.Outcome, e.List = Done, s.list(o)
		}
	case RemoveLearner, AddLearner, Promote:
		s.change(a, e)
	case Rewrite:
		d.id, d.leads, d.dead = a.ID, false, false
		if !a.Keep {
			s.aside = append(s.aside, a.Why)
			d.log, d.commit, d.term = nil, 0, 0
		}
		e.Outcome = Done
	case Compare:
		e.Outcome = Failed
		if o := s.other(); w.joined() && s.alive() && o.etcd.leads && d.id == a.ID {
			e.Outcome = Done
			e.Equal = slices.EqualFunc(d.log, o.etcd.log, sameEntry)
		}
	case Sample:
		e.Outcome = Failed
		if d.leads {
			e.Outcome, e.Position = Done, arbiter.Position{Index: uint64(d.commit), Term: d.log[d.commit-1].term}
		}
	case WriteToken:
		e.Outcome = Failed
		ms, _ := d.conf(d.commit)
		if v := voters(ms); d.leads && v.Count == 2 {
			t := Token{Present: true, RecordID: a.RecordID, Generation: a.Generation, Cluster: clusterID, Members: v.IDs, Term: d.term}
			d.log = append(d.log, entry{term: d.term, token: t})
			e.Outcome, e.Token = Done, t
		}
	}
}

func (s *site) startEtcd() {
	s.etcd.start++
	s.etcd.running, s.etcd.dead, s.etcd.leads = !s.away, false, false
}

// list is the member list of the lone or paired leader, as it concerns this site.
func (s *site) list(o *site) List {
	ms, _ := o.etcd.conf(o.etcd.commit)
	l := List{OK: true, Leader: o.etcd.id, Cluster: clusterID, Version: o.etcd.version, Voters: voters(ms)}
	for _, m := range ms {
		switch {
		case m.ID == s.etcd.id && m.Learner:
			l.Self = ListedLearner
		case m.ID == s.etcd.id, s.etcd.id == 0 && !m.Learner && slices.Equal(m.PeerURLs, s.url()):
			l.Self = ListedVoter
		case m.Learner && slices.Equal(m.PeerURLs, s.url()):
			l.Leftover = m.ID
		case m.Learner:
			l.Stranger = m.ID
		}
	}
	return l
}

// change is a membership call at the other side's leader.
func (s *site) change(a Action, e *Event) {
	w, o := s.w, s.other()
	e.Outcome = Failed
	if !w.link || !o.alive() || !o.etcd.leads {
		e.Outcome = Unknown
		return
	}
	c := ConfChange{Kind: ChangeRemove, ID: a.ID}
	switch a.Kind {
	case AddLearner:
		c = ConfChange{Kind: ChangeAddLearner, ID: w.ids + 1, PeerURLs: s.url()}
	case Promote:
		c.Kind = ChangePromote
	}
	if !o.propose(c) {
		return
	}
	e.Outcome = Done
	if a.Kind == AddLearner {
		w.ids++
		e.ID, s.added = c.ID, c.ID
	}
}

// propose commits a membership change at this site's leader, if etcd accepts it.
func (s *site) propose(c ConfChange) bool {
	d, w := &s.etcd, s.w
	ms, removed := d.conf(len(d.log))
	members, gone := map[uint64]ConfMember{}, map[uint64]bool{}
	for _, m := range ms {
		members[m.ID] = m
	}
	for _, id := range removed {
		gone[id] = true
	}
	if !d.leads || !accept(members, gone, c) {
		return false
	}
	d.log = append(d.log, entry{term: d.term, conf: c})
	d.commit = len(d.log)
	if o := s.other(); c.Kind == ChangeRemove && c.ID == o.etcd.id && !members[c.ID].Learner && w.joined() && o.alive() {
		o.etcd.log = slices.Clone(d.log) // it took both of them to commit its removal
	}
	return true
}
