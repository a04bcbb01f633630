package failover

import (
	"testing"

	"twok/arbiter"
)

// A voter whose peer URLs were changed while it was a learner may not claim, by neither ground: another member may do
// without its vote. Any other change of URLs is in nobody's way, nor is what happened to others.
//
// Rules: P4, P5, P11.
func TestVoteUnsure(t *testing.T) {
	update := func(id uint64) ConfChange {
		return ConfChange{Kind: ChangeUpdate, ID: id, PeerURLs: []string{url(id)}}
	}
	add := func(id uint64) ConfChange { return ConfChange{Kind: ChangeAdd, ID: id} }
	learner := func(id uint64) ConfChange { return ConfChange{Kind: ChangeAddLearner, ID: id} }
	promote := func(id uint64) ConfChange { return ConfChange{Kind: ChangePromote, ID: id} }
	for _, c := range []struct {
		name    string
		changes []ConfChange
		want    bool
	}{
		{"nothing", nil, false},
		{"promoted, never updated", []ConfChange{learner(idA), promote(idA)}, false},
		{"updated before the promotion", []ConfChange{learner(idA), update(idA), promote(idA)}, true},
		{"the same, and again after it", []ConfChange{learner(idA), update(idA), promote(idA), update(idA)}, true},
		{"updated, and a voter without a promotion: before 3.6.12", []ConfChange{learner(idA), update(idA)}, true},
		{"updated after the promotion", []ConfChange{learner(idA), promote(idA), update(idA)}, false},
		{"its addition left the log", []ConfChange{update(idA), promote(idA)}, true},
		{"only its promotion is left", []ConfChange{promote(idA), update(idA), promote(idA)}, false},
		{"an addition as a voter that left the log", []ConfChange{update(idA)}, false},
		{"a voter's", []ConfChange{add(idA), update(idA), promote(idA)}, false},
		{"a learner that was refused, and the voter of that ID", []ConfChange{learner(idA), add(idA), update(idA)}, false},
		{"an addition as a learner that etcd rejected", []ConfChange{add(idA), learner(idA), update(idA)}, false},
		{"another one's update", []ConfChange{learner(idA), update(idB), promote(idA)}, false},
		{"its own between those of another one", []ConfChange{learner(idB), learner(idA), update(idA)}, true},
		{"a promotion whose addition left the log, and no update", []ConfChange{promote(idA)}, false},
		{"an update that etcd rejected, before it was there", []ConfChange{update(idA), learner(idA), promote(idA)}, false},
		{"another one", []ConfChange{learner(idB), update(idB), promote(idB), learner(idA), promote(idA)}, false},
	} {
		got := UnsureVote(idA, placed(30, 4, c.changes...))
		if got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
	for _, r := range []arbiter.Record{baseRecord(), namedRecord()} {
		d := baseData()
		if _, why := Eligible(r, d, 0); why != None {
			t.Errorf("the base: %v", why)
		}
		d.Unsure = true
		if g, why := Eligible(r, d, 0); g != NoGround || why != VoteUnsure {
			t.Errorf("unsure: %v, %v", g, why)
		}
	}
}
