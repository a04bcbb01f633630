package failover

import (
	"slices"
	"testing"

	"twok/arbiter"
)

// What keeps a loser from being added at the survivor, one clause a row; and
// under the locks of the return, what ends it.
//
// Rules: P10, P12, P13, P17; F16, F33, F36.
func TestUnjoinable(t *testing.T) {
	cases := []struct {
		name string
		edit func(s *State, l *List)
		want Reason
	}{
		{"base", func(*State, *List) {}, None},
		{"record never read", func(s *State, _ *List) { s.RecKnown, s.RecStatus = false, Unavailable }, RecordUnavailable},
		{"record unreadable by now", func(s *State, _ *List) { s.RecStatus = Unavailable }, None},
		{"list of another cluster", func(_ *State, l *List) { l.Cluster++ }, RecordForeign},
		{"own data of another cluster", func(s *State, _ *List) { s.Obs.Cluster++ }, RecordForeign},
		{"record older than one seen", func(s *State, _ *List) { s.Seen = 5 }, RecordOld},
		{"paused", func(s *State, _ *List) { s.Rec.Pause = true }, Paused},
		{"drained", func(s *State, _ *List) { s.Rec.Drain = true }, Drained},
		{"record names nobody", func(s *State, _ *List) { s.Rec.Survivor.ID = 0 }, RemovedByHand},
		{"record names this member", func(s *State, _ *List) { s.Rec.Survivor.ID = idA }, RemovedByHand},
		{"whole at this generation, token not known", func(s *State, _ *List) {
			s.TokKnown, s.Rec.WholeGeneration, s.Rec.WholeMembers = false, 4, [2]uint64{idA, idB}
		}, RemovedByHand},
		{"whole at this generation with another member", func(s *State, _ *List) {
			s.TokKnown, s.Rec.WholeGeneration, s.Rec.WholeMembers = false, 4, [2]uint64{idB, idC}
		}, None},
		{"own token of this generation, no note", func(s *State, _ *List) { s.Tok.Generation = 4 }, RemovedByHand},
		{"two voters without this one", func(_ *State, l *List) { l.Voters = Voters{Count: 2, IDs: [2]uint64{idB, idC}} }, ThirdVoter},
		{"another survivor than the record's", func(_ *State, l *List) { l.Voters.IDs[0] = idC }, NamedOther},
		{"not confirmed", func(s *State, _ *List) { s.Rec.Confirmed.Index = 0 }, NotConfirmed},
		{"own version unknown", func(s *State, _ *List) { s.Obs.Version = 0 }, VersionUnknown},
		{"own version lower", func(_ *State, l *List) { l.Version = v37 }, VersionTooOld},
		{"own version higher", func(s *State, _ *List) { s.Obs.Version = v37 }, None},
		{"a stranger", func(_ *State, l *List) { l.Stranger = idC }, ForeignLearner},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, p := range []Phase{Lost, Fenced} {
				s := representative(p)
				l := joinable()
				c.edit(&s, &l)
				s.Site = LookAtList
				next, acts := Step(s, Event{Kind: Listed, Outcome: Done, List: l})
				want := c.want
				if want == NamedOther && p == Fenced {
					want = Overridden // it waits for the one that the record names
				}
				added := slices.ContainsFunc(acts, func(a Action) bool { return a.Kind == AddLearner })
				if added != (want == None) || (want != None && (next.Why != want || next.Phase != p)) {
					t.Errorf("%s: %s/%s, added %v, want %q", p, next.Phase, next.Why, added, want)
				}
				if next.Held != s.Held {
					t.Errorf("%s: held changed", p)
				}
			}
		})
	}
}

// When the leader's agent writes the token, and when it does not.
//
// Rules: P3, P14; F33.
func TestTokenWritten(t *testing.T) {
	cases := []struct {
		name string
		edit func(s *State)
		want bool
	}{
		{"whole", func(*State) {}, false},
		{"missing", func(s *State) { s.Obs.Token = Token{} }, true},
		{"bad", func(s *State) { s.Obs.Token.Bad = true }, true},
		{"older", func(s *State) { s.Obs.Token.Generation = 2 }, true},
		{"misnamed", func(s *State) { s.Obs.Token.Members[1] = idC }, true},
		{"written in a doubtful term", func(s *State) { s.TokStale = true }, true},
		{"of another record", func(s *State) { s.Obs.Token.RecordID = "other" }, false},
		{"newer than the record", func(s *State) { s.Obs.Token.Generation = 4 }, false},
		{"missing, drained", func(s *State) { s.Obs.Token, s.Rec.Drain = Token{}, true }, false},
		{"older, drained", func(s *State) { s.Obs.Token.Generation, s.Rec.Drain = 2, true }, false},
		{"missing, paused", func(s *State) { s.Obs.Token, s.Rec.Pause = Token{}, true }, false},
		{"missing, a learner attached", func(s *State) { s.Obs.Token, s.Obs.Voters.Learners = Token{}, 1 }, false},
		{"missing, a third voter", func(s *State) { s.Obs.Token, s.Obs.Voters.Count = Token{}, 3 }, false},
		{"missing, alone", func(s *State) { s.Obs.Token, s.Obs.Voters = Token{}, Voters{Count: 1, IDs: [2]uint64{idA}} }, false},
		{"missing, the other leads", func(s *State) { s.Obs.Token, s.Obs.Leader = Token{}, idB }, false},
		{"missing, not read now", func(s *State) { s.Obs.Token, s.Obs.TokenRead, s.Tok, s.TokKnown = Token{}, false, Token{}, true }, false},
		{"missing, unsafe etcd", func(s *State) { s.Obs.Token, s.Obs.Unsafe = Token{}, true }, false},
		{"missing, record of another cluster", func(s *State) { s.Obs.Token, s.Rec.ClusterID = Token{}, 8 }, false},
		{"missing, record rolled back", func(s *State) { s.Obs.Token, s.Seen = Token{}, 4 }, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := representative(Leading)
			s.Tidied = s.Rec.Generation
			c.edit(&s)
			// A tick asks for the record, its answer lets the token be written.
			rec := s.Rec
			s, acts := Step(s, Event{Kind: Tick, Obs: s.Obs})
			wrote := false
			for range 3 {
				if slices.ContainsFunc(acts, func(a Action) bool {
					return a.Kind == WriteToken && a.Generation == rec.Generation && a.RecordID == rec.ID
				}) {
					wrote = true
				}
				if s.Arb != ReadRecord {
					break
				}
				s, acts = Step(s, Event{Kind: RecordRead, Outcome: Done, Status: Readable, Record: rec, Version: s.RecVer, Seen: s.Seen})
			}
			if wrote != c.want {
				t.Errorf("written %v, want %v (%s)", wrote, c.want, s.Why)
			}
		})
	}
}

// What the plausibility check says before etcd is stopped, one clause a row (P7).
//
// Rules: P3, P7, P11, P17; F11, F36, F38.
func TestStopForClaim(t *testing.T) {
	cases := []struct {
		name string
		edit func(s *State)
		want Reason
	}{
		{"base", func(*State) {}, None},
		{"no leader for too short a time", func(s *State) { s.NoLeader = 5 }, NoLeader},
		{"etcd away", func(s *State) { s.Obs.Etcd = EtcdAway }, EtcdDown},
		{"unsafe flags", func(s *State) { s.Obs.Unsafe = true }, EtcdUnsafe},
		{"the store failed its probe", func(s *State) { s.Obs.Store = StoreFaulty }, StoreUntrusted},
		{"the store was not tried yet", func(s *State) { s.Obs.Store = StoreUntested }, StoreNotTried},
		{"record unavailable", func(s *State) { s.RecStatus = Unavailable }, RecordUnavailable},
		{"record forbidden", func(s *State) { s.RecStatus = Forbidden }, RecordForbidden},
		{"record misconfigured", func(s *State) { s.RecStatus = Misconfigured }, RecordMisconfigured},
		{"record absent", func(s *State) { s.RecStatus = Absent }, RecordAbsent},
		{"record absent, no token", func(s *State) { s.RecStatus, s.Obs.Token = Absent, Token{} }, RecordMissing},
		{"record empty", func(s *State) { s.RecStatus = Empty }, RecordEmpty},
		{"record garbage", func(s *State) { s.RecStatus = Garbage }, RecordGarbage},
		{"record foreign", func(s *State) { s.RecStatus = Foreign }, RecordForeign},
		{"record of the future", func(s *State) { s.RecStatus = Future }, RecordFuture},
		{"record of another cluster", func(s *State) { s.Rec.ClusterID++ }, RecordForeign},
		{"record older than one seen", func(s *State) { s.Seen = 4 }, RecordOld},
		{"paused", func(s *State) { s.Rec.Pause = true }, Paused},
		{"bound elsewhere", func(s *State) { s.Obs.Token.RecordID = "other" }, RecordElsewhere},
		{"no token", func(s *State) { s.Obs.Token = Token{} }, TokenMissing},
		{"older token", func(s *State) { s.Obs.Token.Generation = 2 }, TokenGeneration},
		{"preflight failed", func(s *State) { s.Preflight, s.PreWait = DiskFull, 5 }, DiskFull},
		{"no preflight yet", func(s *State) { s.Preflight = RecordUnread }, NoLeader},
		{"stopped a short while ago", func(s *State) { s.StopWait = 5 }, RateLimited},
		{"stopped a short while ago, refused", func(s *State) { s.StopWait, s.Refused = 5, TokenTail }, TokenTail},
		{"this start and record were tried", func(s *State) { s.StopVer, s.StopStart = s.RecVer, s.Obs.Start }, RateLimited},
		{"this start was tried with another record", func(s *State) { s.StopVer, s.StopStart = arbiter.At("0"), s.Obs.Start }, None},
		{"this record was tried with another start", func(s *State) { s.StopVer, s.StopStart = s.RecVer, 9 }, None},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := representative(Leaderless)
			s.NoLeader = 20
			c.edit(&s)
			next, acts := Step(s, Event{Kind: Tick, Obs: s.Obs})
			stopped := slices.ContainsFunc(acts, func(a Action) bool { return a.Kind == Stop })
			if stopped != (c.want == None) || stopped != (next.Phase == Stopping) || next.Why != c.want {
				t.Errorf("%s/%s, stopped %v, want %q", next.Phase, next.Why, stopped, c.want)
			}
		})
	}
}
