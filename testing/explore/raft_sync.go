package explore

import "twok/internal/failover"

// stepDown is CheckQuorum.
func (w *World) stepDown(i int) bool {
	if !w.Nodes[i].Leader || !w.alive(i) || w.reaches(i) {
		return false
	}
	w.Nodes[i].Leader = false
	return true
}

// learn tells node i that it is removed.
func (w *World) learn(i int) bool {
	n := &w.Nodes[i]
	if n.ID == 0 || !w.alive(i) {
		return false
	}
	for j := range w.Nodes {
		if j == i || !w.alive(j) || !w.linked(i, j) {
			continue
		}
		if c := w.conf(&w.Nodes[j], w.Nodes[j].Applied); c.gone(n.ID) {
			n.Dead, n.Leader = true, false
			w.halt(i)
			return true
		}
	}
	return false
}

// sync lets the leader with the highest term do all that it can.
func (w *World) sync() bool {
	before := w.Nodes
	for range 6 {
		l := -1
		for i := range w.Nodes {
			if w.Nodes[i].Leader && w.alive(i) && (l < 0 || w.Nodes[i].Term > w.Nodes[l].Term) {
				l = i
			}
		}
		for i := range w.Nodes {
			if l >= 0 && i != l {
				w.replicate(l, i, true)
				w.acknowledge(l, i)
			}
		}
		for i := range w.Nodes {
			w.applyAll(i)
			w.persist(i)
		}
		for i := range w.Nodes {
			w.learn(i)
			w.stepDown(i)
		}
		if w.Broken() {
			return true
		}
	}
	return !sameNodes(&before, &w.Nodes)
}

func sameNodes(a, b *[3]Node) bool {
	for i := range a {
		x, y := &a[i], &b[i]
		if x.Term != y.Term || x.Vote != y.Vote || x.HS != y.HS || x.DB != y.DB || x.Commit != y.Commit || x.Applied != y.Applied ||
			x.Leader != y.Leader || x.Up != y.Up || x.Dead != y.Dead || x.Match != y.Match || len(x.Log) != len(y.Log) {
			return false
		}
		for k := range x.Log {
			if x.Log[k] != y.Log[k] {
				return false
			}
		}
	}
	return true
}

func confMembers(c Conf) (ms []failover.ConfMember, gone []uint64) {
	for _, p := range c.Peers[:c.N] {
		ms = append(ms, failover.ConfMember{ID: p.ID, Name: "m", Learner: p.Learner, PeerURLs: urls[p.Site]})
	}
	for _, g := range c.Gone {
		if g != 0 {
			gone = append(gone, g)
		}
	}
	return ms, gone
}

var urls = [3][]string{{"http://a"}, {"http://b"}, {"http://c"}}
