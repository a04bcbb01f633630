package explore

import (
	"fmt"
	"reflect"
	"slices"
	"unsafe"

	"twok/arbiter"
	"twok/internal/failover"
)

// The codec writes a World in its canonical form and reads it back. It follows the
// Go types, so that a new field of the core's state is either of a kind that it knows or
// stops the program: nothing is left out by accident.

type class uint8

const (
	plain   class = iota
	dead          // never read before it is written again, or for people only
	index         // of the log
	above         // of the log; zero for all that is folded
	term          //
	gen           // a generation
	id            // a member's
	uid           // an entry's
	nonce         // text
	tagged        // a version's tag
	start         // of an etcd
	text          // one of few constants
	history       // [16]arbiter.HistoryEntry
	record        // arbiter.Record, shared with the register if equal
	pos           // arbiter.Position
	since         // arbiter.Position of a claim's end: what comes after it is asked for
	entries       // []Entry
	pointer
	ids // an array of IDs, ascending, zeros at the end
)

// classes names the class of each field that is not plain, by type and field.
var classes = map[string]class{
	"arbiter.Record.ID": text, "arbiter.Record.Generation": gen, "arbiter.Record.Nonce": dead, "arbiter.Record.ClaimNonce": nonce,
	"arbiter.Record.Reason": dead, "arbiter.Record.ClaimEnd": since, "arbiter.Record.CreatedAt": dead, "arbiter.Record.ClaimedAt": dead, "arbiter.Record.WrittenAt": dead,
	"arbiter.Record.ConfirmedAt": dead, "arbiter.Record.WholeAt": dead, "arbiter.Record.WholeGeneration": gen, "arbiter.Record.WholeMembers": ids,
	"arbiter.Record.MarkGeneration": gen, "arbiter.Record.MarkIndex": index, "arbiter.Record.Extra": dead, "arbiter.Record.ClusterID": plain,
	"arbiter.Member.ID": id, "arbiter.Member.Name": dead,
	"arbiter.HistoryEntry.First": gen, "arbiter.HistoryEntry.Last": gen, "arbiter.HistoryEntry.Survivor": id, "arbiter.HistoryEntry.At": dead,
	"arbiter.HistoryEntry.Extra": dead, "arbiter.HistoryEntry.By": dead, "arbiter.Version.tag": tagged,

	"failover.Own.RecordID": text, "failover.Own.Generation": gen, "failover.Own.Nonces": nonce,
	"failover.State.P": dead, "failover.State.Seen": gen, "failover.State.StopStart": start, "failover.State.NewID": id, "failover.State.Tidied": dead, "failover.State.TokenAt": dead, "failover.State.TokenSeg": dead, "failover.Obs.Segment": dead,
	// Read in the tick that sets them, or not at all; TestDeadFields checks that.
	"failover.Obs.Start": dead, "failover.Obs.Leader": dead, "failover.Obs.Other": dead, "failover.Obs.Contact": dead, "failover.Obs.Peer": dead,
	"failover.Obs.Learner": dead, "failover.Obs.Term": dead,
	// With Params, a tick makes these what it needs, whatever they were; or they only delay, for no time.
	"failover.State.ListAge": dead, "failover.State.NoLeader": dead, "failover.State.PeerLost": dead, "failover.State.PeerBack": dead,
	"failover.State.PreWait": dead, "failover.State.StopLevel": dead, "failover.State.StopWait": dead, "failover.State.Refused": dead, "failover.State.WasLeader": dead,
	"failover.State.LossAge": dead, "failover.State.HoldLevel": dead, "failover.State.Hold": dead,
	"failover.Obs.Member": id, "failover.Obs.Cluster": plain, "failover.Obs.Commit": index,
	"failover.Token.RecordID": text, "failover.Token.Generation": gen, "failover.Token.Cluster": plain, "failover.Token.Members": ids,
	"failover.Token.Term": term, "failover.Token.EntryTerm": term, "failover.Voters.IDs": ids,
	"failover.Data.Member": id, "failover.Data.Cluster": plain, "failover.Data.Name": dead, "failover.Data.Term": term, "failover.Data.Commit": index,
	"failover.Data.Applied": index, "failover.Data.Snap": index, "failover.Data.Asked": term, "failover.Tail.RecordID": text, "failover.Tail.Generation": gen,
	"failover.Data.First": index, "failover.Data.TokenIndex": index, "failover.Past.More": index, "failover.Change.Index": index, "failover.Change.Term": term, "failover.Change.ID": id,
	"failover.Confs.Other": id, "failover.Confs.Remove": ids,
	"failover.List.Leader": id, "failover.List.Cluster": plain, "failover.List.Leftover": id, "failover.List.Stranger": id,
	"failover.Action.Index": index, "failover.Action.Remove": ids, "failover.Action.Term": term, "failover.Action.ID": id, "failover.Action.Cluster": plain,
	"failover.Action.Generation": gen, "failover.Action.RecordID": text,
	"failover.Event.Seen": gen, "failover.Event.ID": id, "failover.Event.FreshID": dead, "failover.Event.RecordID": dead, "failover.Event.Stamp": dead, "failover.Event.Obs": dead,

	"explore.Site.Seen": gen, "explore.Site.Added": id,
	"explore.Node.ID": id, "explore.Node.Term": term, "explore.Node.Vote": dead, "explore.Node.HS": index, "explore.Node.Snap": above, "explore.Node.DB": index,
	"explore.Node.Commit": index, "explore.Node.Applied": index, "explore.Node.Match": index, "explore.Node.Pending": index, "explore.Node.Start": start,
	"explore.Entry.Term": term, "explore.Entry.UID": uid, "explore.Entry.ID": id, "explore.Entry.Prev": uid,
	"explore.Token.UID": uid, "explore.Token.Gen": gen, "explore.Token.Pair": ids, "explore.Token.Term": term, "explore.Token.Entry": term,
	"explore.Peer.ID": id, "explore.LateToken.Start": start,
}

// deadPaths are fields that are dead in one place only: the terms of a token matter in
// data that were read under the locks, nowhere else.
var deadPaths = []string{
	"Site.S.Obs.Token.Term", "Site.S.Obs.Token.EntryTerm", "Site.S.Tok.Term", "Site.S.Tok.EntryTerm", "Event.Token.Term", "Event.Token.EntryTerm",
}

// Each name has to be there.
var deadSeen, classSeen = map[string]bool{}, map[string]bool{}

type leaf struct {
	off  uintptr
	size uint8 // 1, 2, 4, 8; 16 for strings
	n    uint8 // ids: how many
	cl   class
	sub  *plan // pointer
}

type plan struct {
	t      reflect.Type
	leaves []leaf
	gens   []leaf // those that hold generations
}

var plans = map[reflect.Type]*plan{}

func planOf(t reflect.Type) *plan {
	if p := plans[t]; p != nil {
		return p
	}
	p := &plan{t: t}
	plans[t] = p
	p.add(t, 0, plain, t.Name())
	for _, l := range p.leaves {
		switch l.cl {
		case gen, history, record, entries, pointer:
			p.gens = append(p.gens, l)
		}
	}
	return p
}

func (p *plan) add(t reflect.Type, off uintptr, cl class, path string) {
	if slices.Contains(deadPaths, path) {
		deadSeen[path] = true
		return
	}
	switch {
	case cl == dead:
		return
	case cl == ids:
		p.leaves = append(p.leaves, leaf{off: off, n: uint8(t.Len()), cl: ids})
		return
	case t == reflect.TypeFor[[arbiter.HistoryLen]arbiter.HistoryEntry]():
		p.leaves = append(p.leaves, leaf{off: off, cl: history})
		return
	case t == reflect.TypeFor[arbiter.Record]() && p.t != t:
		p.leaves = append(p.leaves, leaf{off: off, cl: record})
		return
	case t == reflect.TypeFor[arbiter.Position]():
		if cl != since {
			cl = pos
		}
		p.leaves = append(p.leaves, leaf{off: off, cl: cl})
		return
	case t == reflect.TypeFor[[]Entry]():
		p.leaves = append(p.leaves, leaf{off: off, cl: entries})
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			name := t.String() + "." + f.Name
			c, known := classes[name]
			classSeen[name] = true
			k := f.Type
			for k.Kind() == reflect.Array {
				k = k.Elem()
			}
			if !known && (k.Kind() == reflect.Uint64 || k.Kind() == reflect.String || k.Kind() == reflect.Int64 || k.Kind() == reflect.Int) {
				panic("explore: " + name + " has no class in codec.go")
			}
			p.add(f.Type, off+f.Offset, c, path+"."+f.Name)
		}
	case reflect.Array:
		for i := range t.Len() {
			p.add(t.Elem(), off+uintptr(i)*t.Elem().Size(), cl, path)
		}
	case reflect.Pointer:
		p.leaves = append(p.leaves, leaf{off: off, cl: pointer, sub: planOf(t.Elem())})
	case reflect.String:
		p.leaves = append(p.leaves, leaf{off: off, size: 16, cl: cl})
	case reflect.Bool, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Int, reflect.Int64:
		p.leaves = append(p.leaves, leaf{off: off, size: uint8(t.Size()), cl: cl})
	default:
		panic(fmt.Sprintf("explore: %s of type %s", path, t))
	}
}

var (
	sitePlan   = planOf(reflect.TypeFor[Site]())
	nodePlan   = planOf(reflect.TypeFor[Node]())
	entryPlan  = planOf(reflect.TypeFor[Entry]())
	peerPlan   = planOf(reflect.TypeFor[Peer]())
	tokenPlan  = planOf(reflect.TypeFor[Token]())
	recordPlan = planOf(reflect.TypeFor[arbiter.Record]())
	pastPlan   = planOf(reflect.TypeFor[arbiter.HistoryEntry]())
	actionPlan = planOf(reflect.TypeFor[failover.Action]())
	eventPlan  = planOf(reflect.TypeFor[failover.Event]())
	latePlan   = planOf(reflect.TypeFor[LateToken]())
)

func load(p unsafe.Pointer, size uint8) uint64 {
	switch size {
	case 1:
		return uint64(*(*uint8)(p))
	case 2:
		return uint64(*(*uint16)(p))
	case 4:
		return uint64(*(*uint32)(p))
	}
	return *(*uint64)(p)
}

func store(p unsafe.Pointer, size uint8, v uint64) {
	switch size {
	case 1:
		*(*uint8)(p) = uint8(v)
	case 2:
		*(*uint16)(p) = uint16(v)
	case 4:
		*(*uint32)(p) = uint32(v)
	default:
		*(*uint64)(p) = v
	}
}
