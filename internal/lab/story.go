package lab

import (
	"fmt"
	"slices"
	"time"
)

// EventKind is a step of the story that a person follows.
type EventKind string

// The steps. Those of one failover and return come about in this order, as far
// as one depends on another; see docs/design/protocol.md for the rules behind them.
const (
	EventStart      EventKind = "start"       // the pair was started
	EventCut        EventKind = "cut"         // the cut was made
	EventNoLeader   EventKind = "no-leader"   // a member lost its leader
	EventClaim      EventKind = "claim"       // an agent goes for a claim (P7)
	EventStop       EventKind = "stop"        // its etcd is stopped, the locks are held
	EventNamed      EventKind = "named"       // its swap won: the record names it (P1, P2)
	EventAppend     EventKind = "append"      // its WAL has the new term (P8)
	EventGaveUp     EventKind = "gave-up"     // it did not claim, etcd runs again
	EventLead       EventKind = "lead"        // it leads alone
	EventFirstWrite EventKind = "first-write" // the first write after the cut was acknowledged
	EventHeal       EventKind = "heal"        // the cut was undone
	EventWake       EventKind = "wake"        // an agent restarted its etcd because the peer is back
	EventFenced     EventKind = "fenced"      // etcd is kept down (P10, P16)
	EventLost       EventKind = "lost"        // the other one knows that it is the loser
	EventLearner    EventKind = "learner"     // the survivor added it as a learner (P12)
	EventRewritten  EventKind = "rewritten"   // its WAL carries the new ID (P13)
	EventCaughtUp   EventKind = "caught-up"   // the learner has what the survivor had
	EventHash       EventKind = "hash"        // the key-space hashes are equal
	EventPromoted   EventKind = "promoted"    // it is a voter again
	EventToken      EventKind = "token"       // the pair token was written (P14)
	EventWhole      EventKind = "whole"       // both agents armed, the record says whole
	EventAudit      EventKind = "audit"       // the audit is done
	EventDone       EventKind = "done"        // everything is as it must be
	EventFailed     EventKind = "failed"      // what should have happened did not
)

// Event is one step: when, at which site (empty: none in particular), and words.
type Event struct {
	At         time.Time
	Kind       EventKind
	Site       string
	Text       string
	Generation uint64
}

// Story derives events from the agents' traces and what the demo itself knows.
// It is for one goroutine at a time.
type Story struct {
	led      map[string]bool // sites whose lead was told since the last cut
	lost     map[string]bool // sites whose loss was told since the last cut
	appended string          // the last site that appended and has not led yet
	voter    map[string]bool // sites that were on their way back; false: they still are
	keep     map[string]bool // whether the last rewrite kept the log
	survivor string
	token    time.Time            // when the last token was written
	asked    map[string]time.Time // when the site's promotion was last asked for
	back     map[string]time.Time // when its agent last noticed that it is a voter again
}

// NewStory is a story without events.
func NewStory() *Story {
	return &Story{led: map[string]bool{}, lost: map[string]bool{}, voter: map[string]bool{}, keep: map[string]bool{}, asked: map[string]time.Time{}, back: map[string]time.Time{}}
}

// Cut begins a new failover: its survivor is not known.
func (s *Story) Cut() {
	s.led, s.lost, s.appended, s.survivor = map[string]bool{}, map[string]bool{}, "", ""
}

// Survivor is the site whose swap won since the last Cut, empty if none did.
func (s *Story) Survivor() string { return s.survivor }

// Trace is what one decision of site's agent adds to the story.
func (s *Story) Trace(site string, l TraceLine) []Event {
	var out []Event
	add := func(k EventKind, format string, args ...any) {
		out = append(out, Event{At: l.T.Time, Kind: k, Site: site, Text: fmt.Sprintf(format, args...), Generation: l.Generation})
	}
	if slices.Contains(l.Actions, "restart") {
		add(EventWake, "the peer answers and there is still no leader: etcd is restarted")
	}
	if l.Event == "token-written" && l.Outcome == "done" {
		// The token proves the promotion, whether or not that agent has noticed yet (P14).
		if other := Other(site); s.returning(other) {
			s.voter[other] = true
			out = append(out, promoted(other, l))
		}
		s.token = l.T.Time
		add(EventToken, "the pair token is of generation %d", l.Generation)
		if other := Other(site); s.asked[other].Before(s.token) && s.back[other].After(s.token) {
			out[len(out)-1].At = s.back[other] // told already, by the clock of an agent that noticed later
		}
	}
	if l.Keep != nil {
		s.keep[site] = *l.Keep
	}
	if l.From == l.To {
		return out
	}
	way := func(p string) bool { return p == "catching-up" || p == "promoting" }
	switch {
	case l.To == "leaderless" && slices.Contains([]string{"following", "leading", "alone"}, l.From):
		add(EventNoLeader, "no leader any more")
	case l.To == "stopping":
		add(EventClaim, "claim-after is over, the claim begins: etcd is being stopped")
	case l.From == "stopping" && l.To == "deciding":
		add(EventStop, "etcd is stopped, its files are locked")
	case l.From == "claiming" && l.To == "appending":
		s.appended, s.survivor = "", site
		add(EventNamed, "the swap won: the record names %s", site)
		out[len(out)-1].Generation = 0 // the line has the one before
	case l.From == "appending" && l.To == "rechecking":
		s.appended = site
		add(EventAppend, "the WAL has the other member's removal in a new term")
	case l.To == "releasing" && slices.Contains([]string{"stopping", "deciding", "claiming", "appending"}, l.From): // not etcd's first start on an empty directory
		add(EventGaveUp, "no append, etcd starts again: %s", l.Reason)
	case l.To == "alone":
		out = append(out, s.lead(site, l.T.Time, l.Generation)...)
	case l.To == "fenced":
		add(EventFenced, "etcd stays down: %s", l.Reason)
	case l.To == "lost" && !s.lost[site] && slices.Contains([]string{"starting", "following", "leading", "alone", "leaderless", "releasing"}, l.From):
		s.lost[site] = true
		if l.Generation == 0 { // the survivor's list said so before the record was read
			add(EventLost, "is the loser")
		} else {
			add(EventLost, "is the loser of generation %d", l.Generation)
		}
	case l.From == "joining" && l.To == "preparing":
		add(EventLearner, "the survivor added a learner for this site")
	case l.From == "preparing" && l.To == "catching-up":
		if s.keep[site] {
			add(EventRewritten, "the log is kept, the WAL carries the new member ID; etcd starts")
		} else {
			add(EventRewritten, "the data are set aside, an empty log carries the new member ID; etcd starts")
		}
	case l.From == "catching-up" && l.To == "promoting":
		add(EventCaughtUp, "has everything the survivor had")
		add(EventHash, "the key spaces have equal hashes")
	}
	if way(l.To) {
		s.voter[site] = false
	}
	if l.To == "promoting" {
		s.asked[site] = l.T.Time
	}
	if way(l.From) && !way(l.To) && s.returning(site) && slices.Contains([]string{"leaderless", "following", "leading"}, l.To) {
		s.voter[site] = true
		p := promoted(site, l)
		if s.token.After(s.asked[site]) && s.token.Before(p.At) {
			p.At = s.token.Add(-1) // the token was told already
		}
		s.back[site] = p.At
		out = append(out, p)
	}
	return out
}

// returning says whether site is a learner whose promotion was not told yet.
func (s *Story) returning(site string) bool {
	voter, known := s.voter[site]
	return known && !voter
}

func promoted(site string, l TraceLine) Event {
	return Event{At: l.T.Time, Kind: EventPromoted, Site: site, Text: "is a voter again", Generation: l.Generation}
}

func (s *Story) lead(site string, at time.Time, generation uint64) []Event {
	if s.led[site] {
		return nil
	}
	s.led[site], s.appended = true, ""
	return []Event{{At: at, Kind: EventLead, Site: site, Text: "leads alone", Generation: generation}}
}

// FirstWrite is the first acknowledged write after the cut. It proves that the
// site that appended leads, whether or not its agent has noticed yet.
func (s *Story) FirstWrite(at time.Time, text string) []Event {
	var out []Event
	if s.appended != "" {
		out = s.lead(s.appended, at, 0)
	}
	return append(out, Event{At: at, Kind: EventFirstWrite, Text: text})
}
