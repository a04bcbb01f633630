package failover

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"twok/arbiter"
)

// The scripts in testdata/script. Each names its rules in its head. A command
// prints what the agents did: time, agent, event, phase/reason -> actions; polls that change nothing are left out.
//
//	whole                     the pair, run until its token and its notes are there
//	tick [a|b] N              time passes
//	cut | heal [slow]         the link between the sites; slow: the etcds find each other after 40 ticks or a restart
//	arbiter S up|down|silent  (silent: deadlines pass, swaps are unknown)
//	next S ACTION HOW… [N]    how the next actions of this kind end, N times, see perform
//	hold S ACTION | carry S ACTION | go S   an action stays out; it happens now, its answer does not come yet; both (go S ACTION: this one)
//	kill S | start S [forget] the agent; forget: with an empty state directory (F9)
//	crash S | boot S          the etcd; it stays down in between
//	write N                   client writes
//	tail S N                  entries in this etcd's log that nobody else has
//	remove X | add X [learner] [tail S]  membership, by hand, X an ID in hex
//	record STATUS | flag drain|pause on|off | rollback N | delete-token [tail S]
//	forge S | rebind ID       a claim in S's name by somebody else; another record
//	version S 3.6|3.7, blind S on|off, snapshot S, restore S, purge S, segments S N, store S trusted|untested|faulty, apply-late, dup S, prefer S, third up|down
//	show
//
// Rules: P1, P2, P3, P4, P5, P7, P8, P9, P10, P11, P12, P13, P14, P16, P17, P19, P20; F1, F2, F3, F5, F6, F7, F9, F10, F11, F16, F19, F22, F29, F32, F33, F35, F36, F37.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		w := newWorld()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			w.out.Reset()
			if d.Cmd == "reset" {
				w = newWorld()
				return ""
			}
			if err := w.command(d.Cmd, args(d)); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return w.out.String()
		})
		for _, v := range w.violate {
			t.Error(v)
		}
	})
}

func args(d *datadriven.TestData) (as []string) {
	for _, a := range d.CmdArgs {
		as = append(as, a.Key)
	}
	return as
}

func (w *world) site(name string) *site {
	for _, s := range w.sites {
		if s.name == name {
			return s
		}
	}
	return nil
}

// command carries out one line of a script, or one step of a random walk.
func (w *world) command(cmd string, as []string) error {
	arg := func(i int) string {
		if i < len(as) {
			return as[i]
		}
		return ""
	}
	num := func(i int) int {
		n, err := strconv.Atoi(arg(i))
		if err != nil {
			return 1
		}
		return n
	}
	s := w.site(arg(0))
	needs := map[string]bool{"arbiter": true, "next": true, "hold": true, "carry": true, "go": true, "kill": true, "start": true, "crash": true,
		"boot": true, "tail": true, "version": true, "blind": true, "snapshot": true, "restore": true, "dup": true, "prefer": true, "purge": true, "segments": true, "store": true, "wipe": true}
	if needs[cmd] && s == nil {
		return fmt.Errorf("%s: which agent?", cmd)
	}
	switch cmd {
	case "whole":
		w.quiet = true
		w.tick(60, "")
		w.quiet = false
		w.show()
	case "tick":
		if s != nil {
			w.tick(num(1), s.name)
		} else {
			w.tick(num(0), "")
		}
	case "cut":
		w.link = false
	case "heal":
		w.link, w.slow, w.until = true, arg(0) == "slow", w.now+40
		w.since = [2]uint32{w.sites[0].etcd.start, w.sites[1].etcd.start}
	case "arbiter":
		s.arb = arg(1)
	case "next", "hold":
		k := kind(arg(1))
		if k == NoAction {
			return fmt.Errorf("no action %q", arg(1))
		}
		if cmd == "hold" {
			s.held[k] = true
		} else {
			for range max(num(len(as)-1), 1) {
				s.next[k] = append(s.next[k], slices.DeleteFunc(slices.Clone(as[2:]), func(a string) bool { return a[0] <= '9' })...)
			}
		}
	case "carry": // the held action happens now, its answer comes with go
		k := kind(arg(1))
		_, done := s.ready[k]
		if i := slices.IndexFunc(s.queue, func(a Action) bool { return a.Kind == k }); i < 0 || done {
			return fmt.Errorf("%s is not out", arg(1))
		} else {
			s.ready[k] = s.perform(s.queue[i])
		}
	case "go":
		if k := kind(arg(1)); k != NoAction {
			delete(s.held, k)
		} else {
			clear(s.held)
		}
		s.pump()
	case "kill":
		s.kill()
	case "start":
		if arg(1) == "forget" {
			s.own, s.seen = Own{}, map[string]uint64{}
		}
		s.kill()
		s.up, s.s = true, New(testParams, s.own)
	case "crash":
		s.etcd.running, s.etcd.leads, s.away = false, false, true
	case "wipe": // the disk is replaced, and the agent's memory with it
		s.kill()
		s.own, s.seen, s.blank = Own{}, map[string]uint64{}, true
		s.etcd = etcd{version: s.etcd.version, start: s.etcd.start + 1}
	case "boot":
		s.away = false
		if s.blank {
			return fmt.Errorf("the agent holds it")
		}
		s.startEtcd()
	case "write":
		fmt.Fprintf(&w.out, "%s\n", w.write(num(0)))
	case "tail":
		if !s.etcd.running || s.locked || len(s.etcd.log) == 0 {
			return fmt.Errorf("no leader that could append")
		}
		for range num(1) {
			s.etcd.log = append(s.etcd.log, entry{term: s.etcd.term})
		}
	case "remove", "add":
		return w.change(cmd, as)
	case "delete-token":
		x, at := entry{del: true}, w.leader()
		if arg(0) == "tail" {
			at = w.site(arg(1))
		}
		if at == nil {
			return fmt.Errorf("no leader")
		}
		x.term = at.etcd.term
		at.etcd.log = append(at.etcd.log, x)
	case "record":
		w.status = Readable
		for st := Unread; st <= Misconfigured; st++ {
			if st.Reason().String() == "record-"+arg(0) {
				w.status = st
			}
		}
	case "flag":
		if w.ver == 0 {
			return fmt.Errorf("no record")
		}
		next := w.rec
		if arg(0) == "drain" {
			next.Drain = arg(1) == "on"
		} else {
			next.Pause = arg(1) == "on"
		}
		w.put(w.ver, next)
	case "rollback":
		n := len(w.old) - num(0)
		w.put(w.ver, w.old[n])
	case "rebind": // an operator's new record
		next := w.rec
		next.ID = arg(0)
		w.put(w.ver, next)
	case "force": // twok arbiter claim --accept-data-loss
		x := w.site(arg(0))
		if x.etcd.id == 0 {
			return fmt.Errorf("it has no ID")
		}
		w.put(w.ver, Force(w.rec, arbiter.Member{ID: x.etcd.id, Name: x.name}, "alice", "forced", Stamp{Nonce: fmt.Sprint("order", w.ver)}))
	case "forge": // a claim in this member's name that its agent did not make
		x := w.site(arg(0))
		next := claim(w.rec, arbiter.Member{ID: x.etcd.id}, w.rec.Generation+1, "forged", Stamp{Nonce: fmt.Sprint("forged", w.ver)})
		next.ClaimEnd = x.etcd.last()
		next.Fork = arbiter.Position{Index: next.ClaimEnd.Index + 1, Term: x.etcd.term + 1}
		w.put(w.ver, withHistory(w.rec, next))
	case "version":
		s.etcd.version = map[string]uint32{"3.6": v36, "3.7": v37}[arg(1)]
	case "blind":
		s.blind = arg(1) == "on"
	case "snapshot":
		c := s.etcd
		c.log = append([]entry(nil), c.log...)
		s.copied = &c
	case "restore":
		s.etcd = *s.copied
		s.etcd.log = append([]entry(nil), s.etcd.log...)
		s.etcd.leads = false
		s.etcd.start++
	case "store": // what the probe of the arbiter's store says
		s.trust = map[string]StoreState{"trusted": StoreTrusted, "untested": StoreUntested, "faulty": StoreFaulty}[arg(1)]
	case "segments": // the WAL has come to this one
		s.etcd.segment = uint64(num(1))
	case "purge": // what is committed leaves the log
		s.etcd.from = s.etcd.commit
	case "apply-late":
		for _, l := range w.late {
			fmt.Fprintf(&w.out, "applied: %v\n", w.put(l.prev, l.next))
		}
		w.late = nil
	case "dup":
		s.step(s.last)
		s.pump()
	case "prefer":
		if !w.canLead(s) || !w.canLead(s.other()) || !w.joined() {
			return fmt.Errorf("%s cannot take over", s.name)
		}
		for _, x := range w.sites {
			x.etcd.leads = false
		}
		w.elect(s)
	case "third":
		w.third = arg(0) == "up"
	case "show":
		w.show()
	default:
		return fmt.Errorf("no command %q", cmd)
	}
	w.settle()
	return nil
}

// kill ends the agent. What it had out is not carried out; its locks are gone, and etcd starts.
func (s *site) kill() {
	if !s.up {
		return
	}
	s.up, s.queue, s.added = false, nil, 0
	clear(s.held)
	clear(s.ready)
	if s.locked {
		s.locked, s.won = false, false
		s.startEtcd()
	}
}

func (w *world) leader() *site {
	for _, s := range w.sites {
		if s.etcd.leads {
			return s
		}
	}
	return nil
}

func (w *world) change(cmd string, as []string) error {
	id, err := strconv.ParseUint(as[0], 16, 64)
	if err != nil {
		return err
	}
	c := ConfChange{Kind: ChangeRemove, ID: id}
	if cmd == "add" {
		c = ConfChange{Kind: ChangeAdd, ID: id, PeerURLs: []string{"http://third"}}
	}
	at := w.leader()
	for i, a := range as[1:] {
		switch a {
		case "learner":
			c.Kind = ChangeAddLearner
		case "tail":
			at = w.site(as[i+2])
			at.etcd.log = append(at.etcd.log, entry{term: at.etcd.term, conf: c})
			return nil
		case "at":
			c.PeerURLs = w.site(as[i+2]).url()
		}
	}
	if at == nil || !at.propose(c) {
		return fmt.Errorf("refused")
	}
	return nil
}

func kind(name string) ActionKind {
	for _, k := range ActionKinds() {
		if k.String() == name {
			return k
		}
	}
	return NoAction
}

func (w *world) show() {
	named := "nobody"
	if id := w.rec.Survivor.ID; id != 0 {
		named = fmt.Sprintf("%x", id)
	}
	flags := ""
	if w.rec.WholeGeneration == w.rec.Generation && w.ver > 0 {
		flags += " whole"
	}
	if w.rec.Confirmed.Index > 0 {
		flags += " confirmed"
	}
	fmt.Fprintf(&w.out, "record: g%d names %s%s\n", w.rec.Generation, named, flags)
	for _, s := range w.sites {
		e := &s.etcd
		st := "no leader"
		ms, _ := e.conf(e.commit)
		switch {
		case e.dead:
			st = "removed"
		case s.locked:
			st = "locked"
		case !e.running:
			st = "down"
		case e.leads:
			st = "leads"
		case s.obs().Etcd == EtcdLed:
			st = "follows"
		}
		var l []string
		for _, m := range ms {
			n := fmt.Sprintf("%x", m.ID)
			if m.Learner {
				n += "(learner)"
			}
			l = append(l, n)
		}
		agent := s.s.Phase.String()
		if s.s.Why != None {
			agent += "/" + s.s.Why.String()
		}
		if !s.up {
			agent = "killed"
		}
		aside := ""
		if len(s.aside) > 0 {
			aside = fmt.Sprintf(", set aside %v", s.aside)
		}
		fmt.Fprintf(&w.out, "%s %x %s: etcd %s, members %s, token g%d%s\n", s.name, e.id, agent, st, strings.Join(l, " "), e.token(e.commit).Generation, aside)
	}
}
