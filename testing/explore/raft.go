package explore

// Node is one abstract etcd: a Raft member and what its disk holds. Log, Term, Vote,
// HS and DB survive a crash.
type Node struct {
	ID      uint64
	Term    uint32
	Vote    uint64
	Log     []Entry // copied on every write
	HS      int     // commit of the hard state on disk
	Snap    int     // what the log is read from
	DB      int     // consistent_index of the database on disk
	Commit  int
	Applied int
	Leader  bool
	Up      bool
	Dead    bool // was told, or has applied, that it is removed
	Start   uint32
	Match   [3]int // a leader's knowledge of the others' logs
	Pending int    // a leader proposes a configuration change only after applying this index
}

func (n *Node) last() (index int, term uint32) {
	if len(n.Log) == 0 {
		return 0, 0
	}
	return len(n.Log), n.Log[len(n.Log)-1].Term
}

func (n *Node) push(es ...Entry) {
	n.Log = append(n.Log[:len(n.Log):len(n.Log)], es...)
}

// conf is the configuration after the first n entries.
func (w *World) conf(n *Node, upto int) Conf {
	if len(n.Log) == 0 || upto == 0 {
		return Conf{}
	}
	c := w.Base.Conf
	for _, e := range n.Log[:upto] {
		if e.conf() {
			c.apply(e)
		}
	}
	return c
}

// token is the token after the first n entries.
func (w *World) token(n *Node, upto int) Token {
	if len(n.Log) == 0 || upto == 0 {
		return Token{}
	}
	t := w.Base.Tok
	for _, e := range n.Log[:upto] {
		if e.Kind == TokenWrite && (e.Blind || e.Prev == t.UID) {
			t = e.Tok
			t.Present, t.UID, t.Entry = true, e.UID, e.Term
		}
	}
	return t
}

func (w *World) alive(i int) bool {
	n := &w.Nodes[i]
	return n.Up && !n.Dead && (i > 1 || !w.Sites[i].Locked || w.Sites[i].Running)
}

func (w *World) linked(i, j int) bool {
	switch {
	case i == j:
		return true
	case i < 2 && j < 2:
		return w.Link
	case i < 2:
		return w.Far[i]
	}
	return w.Far[j]
}

// peer finds the node that runs under this ID.
func (w *World) peer(id uint64) (int, bool) {
	for i := range w.Nodes {
		if w.Nodes[i].ID == id && id != 0 {
			return i, true
		}
	}
	return 0, false
}

// canElect says whether node i wins an election now, and at which term. PreVote: a
// candidate that cannot win changes nothing. CheckQuorum's leases are left out: the
// voters of the model grant whenever Raft may let them.
func (w *World) canElect(i int) (term uint32, ok bool) {
	n := &w.Nodes[i]
	if !w.alive(i) || n.Leader {
		return 0, false
	}
	c := w.conf(n, n.Applied)
	if !c.voter(n.ID) {
		return 0, false
	}
	for _, e := range n.Log[n.Applied:n.Commit] {
		if e.conf() {
			return 0, false // raft: no campaign with an unapplied configuration
		}
	}
	term = n.Term
	for _, p := range c.Peers[:c.N] {
		if j, ok := w.peer(p.ID); ok && !p.Learner && w.alive(j) && w.linked(i, j) {
			term = max(term, w.Nodes[j].Term)
		}
	}
	term++
	votes := 1
	for _, p := range c.Peers[:c.N] {
		if j, ok := w.peer(p.ID); ok && !p.Learner && j != i && w.grants(j, i) {
			votes++
		}
	}
	return term, votes >= c.voters()/2+1
}

func (w *World) grants(j, i int) bool {
	n, v := &w.Nodes[i], &w.Nodes[j]
	if !w.alive(j) || !w.linked(i, j) {
		return false
	}
	ni, nt := n.last()
	vi, vt := v.last()
	return nt > vt || (nt == vt && ni >= vi)
}

// elect makes node i leader; with lost the last reply does not reach it.
func (w *World) elect(i int, lost bool) bool {
	term, ok := w.canElect(i)
	if !ok {
		return false
	}
	n := &w.Nodes[i]
	c := w.conf(n, n.Applied)
	if lost && c.voters() == 1 {
		return false
	}
	n.Term, n.Vote = term, n.ID
	for _, p := range c.Peers[:c.N] {
		if j, ok := w.peer(p.ID); ok && !p.Learner && j != i && w.grants(j, i) {
			w.Nodes[j].Term, w.Nodes[j].Vote, w.Nodes[j].Leader = term, n.ID, false
		}
	}
	if lost {
		return true
	}
	n.Leader, n.Match, n.Pending = true, [3]int{}, len(n.Log)
	w.propose(i, Entry{Kind: Empty})
	w.holdsAll(i, "leads")
	return true
}

// propose appends an entry at a leader. A configuration change waits its turn.
func (w *World) propose(i int, e Entry) bool {
	n := &w.Nodes[i]
	if !n.Leader || !w.alive(i) {
		return false
	}
	if e.conf() {
		if n.Applied < n.Pending {
			return false
		}
		n.Pending = len(n.Log) + 1
	}
	e.Term = n.Term
	w.UIDs++
	e.UID = w.UIDs
	n.push(e)
	w.maybeCommit(i)
	return true
}

// maybeCommit advances a leader's commit index by the quorum of its applied configuration.
func (w *World) maybeCommit(i int) {
	n := &w.Nodes[i]
	if !n.Leader {
		return
	}
	c := w.conf(n, n.Applied)
	for at := len(n.Log); at > n.Commit && n.Log[at-1].Term == n.Term; at-- {
		have := 0
		for _, p := range c.Peers[:c.N] {
			if p.Learner {
				continue
			}
			if p.ID == n.ID {
				have++
			} else if j, ok := w.peer(p.ID); ok && n.Match[j] >= at {
				have++
			}
		}
		if v := c.voters(); v > 0 && have >= v/2+1 {
			w.commit(i, at)
			return
		}
	}
}

// commit moves a commit index, and with it the committed history.
func (w *World) commit(i, at int) {
	n := &w.Nodes[i]
	for k := range at {
		switch {
		case k >= len(w.Hist):
			w.Hist = append(w.Hist[:k:k], n.Log[k])
		case w.Hist[k] != n.Log[k]:
			w.violate("S1", "%s commits another entry at index %d than was committed before", w.name(i), k+1)
			return
		}
	}
	n.Commit = max(n.Commit, at)
}

// holdsAll is completeness: who leads or claims has everything that was ever committed.
func (w *World) holdsAll(i int, what string) {
	n := &w.Nodes[i]
	for k, e := range w.Hist {
		if k >= len(n.Log) || n.Log[k] != e {
			w.violate("S4", "%s %s, its log lacks the committed entry %d", w.name(i), what, k+1)
			return
		}
	}
}

// meets says whether a leader's message reaches node j; a higher term there ends the leadership.
func (w *World) meets(i, j int) bool {
	l, f := &w.Nodes[i], &w.Nodes[j]
	if i == j || !l.Leader || !w.alive(i) || !w.alive(j) || !w.linked(i, j) || f.ID == 0 {
		return false
	}
	c := w.conf(l, l.Applied)
	return c.find(f.ID) != nil
}

// replicate sends node j the next entry, or all of them, with the commit index.
func (w *World) replicate(i, j int, all bool) bool { return w.replicateTo(i, j, all, 1<<30) }

// replicateTo sends nothing above an index, unless it is a snapshot.
func (w *World) replicateTo(i, j int, all bool, upto int) bool {
	if !w.meets(i, j) {
		return false
	}
	l, f := &w.Nodes[i], &w.Nodes[j]
	if f.Term > l.Term {
		l.Term, l.Vote, l.Leader = f.Term, 0, false
		return true
	}
	if l.Term > f.Term {
		f.Term, f.Vote = l.Term, 0
	}
	f.Leader = false
	if len(f.Log) == 0 { // a snapshot
		k := l.Applied
		f.Log = l.Log[:k:k]
		f.Commit, f.Applied, f.HS, f.DB, f.Snap = k, k, k, k, k
		if !all {
			return true
		}
	}
	prev := min(len(l.Log), len(f.Log))
	for prev > 0 && l.Log[prev-1].Term != f.Log[prev-1].Term {
		prev--
	}
	end := min(prev+1, len(l.Log))
	if all {
		end = len(l.Log)
	}
	end = min(end, max(upto, prev))
	if end > prev {
		if prev < f.Commit {
			w.violate("S2", "%s would overwrite the committed entry %d of %s", w.name(i), prev+1, w.name(j))
			return true
		}
		// What the follower keeps is its own: with a broken rule it may differ.
		log := append(make([]Entry, 0, end), f.Log[:prev]...)
		f.Log = append(log, l.Log[prev:end]...)
	}
	if c := min(l.Commit, end); c > f.Commit {
		w.commit(j, c)
	}
	return true
}

// acknowledge tells the leader what node j has.
func (w *World) acknowledge(i, j int) bool {
	if !w.meets(i, j) {
		return false
	}
	l, f := &w.Nodes[i], &w.Nodes[j]
	if f.Term != l.Term || len(f.Log) == 0 {
		return false
	}
	at := min(len(l.Log), len(f.Log))
	for at > 0 && l.Log[at-1].Term != f.Log[at-1].Term {
		at--
	}
	if at <= l.Match[j] {
		return false
	}
	l.Match[j] = at
	w.maybeCommit(i)
	return true
}

// applyOne applies the next committed entry. A0: the hard state that commits a
// configuration change is on disk before anything rests on the new configuration.
func (w *World) applyOne(i int) bool {
	n := &w.Nodes[i]
	if !w.alive(i) || n.Applied >= n.Commit {
		return false
	}
	e := n.Log[n.Applied]
	n.Applied++
	if !e.conf() {
		return true
	}
	if !w.Off.has(A0) {
		n.HS = max(n.HS, n.Applied)
	}
	if c := w.conf(n, n.Applied); e.Kind == Remove && e.ID == n.ID && c.find(n.ID) == nil {
		n.Dead, n.Leader = true, false
		n.HS, n.DB = n.Commit, n.Applied
		return true
	}
	w.maybeCommit(i)
	return true
}

func (w *World) applyAll(i int) bool {
	did := false
	for w.applyOne(i) {
		did = true
	}
	return did
}

// persist writes what may lag on disk: the commit index and the database.
func (w *World) persist(i int) bool {
	n := &w.Nodes[i]
	if !w.alive(i) || (n.HS == n.Commit && n.DB == n.Applied) {
		return false
	}
	n.HS, n.DB = n.Commit, n.Applied
	return true
}

// halt ends an etcd: what was not on disk is gone.
func (w *World) halt(i int) {
	n := &w.Nodes[i]
	n.Leader, n.Match, n.Pending = false, [3]int{}, 0
	n.Commit = min(n.HS, len(n.Log))
	n.Applied = min(n.DB, n.Commit)
}

// loseLast: the disk lied (A2). The hard state's term and vote are older and stay.
func (w *World) loseLast(i int) bool {
	n := &w.Nodes[i]
	k := len(n.Log) - 1
	if !w.Off.has(A2) || !w.alive(i) || k <= n.Snap || k < 1 {
		return false
	}
	w.persist(i)
	n.Log = n.Log[:k:k]
	n.HS, n.DB = min(n.HS, k), min(n.DB, k)
	w.boot(i)
	return true
}

// boot starts an etcd on its disk.
func (w *World) boot(i int) {
	w.halt(i)
	n := &w.Nodes[i]
	n.Start++
	c := w.conf(n, max(n.Applied, min(n.DB, len(n.Log))))
	n.Up, n.Dead = true, c.gone(n.ID)
}

// reaches says whether node i, leading, has a quorum that would take its entries: it can commit.
func (w *World) reaches(i int) bool {
	n := &w.Nodes[i]
	if !n.Leader || !w.alive(i) {
		return false
	}
	c := w.conf(n, n.Applied)
	have := 0
	for _, p := range c.Peers[:c.N] {
		if p.Learner {
			continue
		}
		if j, ok := w.peer(p.ID); ok && (j == i || (w.alive(j) && w.linked(i, j) && w.Nodes[j].Term <= n.Term)) {
			have++
		}
	}
	v := c.voters()
	return v > 0 && have >= v/2+1
}
