package explore

import (
	"fmt"
	"strings"

	"twok/internal/failover"
)

// Op is what a move does.
type Op uint8

// The moves. A and B are a site, a member or an action's slot; How is an action's way.
const (
	Cut Op = iota
	Heal
	FarCut  // the third member's link to A
	FarHeal //
	Elect
	Lead // A applies what it may, wins an election and does all that it can
	ElectLost
	StepDown
	Send    // A sends B the next entry
	SendAll // A sends B all entries
	Rep     // A sends B all entries and hears that B has them
	Apply   // up to the next entry that changes the configuration or the token
	Persist
	Restart // etcd A crashes and starts; what lags on disk (B: 0), nothing (1), or what lags in the hard state (2) is forgotten
	Compact // etcd A takes a snapshot and reads its log from there
	Sync    // the leader does all that it can
	Put     // a client's write at leader A
	Learn   // A is told that it is removed
	Run     // agent A ticks, and everything it asks for is done
	Tick    // agent A ticks
	Do      // agent A's action in slot B ends so
	Go      // everything agent A has out is done
	Deliver // the reply in slot B arrives at agent A
	Die     // agent A dies and starts
	Forget  // the same, without its memory
	Due     // agent A's next confirmation, mark or renewal of the token is due
	Apply1  // the store applies late swap A
	Arrive  // the late token transaction arrives
	AddThird
	DropThird
	DropOther // the user removes the other member, through leader A
	Drain     // the user claims for A with the drain flag
	DropDrained
	Undrain
	Rollback // the store forgets the last claim (A1 off)
	LoseLast // etcd A crashes and its disk has lost the last entry, which it had synced (A2 off)
	numOps
)

var opNames = [numOps]string{"cut", "heal", "far-cut", "far-heal", "elect", "lead", "elect-lost", "step-down", "send", "send-all", "rep", "apply",
	"persist", "restart", "compact", "sync", "put", "learn", "run", "tick", "do", "go", "deliver", "die", "forget", "due", "late-swap", "late-token",
	"add-third", "drop-third", "drop-other", "drain", "drop-drained", "undrain", "rollback", "lose-last"}

// Move is one step of the environment or of an agent.
type Move struct {
	Op   Op
	A, B uint8
	How  How
}

func (m Move) pack() uint32 {
	return uint32(m.Op)<<24 | uint32(m.A)<<16 | uint32(m.B)<<8 | uint32(m.How)
}
func unpack(v uint32) Move {
	return Move{Op: Op(v >> 24), A: uint8(v >> 16), B: uint8(v >> 8), How: How(v)}
}

var slotNames = [2]string{"arbiter", "site"}

func (m Move) String() string {
	f := []string{opNames[m.Op]}
	switch m.Op {
	case Cut, Heal, Sync, Arrive, Undrain, Rollback:
	case Apply1:
		f = append(f, fmt.Sprint(m.A))
	case Send, SendAll, Rep:
		f = append(f, string("abc"[m.A]), string("abc"[m.B]))
	case Do:
		f = append(f, string("abc"[m.A]), slotNames[m.B], howNames[m.How])
	case Restart:
		f = append(f, string("abc"[m.A]), [3]string{"lagging", "fresh", "ahead"}[m.B])
	case Deliver:
		f = append(f, string("abc"[m.A]), slotNames[m.B])
	default:
		f = append(f, string("abc"[m.A]))
	}
	return strings.Join(f, " ")
}

// ParseMove reads what String writes.
func ParseMove(line string) (Move, error) {
	f := strings.Fields(line)
	for _, m := range allMoves {
		if m.String() == strings.Join(f, " ") {
			return m, nil
		}
	}
	return Move{}, fmt.Errorf("no move %q", line)
}

// flip exchanges the sites.
func (m Move) flip() Move {
	x := func(v uint8) uint8 {
		if v < 2 {
			return 1 - v
		}
		return v
	}
	switch m.Op {
	case Apply1:
	case Send, SendAll, Rep:
		m.A, m.B = x(m.A), x(m.B)
	default:
		m.A = x(m.A)
	}
	return m
}

var allMoves = func() (ms []Move) {
	for op := range numOps {
		switch op {
		case Cut, Heal, Sync, Arrive, Undrain, Rollback:
			ms = append(ms, Move{Op: op})
		case Send, SendAll, Rep:
			for a := range uint8(3) {
				for b := range uint8(3) {
					if a != b {
						ms = append(ms, Move{Op: op, A: a, B: b})
					}
				}
			}
		case Elect, Lead, ElectLost, StepDown, Apply, Persist, Compact, Put, Learn, AddThird, DropThird:
			for a := range uint8(3) {
				ms = append(ms, Move{Op: op, A: a})
			}
		case Do:
			for a := range uint8(2) {
				for b := range uint8(2) {
					for h := range numHows {
						ms = append(ms, Move{Op: op, A: a, B: b, How: h})
					}
				}
			}
		case Restart:
			for a := range uint8(3) {
				ms = append(ms, Move{Op: op, A: a}, Move{Op: op, A: a, B: 1}, Move{Op: op, A: a, B: 2})
			}
		case Deliver:
			for a := range uint8(2) {
				ms = append(ms, Move{Op: op, A: a}, Move{Op: op, A: a, B: 1})
			}
		default:
			for a := range uint8(2) {
				ms = append(ms, Move{Op: op, A: a})
			}
		}
	}
	return ms
}()

// Moves lists the moves that this exploration makes.
func (x Options) moves() (ms []Move) {
	for _, m := range allMoves {
		if m.Op == Restart && m.B == 2 && !x.Rare {
			continue
		}
		switch m.Op {
		case FarCut, FarHeal, AddThird, DropThird:
			if !x.Third {
				continue
			}
		case DropOther, Drain, DropDrained, Undrain:
			if !x.Operators {
				continue
			}
		case Rollback:
			if !x.Off.has(A1) {
				continue
			}
		case LoseLast:
			if !x.Off.has(A2) {
				continue
			}
		case Persist: // a restart says what is on disk
			continue
		case Compact:
			if !x.Compaction {
				continue
			}
		case Forget, Due, ElectLost:
			if !x.Rare {
				continue
			}
		}
		if !x.Third && (m.A == 2 || m.B == 2 && m.Op != Restart) && m.Op != Apply1 {
			continue
		}
		ms = append(ms, m)
	}
	return ms
}

// Apply makes a move. It returns false if it is not possible; then w is spoilt.
func (w *World) Apply(m Move) bool {
	a, b := int(m.A), int(m.B)
	ok := w.apply(m, a, b)
	if ok && !w.Broken() {
		w.check()
	}
	return ok
}

func (w *World) apply(m Move, a, b int) bool {
	switch m.Op {
	case Cut:
		w.Link = !w.Link
		return !w.Link
	case Heal:
		w.Link = !w.Link
		return w.Link
	case FarCut, FarHeal:
		w.Far[a] = !w.Far[a]
		return w.Far[a] == (m.Op == FarHeal) && w.Nodes[2].ID != 0
	case Elect:
		return w.elect(a, false)
	case Lead:
		w.applyAll(a)
		if !w.elect(a, false) {
			return false
		}
		w.sync()
		return true
	case ElectLost:
		return w.elect(a, true)
	case StepDown:
		return w.stepDown(a)
	case Send:
		return len(w.Nodes[a].Log)-len(w.Nodes[b].Log) > 1 && w.replicate(a, b, false)
	case SendAll:
		return w.replicate(a, b, true)
	case Rep:
		return w.replicate(a, b, true) && (w.acknowledge(a, b) || true)
	case Apply:
		if !w.applyOne(a) {
			return false
		}
		for n := &w.Nodes[a]; n.Applied < n.Commit && n.Log[n.Applied-1].boring() && n.Log[n.Applied].boring(); {
			w.applyOne(a)
		}
		return true
	case Persist:
		return w.persist(a)
	case Restart:
		if !w.alive(a) {
			return false
		}
		switch b {
		case 1:
			w.persist(a)
		case 2: // the database is ahead of the hard state
			n := &w.Nodes[a]
			if n.DB == n.Applied || n.HS == n.Commit {
				return false
			}
			n.DB = n.Applied
		}
		w.boot(a)
		return true
	case Compact:
		n := &w.Nodes[a]
		if !w.alive(a) || n.Applied <= n.Snap {
			return false
		}
		w.persist(a)
		n.Snap = n.Applied
		return true
	case Sync:
		w.sync()
		return true
	case Put:
		return w.Nodes[a].Leader && len(w.Nodes[a].Log) < w.Max-2 && w.propose(a, Entry{Kind: Write})
	case Learn:
		return w.learn(a)
	case Run:
		w.tick(a)
		w.run(a)
		return true
	case Tick:
		w.tick(a)
		return true
	case Do:
		return w.perform(a, b, m.How)
	case Go:
		return w.run(a)
	case Deliver:
		return w.deliver(a, b)
	case Die:
		w.die(a)
		return true
	case Forget:
		w.Sites[a].Own, w.Sites[a].Seen = failover.Own{}, 0
		w.die(a)
		return true
	case Due:
		s := &w.Sites[a].S
		if s.NoteAge == never && s.TokenAge == never {
			return false
		}
		s.NoteAge, s.TokenAge = never, never
		return true
	case Apply1:
		if w.stale(w.Late[a]) {
			return false
		}
		late := w.Late[a]
		w.Late[a] = nil
		if w.put(late) && late.Claim {
			for i := range w.Sites {
				s := &w.Sites[i]
				s.Won = s.Won || (s.Locked && s.S.Mine.Nonces[0] == late.Record.ClaimNonce)
			}
		}
		return true
	case Arrive:
		return w.arrive()
	case LoseLast:
		return w.loseLast(a)
	}
	return w.operator(m, a)
}
