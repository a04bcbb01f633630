package failover

import "testing"

// A return is over when the survivor's list shows a voter. That the own etcd shows no leader for a moment
// after it is no loss, and does not lengthen the next hold-down.
//
// Rules: P12; F35.
func TestHoldDownCountsLosses(t *testing.T) {
	s := representative(Promoting)
	s.Removed, s.Site = false, LookAtList
	l := joinable()
	l.Self, l.Voters = ListedVoter, Voters{Count: 2, IDs: [2]uint64{idA, idB}}
	s, _ = Step(s, Event{Kind: Listed, Outcome: Done, List: l})
	tick := func(o Obs) { s, _ = Step(s, Event{Kind: Tick, Obs: o}) }
	tick(obsOf(EtcdNoLeader))
	if s.Phase != Lost || s.HoldLevel != 0 {
		t.Fatalf("after the promotion: %s, level %d; want lost, 0", s.Phase, s.HoldLevel)
	}
	led := obsOf(EtcdLed)
	led.Leader = idB
	led.Token.Members = [2]uint64{0x9, idB} // this member was called 9 when it was lost
	tick(led)
	if s.Phase != Following {
		t.Fatalf("with a leader: %s", s.Phase)
	}
	s.Rec.Generation, s.Seen = 5, 5 // the survivor claims again
	tick(obsOf(EtcdNoLeader))
	if s.Phase != Lost || s.HoldLevel != 1 {
		t.Errorf("after a loss within the window: %s, level %d; want lost, 1", s.Phase, s.HoldLevel)
	}
}
