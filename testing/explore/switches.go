package explore

import (
	"fmt"
	"slices"
	"strings"

	"twok/internal/failover"
)

// Switch turns one rule, or one clause of a rule, off. The core has no such
// switches: what the core is told, what it asks for, or how that is carried out is changed.
type Switch uint8

// The switches.
const (
	A0         Switch = iota // a configuration change is applied before its commit is on disk
	P1                       // the store takes every swap
	P1Nonce                  // a claim whose outcome is unknown is taken as won if the record names this member
	P2                       // a claim keeps the generation
	P4Gen                    // the token's generation
	P4Applied                // the token counts although it is only in the tail
	P4Names                  // the token's names
	P4Term                   // the token entry's term
	P4End                    // (b): the log end of the claim
	P4Whole                  // (b): the whole note
	P4Tail                   // operations on the token's key in the tail
	P5                       // the last configuration alone counts
	P5Pair                   // a third voter does not matter
	P5Log                    // the log need not reach back to the token's entry or the claim
	P7Lock                   // etcd is stopped only when the WAL is written
	P7Order                  // append, then swap
	P7Own                    // one operates on whatever claim the record holds
	P8Term                   // the append in the same term
	P8Truncate               // the append truncates what is not known to be committed
	P10Confirm               // a learner is added before the first confirmation
	P10Index                 // a log that ends below the confirmation will do
	P13                      // the log is always kept
	P14Leads                 // through any member
	P14Lists                 // without the two local lists
	P14Txn                   // without a transaction
	P14Conn                  // over a connection that outlives etcd
	P15                      // the commit mark is not looked at
	P16                      // a record that names somebody else is not looked at
	P17                      // no memory of the highest generation (with a store that is rolled back)
	A1                       // the store may be rolled back
	A2                       // a disk may lose what it synced
	P19Flag                  // the token is written in spite of the drain flag
	P19Whole                 // a drain claims although the pair is not whole
	P19Leads                 // the other member is removed although the survivor does not lead
	numSwitches
)

var switchNames = [numSwitches]string{
	"A0", "P1", "P1.nonce", "P2", "P4.generation", "P4.applied", "P4.names", "P4.term", "P4.end", "P4.whole", "P4.tail",
	"P5.every", "P5.pair", "P5.log", "P7.stop", "P7.order", "P7.own", "P8.term", "P8.truncate", "P10.confirm", "P10.index", "P13",
	"P14.leads", "P14.lists", "P14.transaction", "P14.connection", "P15", "P16", "P17", "A1", "A2", "P19.flag", "P19.whole", "P19.leads",
}

func (s Switch) String() string { return switchNames[s] }

// Switches is a set of rules that are off.
type Switches uint64

// Without is the set that turns these rules off.
func Without(ss ...Switch) (set Switches) {
	for _, s := range ss {
		set |= 1 << s
	}
	return set
}

func (s Switches) has(x Switch) bool { return s&(1<<x) != 0 }
func (s Switches) any() bool         { return s != 0 }

func (s Switches) String() string {
	var names []string
	for x := range numSwitches {
		if s.has(x) {
			names = append(names, x.String())
		}
	}
	return strings.Join(names, " ")
}

// ParseSwitches reads what String writes.
func ParseSwitches(text string) (s Switches, err error) {
	for _, f := range strings.Fields(text) {
		i := slices.Index(switchNames[:], f)
		if i < 0 {
			return 0, fmt.Errorf("no rule %q to turn off", f)
		}
		s |= 1 << i
	}
	return s, nil
}

// event changes what the core is told.
func (s Switches) event(w *World, i int, e *failover.Event) {
	if s == 0 {
		return
	}
	c := &w.Sites[i].S
	d, rec := &e.Data, &e.Record
	if e.Kind == failover.Tick && s.has(P14Leads) && e.Obs.Etcd == failover.EtcdLed && e.Obs.Voters.Count == 2 {
		e.Obs.Leader = e.Obs.Member // every agent writes tokens
	}
	if e.Kind == failover.DataRead {
		other := d.Token.Other(d.Member)
		switch {
		case s.has(P4Gen) && d.Token.Present:
			d.Token.Generation = c.Rec.Generation
		case s.has(P4Applied) && d.Tail.Writes && d.Tail.Generation == c.Rec.Generation:
			n := &w.Nodes[i]
			d.Token = coreToken(w.token(n, len(n.Log)))
			d.Confs.Applied = coreVoters(w.conf(n, len(n.Log)))
		case s.has(P4Names) && d.Token.Present && d.Confs.Applied.Count == 2:
			d.Token.Members = d.Confs.Applied.IDs
		case s.has(P4Term):
			d.Token.EntryTerm = d.Token.Term
		case s.has(P4Tail):
			d.Tail = failover.Tail{}
		case s.has(P5):
			last := coreVoters(w.conf(&w.Nodes[i], len(w.Nodes[i].Log)))
			c := w.conf(&w.Nodes[i], len(w.Nodes[i].Log))
			d.Confs.Self = c.voter(d.Member)
			d.Confs.MaxOthers = last.Count - 1
			d.Confs.Others, d.Confs.Other = min(d.Confs.MaxOthers, 1), other
		case s.has(P5Log):
			d.First = 1
			if d.TokenIndex == 0 && d.Token.Present {
				d.TokenIndex, d.Token.EntryTerm = 1, d.Token.Term
			}
		case s.has(P5Pair):
			d.Confs.MaxOthers = min(d.Confs.MaxOthers, 1)
			d.Confs.Others, d.Confs.Other = min(d.Confs.Others, 1), other
		}
	}
	if e.Kind == failover.RecordRead && e.Status == failover.Readable {
		switch {
		case s.has(P4End) && c.Phase == failover.Deciding:
			rec.ClaimEnd.Index, rec.ClaimEnd.Term = 0, 0
		case s.has(P10Index) && c.Phase == failover.Deciding:
			rec.Confirmed.Index, rec.Confirmed.Term = 0, 0
		case s.has(P15) && c.Phase == failover.Deciding:
			rec.MarkGeneration = 0
		case s.has(P4Whole) && c.Phase == failover.Deciding:
			rec.WholeGeneration = 0
		case (s.has(P1Nonce) || s.has(P7Own)) && c.Phase == failover.Claiming && rec.Survivor.ID == c.Data.Member:
			rec.ClaimNonce = c.Mine.Nonces[0]
		case s.has(P10Confirm) && rec.Confirmed.Index == 0 && (c.Phase == failover.Lost || c.Phase == failover.Leaderless):
			rec.Confirmed.Index, rec.Confirmed.Term = 1, 1
		case s.has(P16) && (c.Phase == failover.Alone || c.Phase == failover.Rechecking):
			rec.Survivor.ID, rec.ClaimNonce = w.Nodes[i].ID, c.Mine.Nonces[0]
		case s.has(P19Flag) && c.Phase == failover.Leading:
			rec.Drain = false
		}
		if s.has(P17) {
			e.Seen = rec.Generation
			c.Seen = min(c.Seen, rec.Generation)
		}
	}
	if s.has(P7Own) && e.Kind == failover.Swapped && e.Outcome == failover.Conflict && c.Phase == failover.Claiming &&
		w.Rec.Survivor.ID == c.Data.Member {
		e.Outcome = failover.Done
	}
}

// action changes what the core asks for.
func (s Switches) action(w *World, i int, a *failover.Action) {
	if s == 0 {
		return
	}
	switch {
	case s.has(P2) && a.Kind == failover.Swap && a.Claim:
		a.Record.Generation = w.Sites[i].S.Rec.Generation
		w.Sites[i].S.Mine.Generation = a.Record.Generation
	case s.has(P13) && a.Kind == failover.Rewrite:
		a.Keep = true
	}
}
