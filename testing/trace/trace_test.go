package trace

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"twok/internal/agent"
	"twok/internal/failover"
)

// recorded is a link cut, both etcds stopped for a claim, one claim, the other member's return with
// its log, on a real etcd 3.6:
//
//	TWOK_E2E_TRACES=DIR go test -run 'TestExternal/^link$' ./testing/e2e
func recorded(t *testing.T) []Line {
	t.Helper()
	ls, err := ReadFiles("testdata/link_a.jsonl", "testdata/link_b.jsonl", "")
	if err != nil {
		t.Fatal(err)
	}
	return ls
}

// TestRecorded: the recorded trace is explained, with few hidden moves.
//
// Rules: none (the model itself).
func TestRecorded(t *testing.T) {
	ls := recorded(t)
	r, err := Check(ls, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r)
	if r.Lines != len(ls) || r.Hidden > len(ls)/2 {
		t.Errorf("%d of %d lines, %d hidden moves", r.Lines, len(ls), r.Hidden)
	}
}

// TestReplacedDisk: the loser's disk is replaced by an empty one, on which its etcd makes itself the member that it was, again and
// again, since nothing but the survivor tells it that it was removed. Told that disks are replaced the model explains it, else it refuses.
//
// Rules: none (the model itself).
func TestReplacedDisk(t *testing.T) {
	ls, err := ReadFiles("testdata/blank_a.jsonl", "testdata/blank_b.jsonl", "")
	if err != nil {
		t.Fatal(err)
	}
	if r, err := Check(ls, Options{Disks: true}); err != nil || r.Lines != len(ls) {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := inModel(ls, Options{}); !errors.Is(err, ErrRefused) {
		t.Errorf("with the old disk: %v", err)
	}
}

// TestWaitingEtcd: where something else starts etcd, it may be seen started while the agent holds the locks for which it waits, here
// both sites' after both were down.
//
// Rules: P8.
func TestWaitingEtcd(t *testing.T) {
	explained(t, "waits")
}

// TestLateMessage: bytes that stalled in a cut link arrive after the heal, and the loser's etcd follows its former leader once more;
// its watcher may have seen that when etcd is stopped already. Nobody else, and in no other term.
//
// Rules: P12.
func TestLateMessage(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(o *failover.Obs)
		want error
	}{
		{"the former leader", func(*failover.Obs) {}, nil},
		{"itself", func(o *failover.Obs) { o.Leader = o.Member }, ErrRefused},
		{"in a later term", func(o *failover.Obs) { o.Term++ }, ErrRefused},
		{"as a learner", func(o *failover.Obs) { o.Learner = true }, ErrRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &book{t, recorded(t)}
			for k := range b.ls { // else the leader of before the cut was seen a short while ago
				b.ls[k].At = b.ls[0].At + 8*(b.ls[k].At-b.ls[0].At)
			}
			led := b.last(loser, "tick", func(l *Line) bool {
				return l.To == "following" && l.In.Obs.Term > 0 && l.At < b.find(loser, "stopped", "", 1).At
			}).In.Obs
			late := b.last(loser, "tick", func(l *Line) bool { return l.To == "preparing" })
			if read := b.find(loser, "data-read", "rewrite", 1); late.At < read.At || late.In.Obs.Etcd != failover.EtcdAway {
				t.Fatal("the trace has no tick while the locks are held")
			}
			late.In.Obs.Etcd, late.In.Obs.Leader, late.In.Obs.Term, late.In.Obs.Voters = failover.EtcdLed, led.Leader, led.Term, led.Voters
			c.do(&late.In.Obs)
			if _, err := inModel(b.ls, Options{}); !errors.Is(err, c.want) {
				t.Errorf("%v, not %v", err, c.want)
			}
		})
	}
}

// TestTermReadApart: an etcd that was just elected shows itself as the leader, and the term of the last entry that it has applied: the former
// leader's. It shows no leader in a term that is not its own yet.
//
// Rules: P14.
func TestTermReadApart(t *testing.T) {
	for _, c := range []struct {
		name string
		by   int
		want error
	}{
		{"the term before", -1, nil},
		{"the next term", 1, ErrRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &book{t, recorded(t)}
			led := func(site int) func(l Line) bool {
				return func(l Line) bool { return l.Site == site && l.Event == "tick" && l.In.Obs.Etcd == failover.EtcdLed }
			}
			follows := slices.IndexFunc(b.ls, led(loser))
			leads := &b.ls[follows+slices.IndexFunc(b.ls[follows:], led(survivor))] // the other member has heard of it
			if leads.In.Obs.Leader != leads.In.Obs.Member || b.ls[follows].In.Obs.Leader != leads.In.Obs.Member {
				t.Fatal("the trace begins with another leader")
			}
			leads.In.Obs.Term = uint64(int(leads.In.Obs.Term) + c.by)
			if _, err := inModel(b.ls, Options{}); !errors.Is(err, c.want) {
				t.Errorf("%v, not %v", err, c.want)
			}
		})
	}
}

// TestBehindAndAhead: a survivor that commits alone has applied, and on disk, what no hard state on its disk says is committed; a learner
// that fails has heard of the survivor's term and has no entry of it, when its log is prepared again.
//
// Rules: P9, P13.
func TestBehindAndAhead(t *testing.T) {
	explained(t, "behind")
}

// TestUnknownTokens: two writes of the token of which nobody knows what became of them, and a third one that is the token of the claim.
//
// Rules: P14.
func TestUnknownTokens(t *testing.T) {
	explained(t, "tokens")
}

// TestCreatedAgain: a creation of the record that surely failed, and was proposed again under another ID.
//
// Rules: P1.
func TestCreatedAgain(t *testing.T) {
	explained(t, "again")
}

// TestBehindThePromotion: a write that the leader, alone so far, commits right behind a promotion, before it applies that. The new
// voter's log ends before both.
//
// Rules: P4, P14.
func TestBehindThePromotion(t *testing.T) {
	explained(t, "promoted")
}

// TestHandedOver: a leader that ends hands over, and the new one shows the term of before beside itself until it ends, too:
// no line shows the term that it leads in.
//
// Rules: none (the checker's moves).
func TestHandedOver(t *testing.T) {
	explained(t, "handed")
}

// explained: the model allows the recorded trace, to its last line.
func explained(t *testing.T, name string) {
	t.Helper()
	ls, err := ReadFiles("testdata/"+name+"_a.jsonl", "testdata/"+name+"_b.jsonl", "")
	if err != nil {
		t.Fatal(err)
	}
	if r, err := Check(ls, Options{}); err != nil || r.Lines != len(ls) {
		t.Errorf("%v, %v", r, err)
	}
}

// book is a trace that is being changed.
type book struct {
	*testing.T
	ls []Line
}

// find is the n-th line (from one) of the site with this event, and with this action if one is named.
func (b *book) find(site int, event, action string, n int) *Line {
	b.Helper()
	for k := range b.ls {
		l := &b.ls[k]
		if l.Site == site && l.Event == event && (action == "" || slices.Contains(l.Actions, action)) {
			if n--; n == 0 {
				return l
			}
		}
	}
	b.Fatalf("no such line: %d %s %s", site, event, action)
	return nil
}

// last is the last such line.
func (b *book) last(site int, event string, ok func(*Line) bool) (found *Line) {
	b.Helper()
	for k := range b.ls {
		if l := &b.ls[k]; l.Site == site && l.Event == event && ok(l) {
			found = l
		}
	}
	if found == nil {
		b.Fatalf("no such line: %d %s", site, event)
	}
	return found
}

func (b *book) done(site int, event string, n int) *Line {
	b.Helper()
	for k := range b.ls {
		l := &b.ls[k]
		if l.Site == site && l.Event == event && l.Outcome == "done" {
			if n--; n == 0 {
				return l
			}
		}
	}
	b.Fatalf("no such line: %d %s", site, event)
	return nil
}

func (b *book) drop(l *Line) {
	for k := range b.ls {
		if &b.ls[k] == l {
			b.ls = slices.Delete(b.ls, k, k+1)
			return
		}
	}
}

// swap exchanges what two lines say, not their times.
func (b *book) swap(x, y *Line) {
	x.At, y.At, x.T, y.T, x.No, y.No = y.At, x.At, y.T, x.T, y.No, x.No
	*x, *y = *y, *x
}

// after lets the line come later.
func (b *book) after(l *Line, other *Line) {
	moved, to := *l, other.At+1
	b.drop(l)
	moved.At = to
	k := slices.IndexFunc(b.ls, func(x Line) bool { return x.At >= to })
	b.ls = slices.Insert(b.ls, k, moved)
}

const (
	loser    = 0
	survivor = 1
)

// mutations each change one thing. Those that the program could not have written without another core are
// caught by the exact replay too; the model has to refuse every one by itself.
var mutations = []struct {
	name string
	do   func(b *book)
}{
	// Swaps and the record.
	{"the claim keeps the generation", func(b *book) { b.find(survivor, "data-read", "swap", 1).Out[0].Record.Generation-- }},
	{"the claim skips a generation", func(b *book) { b.find(survivor, "data-read", "swap", 1).Out[0].Record.Generation++ }},
	{"the claim names the other member", func(b *book) {
		a := &b.find(survivor, "data-read", "swap", 1).Out[0]
		a.Record.Survivor.ID = b.find(loser, "data-read", "", 1).In.Data.Member
	}},
	{"the claim expects another version", func(b *book) {
		a := &b.find(survivor, "data-read", "swap", 1).Out[0]
		a.Prev = b.find(survivor, "record-read", "write-token", 1).In.Version
	}},
	{"the claim's fork is not behind its end", func(b *book) { b.find(survivor, "data-read", "swap", 1).Out[0].Record.Fork.Index++ }},
	{"the claim keeps the whole note", func(b *book) {
		b.find(survivor, "data-read", "swap", 1).Out[0].Record.WholeGeneration = 1
	}},
	{"the claim is not in the history", func(b *book) {
		a := &b.find(survivor, "data-read", "swap", 1).Out[0]
		a.Record.History[0].First = 0
	}},
	{"the swap's reply is missing", func(b *book) { b.drop(b.done(survivor, "swapped", 3)) }},
	{"the swap is asked for and lost, and yet appended", func(b *book) {
		b.done(survivor, "swapped", 3).In.Outcome = failover.Conflict
	}},
	{"the append without an own swap", func(b *book) {
		claim, won := b.find(survivor, "data-read", "swap", 1), b.find(survivor, "swapped", "append", 1)
		claim.Out, claim.Actions, claim.To = won.Out, won.Actions, won.To
		b.drop(won)
	}},
	{"the record is read before it was swapped", func(b *book) {
		read := b.find(survivor, "record-read", "release", 1)
		b.find(survivor, "record-read", "read-data", 1).In.Record = read.In.Record
	}},
	{"an old record is read long after", func(b *book) {
		of := func(generation uint64) func(l *Line) bool {
			return func(l *Line) bool { return l.Generation == generation }
		}
		old := b.last(loser, "record-read", of(1)).In
		l := b.last(loser, "record-read", of(2))
		l.In.Record, l.In.Version, l.Generation = old.Record, old.Version, 1
	}},
	{"two contents of one version", func(b *book) {
		b.find(survivor, "record-read", "tidy", 1).In.Version = b.find(survivor, "record-read", "write-token", 1).In.Version
	}},
	{"the confirmation is of what is not applied", func(b *book) {
		p := b.find(survivor, "sampled", "", 1)
		p.In.Position.Index, p.Out[0].Record.Confirmed.Index = 190, 190
	}},
	{"the confirmation is of the generation before", func(b *book) {
		p := b.find(survivor, "sampled", "", 1)
		p.In.Position.Index, p.Out[0].Record.Confirmed.Index = 15, 15
	}},
	{"the confirmation is of another term", func(b *book) {
		p := b.find(survivor, "sampled", "", 1)
		p.In.Position.Term, p.Out[0].Record.Confirmed.Term = 3, 3
	}},
	{"the whole note names one member twice", func(b *book) {
		m := &b.find(survivor, "token-written", "swap", 2).Out[0].Record
		m.WholeMembers[1] = m.WholeMembers[0]
	}},
	{"the whole note keeps the confirmation", func(b *book) {
		b.find(survivor, "token-written", "swap", 2).Out[0].Record.Confirmed.Index = 55
	}},
	{"the commit mark is not the one that was seen", func(b *book) {
		b.find(survivor, "token-written", "swap", 2).Out[0].Record.MarkIndex = 132
	}},

	// The append.
	{"the append in the same term", func(b *book) { b.find(survivor, "swapped", "append", 1).Out[0].Term-- }},
	{"the append removes nobody", func(b *book) { b.find(survivor, "swapped", "append", 1).Out[0].Remove[0] = 0 }},
	{"the append removes the survivor", func(b *book) {
		b.find(survivor, "swapped", "append", 1).Out[0].Remove[0] = b.find(survivor, "data-read", "", 1).In.Data.Member
	}},
	{"the etcd is released before the append", func(b *book) {
		b.swap(b.done(survivor, "appended", 1), b.done(survivor, "released", 1))
	}},

	// The data.
	{"the log ends later than the leader's writes allow", func(b *book) { b.find(loser, "data-read", "", 1).In.Data.Last.Index += 30 }},
	{"the log ends in another term", func(b *book) { b.find(survivor, "data-read", "", 1).In.Data.Last.Term-- }},
	{"the hard state's term", func(b *book) { b.find(loser, "data-read", "rewrite", 1).In.Data.Term++ }},
	{"more is committed than both have", func(b *book) {
		d := &b.find(survivor, "data-read", "", 1).In.Data
		d.Commit, d.Last.Index = d.Last.Index+20, d.Last.Index+20
	}},
	{"the token is of the next generation", func(b *book) { b.find(loser, "data-read", "release", 1).In.Data.Token.Generation++ }},
	{"the token's entry is in another term", func(b *book) { b.find(survivor, "data-read", "", 1).In.Data.Token.EntryTerm++ }},
	{"the token's entry has another index", func(b *book) { b.find(loser, "data-read", "rewrite", 1).In.Data.TokenIndex++ }},
	{"the tail holds a token", func(b *book) {
		d := &b.find(survivor, "data-read", "", 1).In.Data
		d.Tail = failover.Tail{Writes: true, RecordID: d.Token.RecordID, Generation: 1}
	}},
	{"a third voter in the tail", func(b *book) {
		d := &b.find(survivor, "data-read", "", 1).In.Data
		d.Confs.MaxOthers, d.Confs.Others = 2, 2
	}},
	{"a change since the token", func(b *book) {
		d := &b.find(survivor, "data-read", "", 1).In.Data
		d.Past.Newest[0] = failover.Change{Index: 9, Term: 2, ID: 77}
	}},
	{"the log begins later", func(b *book) { b.find(loser, "data-read", "rewrite", 1).In.Data.First = 8 }},

	// The way back.
	{"the log is not kept", func(b *book) {
		a := &b.find(loser, "data-read", "rewrite", 1).Out[0]
		a.Keep, a.Why = false, failover.RolledBack
	}},
	{"the log is kept although the fork is committed", func(b *book) {
		d := &b.find(loser, "data-read", "rewrite", 1).In.Data
		d.Commit = d.Last.Index
		d.Last.Index += 20
		d.Commit += 20
	}},
	{"the log is kept although the data cannot be read", func(b *book) {
		b.find(loser, "data-read", "rewrite", 1).In.Data = failover.Data{Problem: failover.WALUnreadable}
	}},
	{"the log is set aside although it was to be kept", func(b *book) { b.done(loser, "rewritten", 1).In.Why = failover.RolledBack }},
	{"the rewrite to another ID", func(b *book) { b.find(loser, "data-read", "rewrite", 1).Out[0].ID++ }},
	{"the learner has another ID", func(b *book) { b.done(loser, "member-changed", 1).In.ID++ }},
	{"the learner is added before the confirmation", func(b *book) {
		early := b.done(loser, "listed", 1)
		late := b.find(loser, "listed", "add-learner", 1)
		early.Out, early.Actions, early.To, early.Reason = late.Out, late.Actions, late.To, late.Reason
	}},
	{"the survivor's list still has the loser", func(b *book) { b.done(loser, "listed", 1).In.List.Self = failover.ListedVoter }},
	{"the survivor's list shows two voters", func(b *book) { b.done(loser, "listed", 2).In.List.Voters.Count = 2 }},
	{"the list of a member that does not lead", func(b *book) {
		l := b.find(survivor, "listed", "", 1)
		l.In.List = b.done(loser, "listed", 1).In.List
		l.In.Outcome, l.Outcome = failover.Done, "done"
	}},
	{"the promotion before the comparison", func(b *book) {
		b.swap(b.find(loser, "compared", "promote", 1), b.done(loser, "member-changed", 2))
	}},
	{"the promotion of another member", func(b *book) { b.find(loser, "compared", "promote", 1).Out[0].ID++ }},
	{"the promotion although the hashes differ", func(b *book) { b.find(loser, "compared", "promote", 1).In.Equal = false }},
	{"the promotion while it is not a learner yet", func(b *book) {
		l := b.done(loser, "released", 2)
		p := b.find(loser, "compared", "promote", 1)
		l.Out, l.Actions, l.To, l.Reason = p.Out, p.Actions, p.To, p.Reason
	}},

	// Tokens.
	{"the token names others", func(b *book) { b.done(survivor, "token-written", 2).In.Token.Members[0]++ }},
	{"the token is of another generation", func(b *book) { b.find(survivor, "record-read", "write-token", 2).Out[0].Generation-- }},
	{"the token is of another term", func(b *book) { b.done(survivor, "token-written", 2).In.Token.Term-- }},
	{"the token is written before the promotion", func(b *book) {
		l := b.find(survivor, "record-read", "", 12)
		a := b.find(survivor, "record-read", "write-token", 2)
		l.Out, l.Actions = a.Out, a.Actions
	}},
	{"the loser sees the new token too early", func(b *book) {
		l := b.last(loser, "tick", func(l *Line) bool { return l.From == failover.Lost.String() && l.In.Obs.Token.Generation == 1 })
		l.In.Obs.Token.Generation = 2
	}},

	// Leaders and what is seen.
	{"the loser leads too, in the survivor's term", func(b *book) {
		l := b.find(loser, "tick", "look-at-list", 2)
		o := &l.In.Obs
		o.Etcd, o.Leader, o.Term = failover.EtcdLed, o.Member, 4
	}},
	{"the loser follows the survivor while it is not its member", func(b *book) {
		l := b.find(loser, "tick", "look-at-list", 2)
		o := &l.In.Obs
		o.Etcd, o.Leader, o.Term = failover.EtcdLed, b.find(survivor, "data-read", "", 1).In.Data.Member, 4
	}},
	{"the cut-off loser sees the survivor's commit index", func(b *book) { b.find(loser, "tick", "read-record", 6).In.Obs.Commit = 132 }},
	{"a leader of a later term", func(b *book) { b.find(survivor, "tick", "read-record", 6).In.Obs.Term++ }},

	// Reasons, order, memory.
	{"another reason", func(b *book) { b.find(loser, "data-read", "release", 1).Reason = failover.RolledBack.String() }},
	{"another phase", func(b *book) { b.find(loser, "data-read", "release", 1).To = failover.Claiming.String() }},
	{"an action is missing", func(b *book) { b.find(survivor, "stopped", "read-record", 1).Out = nil }},
	{"an action too many", func(b *book) {
		l := b.done(survivor, "tidied", 1)
		l.Out = append(l.Out, agent.Asked{Action: failover.Action{Kind: failover.Restart}})
	}},
	{"a reply that nobody asked for", func(b *book) { b.find(survivor, "preflighted", "", 1).In.Kind = failover.Stopped }},
	{"the claim after fewer ticks", func(b *book) { b.find(survivor, "tick", "", 14).Ticks -= 9 }},
	{"the loser's swap comes first", func(b *book) {
		b.after(b.done(survivor, "swapped", 3), b.find(loser, "record-read", "", 6))
	}},
	{"the agent remembers a claim that it never made", func(b *book) {
		b.find(loser, "start", "", 1).Start.Own = failover.Own{RecordID: "x", Generation: 1, Nonces: [4]string{"n"}}
	}},
}

// TestMutations: a trace in which one thing is changed is refused, by the model alone.
//
// Rules: none (the check itself).
func TestMutations(t *testing.T) {
	for _, m := range mutations {
		t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			b := &book{t, recorded(t)}
			m.do(b)
			_, err := inModel(b.ls, Options{})
			if !errors.Is(err, ErrRefused) {
				t.Fatalf("the model allows it: %v", err)
			}
			first, _, _ := strings.Cut(err.Error(), "\n")
			t.Logf("%s\nexact replay: %v", first, exact(b.ls) != nil)
		})
	}
}
