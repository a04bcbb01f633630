package failover

import (
	"testing"

	"twok/arbiter"
)

// Rules: P2, P3, P7, P8, P10, P14, P15.
func TestClaimContent(t *testing.T) {
	created := Create("rec", clusterID, Stamp{"n1", 1})
	if want := (arbiter.Record{ID: "rec", ClusterID: clusterID, Generation: 1, Nonce: "n1", CreatedAt: 1, WrittenAt: 1}); created != want {
		t.Errorf("created %+v", created)
	}
	whole := NoteWhole(created, idB, idA, 90, Stamp{"n2", 2})
	if whole.WholeGeneration != 1 || whole.WholeMembers != [2]uint64{idA, idB} || whole.WholeAt != 2 ||
		whole.MarkGeneration != 1 || whole.MarkIndex != 90 || whole.Generation != 1 || whole.Nonce != "n2" || whole.ClaimNonce != "" {
		t.Errorf("whole %+v", whole)
	}
	down := Mark(whole, 80, Stamp{"n3", 3})
	if down.MarkIndex != 80 || down.WholeGeneration != 1 || down.Nonce != "n3" {
		t.Errorf("a mark goes down too: %+v", down)
	}
	down.Extra, down.Forced = `{"x":1}`, true
	d := baseData()
	claimed := Claim(down, d, "why", Stamp{"n4", 4})
	want := arbiter.Record{
		ID: "rec", ClusterID: clusterID, Generation: 2, Survivor: arbiter.Member{ID: idA, Name: "a"},
		Nonce: "n4", ClaimNonce: "n4", Reason: "why", CreatedAt: 1, ClaimedAt: 4, WrittenAt: 4,
		ClaimEnd: arbiter.Position{Index: 100, Term: 5}, Fork: arbiter.Position{Index: 101, Term: 6}, Extra: `{"x":1}`,
	}
	want.History[0] = arbiter.HistoryEntry{First: 2, Last: 2, Survivor: idA, Fork: want.Fork, At: 4}
	if claimed != want {
		t.Errorf("claimed\n got %+v\nwant %+v", claimed, want)
	}
	confirmed := Confirm(claimed, arbiter.Position{Index: 105, Term: 6}, Stamp{"n5", 5})
	if confirmed.Confirmed != (arbiter.Position{Index: 105, Term: 6}) || confirmed.ConfirmedAt != 5 || confirmed.ClaimNonce != "n4" || confirmed.Nonce != "n5" {
		t.Errorf("confirmed %+v", confirmed)
	}
	if again := Claim(confirmed, d, "why", Stamp{"n6", 6}); again.Confirmed != (arbiter.Position{}) || again.ConfirmedAt != 0 {
		t.Errorf("a claim keeps a confirmation: %+v", again)
	}
	if w := NoteWhole(confirmed, idA, idB, 120, Stamp{"n7", 7}); w.Confirmed != (arbiter.Position{}) || w.ConfirmedAt != 0 {
		t.Errorf("a whole note keeps the confirmation: %+v", w)
	}
}

// Rules: P13.
func TestHistory(t *testing.T) {
	d, e := baseData(), baseData()
	e.Member, e.Name = idB, "b"
	at := func(d Data, i uint64) Data {
		d.Last.Index = i
		return d
	}
	st := Stamp{"n", 9}
	r := Create("rec", clusterID, st)
	r = Claim(r, at(d, 100), "", st) // 2: A
	r = Claim(r, at(d, 200), "", st) // 3: A again, one run
	if h := r.History[0]; h.First != 2 || h.Last != 3 || h.Fork.Index != 101 || r.History[1].First != 0 {
		t.Fatalf("a run keeps its first fork: %+v", r.History[:2])
	}
	// A fork that is not known stays so: a later one would keep a log that the earlier claim overrode.
	unknown := r
	unknown.History[0].Fork = arbiter.Position{}
	if h := Claim(unknown, at(d, 250), "", st).History[0]; h.Last != 4 || h.Fork != (arbiter.Position{}) {
		t.Errorf("a fork that was not known: %+v", h)
	}
	r = NoteWhole(r, idA, idB, 250, st)
	r = Claim(r, at(d, 300), "", st) // 4: A, but the pair was whole in between
	if h := r.History[1]; h.First != 4 || h.Last != 4 || h.Fork.Index != 301 {
		t.Fatalf("a whole pair ends a run: %+v", r.History[:3])
	}
	r = Claim(r, at(e, 400), "", st) // 5: B
	if h := r.History[2]; h.First != 5 || h.Survivor != idB || h.Fork.Index != 401 {
		t.Fatalf("another survivor ends a run: %+v", r.History[:4])
	}
	for i := range 40 {
		who := d
		if i%2 == 1 {
			who = e
		}
		r = Claim(r, at(who, 500+uint64(i)), "", st)
	}
	first, last := r.History[0], r.History[arbiter.HistoryLen-1]
	if last.Last != r.Generation || first.First != r.Generation-arbiter.HistoryLen+1 {
		t.Errorf("the last sixteen claims stay, oldest first: %d to %d at generation %d", first.First, last.Last, r.Generation)
	}
}

// Rules: P16, P17.
func TestReassert(t *testing.T) {
	rec := namedRecord()
	rec.Survivor.ID = idB
	rec.History[0] = arbiter.HistoryEntry{First: 4, Last: 4, Survivor: idB, Fork: arbiter.Position{Index: 50, Term: 3}}
	own := Own{RecordID: "rec", Generation: 6, End: arbiter.Position{Index: 100, Term: 5}, Fork: arbiter.Position{Index: 101, Term: 6}}
	for _, c := range []struct{ seen, own, want uint64 }{{6, 6, 7}, {9, 6, 10}, {4, 6, 7}, {0, 0, 5}} {
		own.Generation = c.own
		got := Reassert(rec, own, c.seen, arbiter.Member{ID: idA}, Stamp{"n", 1})
		if got.Generation != c.want || got.Survivor.ID != idA || got.ClaimNonce != "n" || got.ClaimEnd != own.End || got.Fork != own.Fork {
			t.Errorf("seen %d, own %d: %+v", c.seen, c.own, got)
		}
		if h := got.History[1]; h.First != 5 || h.Last != c.want || h.Survivor != idA || h.Fork != own.Fork {
			t.Errorf("history %+v", got.History[:3])
		}
	}
	// Attempts are remembered for one record, the newest four.
	o := Own{}
	for _, n := range []string{"1", "2", "3", "4", "5"} {
		o = o.attempt("rec", 4, n)
	}
	for n, want := range map[string]bool{"": false, "1": false, "2": true, "5": true} {
		if o.made(n) != want {
			t.Errorf("made(%q) = %v", n, !want)
		}
	}
	if o = o.attempt("other", 1, "6"); o.made("5") || !o.made("6") {
		t.Errorf("attempts at another record count: %+v", o)
	}
}
