package explore

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"twok/arbiter"
	"twok/internal/failover"
)

// World is one state: everything that the next move depends on.
type World struct {
	Sites [2]Site
	Nodes [3]Node // of site a, of site b, and a third member of a user's
	Base  Base
	Hist  []Entry // what was ever committed, by anybody
	Link  bool
	Far   [2]bool // the third member's links

	Rec  arbiter.Record
	Ver  uint32
	Vers uint32 // versions, nonces, entries and IDs given out so far
	Nons uint32
	UIDs uint32
	IDs  uint64
	Late [2]*failover.Action // swaps that the store may still apply
	Txn  *LateToken          // a token transaction that may still reach etcd

	// Not part of the state.
	Off  Switches
	Max  int // longest log
	Prop string
	Text string
}

// LateToken is a transaction that was sent and not yet proposed. The connection
// is dialled once: it dies with the etcd process that it was dialled to (P14).
type LateToken struct {
	Site  uint8
	Start uint32
	Entry Entry
}

// Site is an agent with what it keeps on disk and what it has out.
type Site struct {
	S       failover.State
	Own     failover.Own // on disk
	Seen    uint64       // on disk
	Locked  bool
	Running bool // etcd runs on although the locks were reported held (a rule is off)
	Won     bool // a claim of this section is in the record
	Down    bool // nothing of this site runs (liveness only)
	Added   uint64
	Out     [2]*failover.Action // arbiter slot, site slot
	Back    [2]*failover.Event  // carried out, the reply is under way
}

const (
	arb  = 0
	site = 1

	cluster  = 0xc
	recordID = "r"
	name     = "m"
	version  = 3<<16 | 6
	never    = 1 << 30
)

// Params are the agents' settings: whatever may be due is due after one tick, so
// that every order of events is within a few moves. Confirmations and marks are
// due when a move says so.
var Params = failover.Params{ClaimAfter: 1, WakeAfter: 1, RecordIdle: 1, RecordBusy: 1, ListEvery: 1, ConfirmEach: never, TokenEach: never, TokenFew: 1}

// NewWorld is a pair that has just been started: both members have the first
// entries, nobody leads, there is no record.
func NewWorld(off Switches) *World {
	w := &World{Link: true, Far: [2]bool{true, true}, Off: off, Max: 30, IDs: 2}
	w.Base.Conf.N = 2
	for i := range 2 {
		w.Base.Conf.Peers[i] = Peer{ID: uint64(i + 1), Site: uint8(i)}
		w.Nodes[i] = Node{ID: uint64(i + 1), Term: 1, Log: []Entry{{Term: 1, UID: 1}}, Up: true, Start: 1, HS: 1, DB: 1, Commit: 1, Applied: 1}
		w.Sites[i].S = failover.New(Params, failover.Own{})
	}
	w.UIDs = 1
	w.Hist = w.Nodes[0].Log
	return w
}

func (w *World) name(i int) string { return string("abc"[i]) }

func (w *World) violate(prop, format string, args ...any) {
	if w.Prop == "" {
		w.Prop, w.Text = prop, fmt.Sprintf(format, args...)
	}
}

// Broken says whether a property was violated on the way here.
func (w *World) Broken() bool { return w.Prop != "" }

// check is what holds in every state.
func (w *World) check() {
	can := -1
	for i := range w.Nodes {
		if !w.reaches(i) {
			continue
		}
		if can >= 0 {
			w.violate("S3", "%s and %s can both commit", w.name(can), w.name(i))
		}
		can = i
	}
}

var tags = func() (t [512]string) {
	for i := range t {
		t[i] = "n" + strconv.Itoa(i)
	}
	return t
}()

func tag(n uint32) string {
	if int(n) < len(tags) {
		return tags[n]
	}
	return "n" + strconv.Itoa(int(n))
}

func untag(s string) uint32 {
	n, err := strconv.Atoi(strings.TrimPrefix(s, "n"))
	if err != nil {
		panic("explore: not a tag: " + s)
	}
	return uint32(n)
}

func (w *World) stamp() failover.Stamp {
	w.Nons++
	return failover.Stamp{Nonce: tag(w.Nons)}
}

// obs is what an agent's watcher sees now.
func (w *World) obs(i int) failover.Obs {
	n, o := &w.Nodes[i], &w.Nodes[1-i]
	at := max(n.Applied, min(n.DB, len(n.Log)))
	ob := failover.Obs{Etcd: failover.EtcdAway, Start: n.Start, Version: version, Member: n.ID, Cluster: cluster,
		TokenRead: true, Token: coreToken(w.token(n, at)), Other: o.ID}
	ob.Token.EntryTerm = 0
	ob.Peer = w.Link && w.alive(1-i)
	ob.Contact = ob.Peer
	if !w.alive(i) {
		return ob
	}
	ob.Etcd = failover.EtcdNoLeader
	ob.Commit = uint64(n.Commit)
	if l, ok := w.leaderOf(i); ok {
		ob.Etcd, ob.Leader = failover.EtcdLed, w.Nodes[l].ID
		c := w.conf(n, n.Applied)
		ob.Voters = coreVoters(c)
		p := c.find(n.ID)
		ob.Learner = p != nil && p.Learner
		if p == nil { // a returned member whose own addition is not applied yet
			ob.Voters = failover.Voters{}
		}
	}
	return ob
}

// leaderOf is the leader that node i knows of: itself, or one that sends to it.
func (w *World) leaderOf(i int) (int, bool) {
	if w.Nodes[i].Leader {
		return i, true
	}
	for j := range w.Nodes {
		if w.meets(j, i) && w.Nodes[j].Term >= w.Nodes[i].Term {
			return j, true
		}
	}
	return 0, false
}

func coreVoters(c Conf) (v failover.Voters) {
	var ids [maxPeers]uint64
	for _, p := range c.Peers[:c.N] {
		if p.Learner {
			v.Learners++
			continue
		}
		ids[v.Count] = p.ID
		v.Count++
	}
	slices.Sort(ids[:v.Count])
	copy(v.IDs[:], ids[:v.Count])
	return v
}

func coreToken(t Token) failover.Token {
	if !t.Present {
		return failover.Token{}
	}
	return failover.Token{Present: true, RecordID: recordID, Generation: t.Gen, Cluster: cluster,
		Members: [2]uint64{min(t.Pair[0], t.Pair[1]), max(t.Pair[0], t.Pair[1])}, Term: uint64(t.Term), EntryTerm: uint64(t.Entry)}
}

// data is what the data directory says offline.
func (w *World) data(i int, asked uint64) failover.Data {
	n := &w.Nodes[i]
	at := min(n.DB, len(n.Log))
	idx, term := n.last()
	d := failover.Data{Member: n.ID, Cluster: cluster, Name: name, Term: uint64(n.Term), Commit: uint64(n.HS), Applied: uint64(at),
		Last: arbiter.Position{Index: uint64(idx), Term: uint64(term)}}
	if asked > uint64(n.Snap) && asked <= uint64(len(n.Log)) {
		d.Asked = uint64(n.Log[asked-1].Term)
	}
	var changes []failover.ConfChange
	kinds := map[Kind]failover.ConfChangeKind{Add: failover.ChangeAdd, AddLearner: failover.ChangeAddLearner, Promote: failover.ChangePromote, Remove: failover.ChangeRemove}
	for _, e := range n.Log[at:] {
		if e.conf() {
			changes = append(changes, failover.ConfChange{Kind: kinds[e.Kind], ID: e.ID, PeerURLs: urls[e.Site]})
		}
		if e.Kind == TokenWrite {
			d.Tail.Writes, d.Tail.RecordID, d.Tail.Generation = true, recordID, max(d.Tail.Generation, e.Tok.Gen)
		}
	}
	tok := w.token(n, at)
	d.Token = coreToken(tok)
	ms, gone := confMembers(w.conf(n, at))
	d.Confs = failover.FoldConfs(n.ID, ms, gone, changes)
	var past []failover.PlacedChange
	for k, e := range n.Log[:at] {
		if k < n.Snap {
			continue // compacted away
		}
		if e.conf() {
			past = append(past, failover.PlacedChange{ConfChange: failover.ConfChange{Kind: kinds[e.Kind], ID: e.ID}, Index: uint64(k + 1), Term: uint64(e.Term)})
		}
		if tok.Present && e.UID == tok.UID {
			d.TokenIndex = uint64(k + 1)
			past = nil // what came before is asked for by no rule
		}
	}
	if d.TokenIndex == 0 {
		d.Token.EntryTerm = 0
	}
	if n.Snap < len(n.Log) {
		d.First = uint64(n.Snap + 1)
	}
	d.Snap = uint64(min(n.Snap, at))
	d.Past = failover.FoldPast(ms, gone, past)
	return d
}
