package explore

import "slices"

// order compares the sites by what differs most often.
func (w *World) order() int {
	key := func(i int) [9]int {
		n, s := &w.Nodes[i], &w.Sites[i]
		bits := 0
		for k, f := range []bool{n.Leader, n.Dead, s.Locked, s.Out[0] != nil, s.Out[1] != nil, w.Rec.Survivor.ID == n.ID} {
			if f {
				bits |= 1 << k
			}
		}
		return [9]int{n.Commit, n.Applied, len(n.Log), n.HS, n.DB, int(n.Term), int(s.S.Phase), int(s.S.Why), bits}
	}
	a, b := key(0), key(1)
	return -slices.Compare(a[:], b[:])
}

// flip exchanges the sites.
func (w *World) flip() {
	w.Sites[0], w.Sites[1] = w.Sites[1], w.Sites[0]
	w.Nodes[0], w.Nodes[1] = w.Nodes[1], w.Nodes[0]
	w.Far[0], w.Far[1] = w.Far[1], w.Far[0]
	for i := range w.Nodes {
		m := &w.Nodes[i].Match
		m[0], m[1] = m[1], m[0]
		w.Nodes[i].Log = flipLog(w.Nodes[i].Log)
	}
	w.Hist = flipLog(w.Hist)
	for i := range w.Base.Conf.Peers {
		if p := &w.Base.Conf.Peers[i]; p.ID != 0 && p.Site < 2 {
			p.Site = 1 - p.Site
		}
	}
	if w.Txn != nil {
		t := *w.Txn
		t.Site = 1 - t.Site
		w.Txn = &t
	}
}

func flipLog(es []Entry) []Entry {
	if !slices.ContainsFunc(es, func(e Entry) bool { return (e.Kind == Add || e.Kind == AddLearner) && e.Site < 2 }) {
		return es
	}
	es = slices.Clone(es)
	for i := range es {
		if e := &es[i]; (e.Kind == Add || e.Kind == AddLearner) && e.Site < 2 {
			e.Site = 1 - e.Site
		}
	}
	return es
}
