package failover

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"twok/arbiter"
)

var update = flag.Bool("update", false, "write testdata/table.golden")

// The table: for a representative state of every phase, every event with its main
// outcomes, once with the action out that it answers, also where that action is left over from an
// earlier phase, and once without (always ignored). A cell is the next phase and
// reason with the actions; "=" means the same phase and reason, "ignored" an unchanged state without actions.
//
// Rules: P1, P2, P4, P7, P10, P12, P13, P14, P16, P17; F8.
func TestTable(t *testing.T) {
	got := table(t)
	const path = "testdata/table.golden"
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got == string(want) {
		return
	}
	w := strings.Split(string(want), "\n")
	for i, l := range strings.Split(got, "\n") {
		if i >= len(w) || l != w[i] {
			old := ""
			if i < len(w) {
				old = w[i]
			}
			t.Fatalf("line %d\n got %s\nwant %s\n(-update writes it)", i+1, l, old)
		}
	}
	t.Fatal("the table has become shorter")
}

type row struct {
	name string
	kind ActionKind // the action that is out; NoAction for ticks
	prep func(s *State)
	e    Event
}

func table(t *testing.T) string {
	var b strings.Builder
	for _, p := range Phases() {
		fmt.Fprintf(&b, "%s\n", p)
		seen := map[EventKind]bool{Tick: false}
		for _, r := range rows() {
			s, ok := with(p, r.kind)
			if !ok {
				continue
			}
			if r.prep != nil {
				r.prep(&s)
			}
			e := r.e
			e.Stamp, e.RecordID, e.Random = Stamp{Nonce: "new", Now: 9}, "new-id", 3
			if e.Kind != Tick {
				e.Kind = r.kind.Reply()
			}
			next, acts := Step(s, e)
			seen[e.Kind] = true
			fmt.Fprintf(&b, "  %-44s %s\n", r.name, cell(s, next, acts))
			stuck(t, p, r.name, next, acts)
		}
		for _, k := range EventKinds() {
			if k == Tick {
				if !seen[Tick] {
					t.Errorf("no row for %s × tick", p)
				}
				continue
			}
			s := representative(p)
			next, acts := Step(s, Event{Kind: k, Outcome: Done, Status: Readable, Record: baseRecord()})
			if next != s || len(acts) > 0 {
				t.Errorf("%s: %s is not ignored although nothing is out", p, k)
			}
			name := k.String() + ", not asked for"
			if !seen[k] {
				name = k.String() + ", never asked for here"
			}
			fmt.Fprintf(&b, "  %-44s %s\n", name, "ignored")
		}
	}
	return b.String()
}

// with is the phase's state with this action out, and what else it cannot be
// without; not ok if it never is out in this phase. Phases that wait for nothing may
// still have any action out, from an earlier phase.
func with(p Phase, k ActionKind) (State, bool) {
	s := representative(p)
	natural := map[Phase][]ActionKind{
		Stopping: {Stop}, Deciding: {ReadRecord, Swap, ReadData}, Claiming: {Swap, ReadRecord}, Appending: {Append},
		Rechecking: {ReadRecord}, Releasing: {Release}, Joining: {AddLearner, RemoveLearner, LookAtList}, Preparing: {Rewrite, Stop, ReadData, Release, ReadRecord, Swap},
	}[p]
	if k.onArbiter() && (p == Stopping || p == Releasing || p == Joining) {
		s.Arb, s.Site = k, natural[0] // from before the section
		return s, true
	}
	if natural == nil || slices.Contains(natural, k) {
		if k.onArbiter() {
			s.Arb = k
		} else {
			s.Site = k
		}
		return s, true
	}
	if k != NoAction {
		return s, false
	}
	if natural[0].onArbiter() {
		s.Arb = natural[0]
	} else {
		s.Site = natural[0]
	}
	return s, true
}

// stuck: a phase that waits for a reply has its action out, or the next tick moves it.
func stuck(t *testing.T, from Phase, name string, s State, acts []Action) {
	t.Helper()
	if s.Arb != NoAction || s.Site != NoAction {
		return
	}
	switch s.Phase {
	case Stopping, Deciding, Claiming, Appending, Rechecking, Releasing, Joining, Preparing:
		if next, as := Step(s, Event{Kind: Tick, Obs: s.Obs}); len(as) == 0 && next.Phase == s.Phase {
			t.Errorf("%s × %s: stuck in %s", from, name, s.Phase)
		}
	}
}

func cell(s, next State, acts []Action) string {
	if next == s && len(acts) == 0 {
		return "ignored"
	}
	out := "="
	if next.Phase != s.Phase || next.Why != s.Why {
		out = next.Phase.String()
		if next.Why != None {
			out += "/" + next.Why.String()
		}
	}
	for i, a := range acts {
		if i == 0 {
			out += " ->"
		}
		out += " " + a.Kind.String()
		switch a.Kind {
		case Swap:
			out += fmt.Sprintf("(%s g%d)", purposeNames[next.Purpose], a.Record.Generation)
		case Rewrite:
			out += fmt.Sprintf("(keep %v %s)", a.Keep, a.Why)
		}
	}
	return out
}

// representative is a state of the phase as a real run reaches it, with nothing out. The
// member is A; it owns the claim of generation 4 where it is the survivor, and B does where it is the loser.
func representative(p Phase) State {
	s := New(testParams, Own{})
	s.Phase = p
	s.Rec, s.RecVer, s.RecStatus, s.RecKnown, s.Seen, s.RecAge = baseRecord(), arbiter.At("1"), Readable, true, 3, 1
	s.Tok, s.TokKnown = baseData().Token, true
	s.Obs = obsOf(EtcdNoLeader)
	s.ListAge, s.NoteAge = 1, 1
	mine := Own{RecordID: "rec", Generation: 4, Nonces: [4]string{"mine"}, End: arbiter.Position{Index: 100, Term: 5}, Fork: arbiter.Position{Index: 101, Term: 6}}
	survivor := func() {
		s.Mine = mine
		s.Rec = recordOf(idA, "mine")
		s.Seen = 4
	}
	loser := func() {
		s.Rec = recordOf(idB, "theirs")
		s.Seen, s.Removed = 4, true
		s.List = joinable()
	}
	switch p {
	case Starting:
		s = New(testParams, Own{})
	case Following:
		s.Obs = obsOf(EtcdLed)
		s.Obs.Leader = idB
	case Leading:
		s.Obs = obsOf(EtcdLed)
	case Alone:
		survivor()
		s.Obs = alone()
	case Leaderless:
		s.Preflight = None
	case Stopping:
		s.NoLeader = 20
	case Deciding:
		s.Locked, s.Fresh = true, true
	case Claiming:
		s.Locked, s.Data, s.Mine = true, baseData(), mine
	case Appending, Rechecking:
		s.Locked, s.Data = true, baseData()
		survivor()
	case Releasing:
		s.Locked = true
	case Fenced:
		loser()
		s.Locked, s.Held, s.Fence, s.Why, s.Mine, s.Removed = true, true, Overridden, Overridden, mine, false
		s.Obs = obsOf(EtcdAway)
	case Lost:
		loser()
		s.Why = NamedOther
	case Joining:
		loser()
	case Preparing:
		loser()
		s.Locked, s.NewID, s.Fresh = true, idC, true
	case CatchingUp, Promoting:
		loser()
		s.Removed = false
		s.Obs = obsOf(EtcdLed)
		s.Obs.Member, s.Obs.Leader, s.Obs.Learner, s.Obs.Voters = idC, idB, true, Voters{Count: 1, IDs: [2]uint64{idB}, Learners: 1}
		s.Tok = Token{}
	}
	return s
}

func obsOf(e EtcdState) Obs {
	o := Obs{Etcd: e, Start: 1, Version: v36, Member: idA, Cluster: clusterID, Other: idB, TokenRead: true, Token: baseData().Token, Commit: 95, Term: 5}
	if e == EtcdLed {
		o.Leader, o.Voters, o.Peer, o.Contact = idA, Voters{Count: 2, IDs: [2]uint64{idA, idB}}, true, true
	}
	return o
}

func alone() Obs {
	o := obsOf(EtcdLed)
	o.Voters = Voters{Count: 1, IDs: [2]uint64{idA}}
	return o
}

// recordOf is generation 4, claimed and confirmed by this member.
func recordOf(id uint64, nonce string) arbiter.Record {
	r := claim(baseRecord(), arbiter.Member{ID: id}, 4, "", Stamp{Nonce: nonce})
	r.ClaimEnd, r.Fork = arbiter.Position{Index: 100, Term: 5}, arbiter.Position{Index: 101, Term: 6}
	r = withHistory(baseRecord(), r)
	r.Confirmed = arbiter.Position{Index: 102, Term: 6}
	return r
}

func joinable() List {
	return List{OK: true, Leader: idB, Cluster: clusterID, Version: v36, Voters: Voters{Count: 1, IDs: [2]uint64{idB}}}
}

func rows() []row {
	var rs []row
	add := func(name string, k ActionKind, e Event) { rs = append(rs, row{name: name, kind: k, e: e}) }
	tick := func(name string, o Obs, prep func(s *State)) {
		rs = append(rs, row{name: "tick, " + name, e: Event{Kind: Tick, Obs: o}, prep: prep})
	}
	follows, learner, peer := obsOf(EtcdLed), obsOf(EtcdLed), obsOf(EtcdNoLeader)
	follows.Leader = idB
	learner.Leader, learner.Learner, learner.Voters = idB, true, Voters{Count: 1, IDs: [2]uint64{idB}, Learners: 1}
	peer.Peer, peer.Contact = true, true
	tick("etcd not known", Obs{}, nil)
	tick("etcd away", obsOf(EtcdAway), nil)
	tick("no leader", obsOf(EtcdNoLeader), nil)
	tick("no leader, claim is due", obsOf(EtcdNoLeader), func(s *State) { s.NoLeader = 20 })
	tick("no leader, peer is back for long", peer, func(s *State) { s.PeerGone, s.PeerBack = true, 15 })
	tick("everything is due", obsOf(EtcdNoLeader), func(s *State) { s.RecAge, s.ListAge, s.NoteAge = 20, 3, 30 })
	tick("follows", follows, nil)
	tick("leads a pair", obsOf(EtcdLed), nil)
	tick("leads alone", alone(), nil)
	tick("a learner", learner, nil)

	read := func(name string, st RecordStatus, r arbiter.Record) {
		e := Event{Outcome: Done, Status: st, Record: r, Seen: r.Generation}
		if st == Readable {
			e.Version = arbiter.At("2")
		}
		add("record-read, "+name, ReadRecord, e)
	}
	old, drained := baseRecord(), recordOf(idB, "theirs")
	old.Generation = 2
	drained.Drain = true
	read("as before", Readable, baseRecord())
	read("names this member, own claim", Readable, recordOf(idA, "mine"))
	read("names this member, not its claim", Readable, recordOf(idA, "forged"))
	read("names the other", Readable, recordOf(idB, "theirs"))
	read("names the other, drained", Readable, drained)
	read("older", Readable, old)
	read("absent", Absent, arbiter.Record{})
	read("garbage", Garbage, arbiter.Record{})
	read("unavailable", Unavailable, arbiter.Record{})

	for o, name := range outcomeNames {
		add("swapped, "+name, Swap, Event{Outcome: Outcome(o)})
		rs[len(rs)-1].prep = func(s *State) {
			s.Purpose = ForConfirm
			if s.Phase == Claiming {
				s.Purpose = ForClaim
			}
		}
	}
	add("preflighted, done", Preflight, Event{Outcome: Done})
	add("preflighted, failed", Preflight, Event{Outcome: Failed, Why: DiskFull})
	add("stopped, done", Stop, Event{Outcome: Done})
	add("stopped, unknown", Stop, Event{})

	third, alone := baseData(), baseData()
	third.Confs.MaxOthers = 2
	alone.Confs.AnyAlone = true
	add("data-read, a pair's", ReadData, Event{Outcome: Done, Data: baseData()})
	add("data-read, a third voter", ReadData, Event{Outcome: Done, Data: third})
	add("data-read, alone", ReadData, Event{Outcome: Done, Data: alone})
	add("data-read, unreadable", ReadData, Event{Outcome: Done, Data: Data{Problem: WALUnreadable}})
	add("data-read, disk full", ReadData, Event{Outcome: Done, Data: baseData(), Why: DiskFull})
	add("data-read, locks lost", ReadData, Event{Outcome: Failed})
	add("appended, done", Append, Event{Outcome: Done})
	add("appended, unknown", Append, Event{})
	add("released, done", Release, Event{Outcome: Done})
	add("released, failed", Release, Event{Outcome: Failed})
	add("restarted, done", Restart, Event{Outcome: Done})
	add("restarted, failed", Restart, Event{Outcome: Failed})

	list := func(name string, edit func(l *List)) {
		l := joinable()
		edit(&l)
		add("listed, "+name, LookAtList, Event{Outcome: Done, List: l})
	}
	list("not listed", func(*List) {})
	list("not listed, a leftover", func(l *List) { l.Leftover = idC })
	list("not listed, a stranger", func(l *List) { l.Stranger = idC })
	list("not listed, a pair without it", func(l *List) { l.Voters = Voters{Count: 2, IDs: [2]uint64{idB, idC}} })
	list("not listed, a higher version", func(l *List) { l.Version = v37 })
	list("a learner", func(l *List) { l.Self = ListedLearner })
	list("a voter", func(l *List) { l.Self = ListedVoter })
	add("listed, silent", LookAtList, Event{Outcome: Failed})

	add("member-changed, removed", RemoveLearner, Event{Outcome: Done})
	add("member-changed, removed?", RemoveLearner, Event{})
	add("member-changed, added", AddLearner, Event{Outcome: Done, ID: idC})
	add("member-changed, added?", AddLearner, Event{})
	add("member-changed, promoted", Promote, Event{Outcome: Done})
	add("member-changed, promoted?", Promote, Event{})
	add("rewritten, done", Rewrite, Event{Outcome: Done})
	add("rewritten, unknown", Rewrite, Event{})
	add("compared, equal", Compare, Event{Outcome: Done, Equal: true})
	add("compared, equal, held down", Compare, Event{Outcome: Done, Equal: true})
	rs[len(rs)-1].prep = func(s *State) { s.Hold = 5 }
	add("compared, different", Compare, Event{Outcome: Done})
	add("compared, failed", Compare, Event{Outcome: Failed})
	add("sampled, done", Sample, Event{Outcome: Done, Position: arbiter.Position{Index: 110, Term: 6}})
	add("sampled, below the confirmation", Sample, Event{Outcome: Done, Position: arbiter.Position{Index: 99, Term: 6}})
	add("sampled, failed", Sample, Event{Outcome: Failed})
	add("token-written, done", WriteToken, Event{Outcome: Done, Token: baseData().Token})
	add("token-written, conflict", WriteToken, Event{Outcome: Conflict})
	add("token-written, unknown", WriteToken, Event{})
	add("token-written, failed", WriteToken, Event{Outcome: Failed})
	add("tidied, done", Tidy, Event{Outcome: Done})
	add("tidied, failed", Tidy, Event{Outcome: Failed})
	return rs
}
