package force

import (
	"errors"
	"strings"
	"testing"
	"time"

	"twok/arbiter"
	"twok/internal/etcdapi"
)

const (
	idA, idB, idOld = uint64(0xa), uint64(0xb0b0b0b0b0b0b0b0), uint64(0xb1b1b1b1b1b1b1b1)
	cluster         = uint64(7)
)

var theTime = time.UnixMilli(1_800_000_000_000)

// lone is a record of generation 4 that names A, confirmed up to index 90 five minutes ago.
func lone() arbiter.Record {
	at := theTime.Add(-5 * time.Minute).UnixMilli()
	r := arbiter.Record{
		ID: "rec", Nonce: "n", ClaimNonce: "c", ClusterID: cluster, Generation: 4, Survivor: arbiter.Member{ID: idA, Name: "a"}, Reason: "no leader",
		ClaimEnd: arbiter.Position{Index: 50, Term: 3}, Fork: arbiter.Position{Index: 51, Term: 4},
		Confirmed: arbiter.Position{Index: 90, Term: 4}, ConfirmedAt: at, CreatedAt: at, ClaimedAt: at, WrittenAt: at,
	}
	r.History[0] = arbiter.HistoryEntry{First: 4, Last: 4, Survivor: idA, Fork: r.Fork, At: at}
	return r
}

func members(list ...etcdapi.Member) []etcdapi.Member { return list }

func sight(id uint64, name string, list ...etcdapi.Member) Sight {
	return Sight{URL: "http://" + name, Member: id, Name: name, Cluster: cluster, Term: 4, Commit: 40, Members: list}
}

// Whom a name or an ID means: what a member says of itself first, then what is said of it; never a guess.
//
// Rules: P18; F17.
func TestConsiderFinds(t *testing.T) {
	a, b, old := etcdapi.Member{ID: idA, Name: "a"}, etcdapi.Member{ID: idB, Name: "b"}, etcdapi.Member{ID: idOld, Name: "b"}
	whole := lone()
	whole.WholeGeneration, whole.WholeMembers = 4, [2]uint64{idA, idB}
	hexName := etcdapi.Member{ID: 0xc, Name: "a"} // "a" is A's ID in hexadecimal too
	for _, c := range []struct {
		name   string
		rec    arbiter.Record
		sights []Sight
		local  Local
		want   string
		id     uint64
		called string
		unseen bool
		says   string // of ErrMember
	}{
		{"itself, by name", lone(), []Sight{sight(idB, "b", a, b)}, Local{}, "b", idB, "b", false, ""},
		{"itself, by ID", lone(), []Sight{sight(idB, "b", a, b)}, Local{}, "b0b0b0b0b0b0b0b0", idB, "b", false, ""},
		{"with 0x", lone(), []Sight{sight(idB, "b", a, b)}, Local{}, "0xb0b0b0b0b0b0b0b0", idB, "b", false, ""},
		{"a short ID that is known", lone(), nil, Local{}, "0xa", idA, "a", false, ""},
		{"by the other's list", lone(), []Sight{sight(idA, "a", a, b)}, Local{}, "b", idB, "b", false, ""},
		{"by its directory", lone(), nil, Local{Dir: "d", Member: idB, Cluster: cluster, Name: "b"}, "b", idB, "b", false, ""},
		{"the record's survivor", lone(), nil, Local{}, "a", idA, "a", false, ""},
		{"a voter of the whole note", whole, nil, Local{}, "b0b0b0b0b0b0b0b0", idB, "", false, ""},
		{"an old list does not matter beside itself", lone(), []Sight{sight(idA, "a", a, old), sight(idB, "b", a, b)}, Local{}, "b", idB, "b", false, ""},
		{"two lists, two IDs", lone(), []Sight{sight(idA, "a", a, old), {URL: "x", Cluster: cluster, Member: 0xd, Name: "d", Members: members(b)}}, Local{}, "b", 0, "", false, `"b" names the members b0b0b0b0b0b0b0b0, b1b1b1b1b1b1b1b1`},
		{"two with the same name", lone(), []Sight{sight(idOld, "b"), sight(idB, "b")}, Local{}, "b", 0, "", false, "names the members"},
		{"a name goes before an ID", lone(), []Sight{sight(0xc, "a", hexName)}, Local{}, "a", 0xc, "a", false, ""},
		{"a name that begins another", lone(), []Sight{sight(idB, "b10", etcdapi.Member{ID: idB, Name: "b10"})}, Local{}, "b1", 0, "", false, "needs all 16 digits"},
		{"an ID that nobody knows", lone(), nil, Local{}, "b0b0b0b0b0b0b0b0", idB, "", true, ""},
		{"an ID that nobody knows, with 0x", lone(), nil, Local{}, "0xb0b0b0b0b0b0b0b0", idB, "", true, ""},
		{"a name that could be an ID", lone(), nil, Local{}, "bee", 0, "", false, "needs all 16 digits"},
		{"a name that nobody knows", lone(), nil, Local{}, "west", 0, "", false, `is called "west"`},
		{"nothing", lone(), []Sight{{URL: "x", Err: errors.New("away")}}, Local{}, "", 0, "", false, `is called ""`},
		{"zero", lone(), nil, Local{}, "0000000000000000", 0, "", false, "is called"},
		{"a member of another cluster", lone(), []Sight{{URL: "http://b", Member: idB, Name: "b", Cluster: 8}}, Local{}, "b", 0, "", false, "http://b is of cluster 0000000000000008"},
		{"a directory of another cluster", lone(), nil, Local{Dir: "d", Member: idB, Cluster: 8, Name: "b"}, "b", 0, "", false, "d is of cluster 0000000000000008"},
	} {
		got, err := Consider(c.rec, arbiter.At("v"), c.sights, c.local, c.want)
		if c.says != "" {
			if !errors.Is(err, ErrMember) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil || got.Member.ID != c.id || got.Member.Name != c.called || got.Unseen != c.unseen || got.Version != arbiter.At("v") {
			t.Errorf("%s: %+v, unseen %t, %v", c.name, got.Member, got.Unseen, err)
		}
	}
}

// A learner is refused by its own word, or by a list's if it does not answer and no other list calls it a voter.
//
// Rules: P18.
func TestConsiderLearner(t *testing.T) {
	voter, learner := etcdapi.Member{ID: idB, Name: "b"}, etcdapi.Member{ID: idB, Name: "b", Learner: true}
	itself := func(is bool) Sight { s := sight(idB, ""); s.Learner = is; return s }
	for _, c := range []struct {
		name   string
		sights []Sight
		says   string
	}{
		{"by its own word", []Sight{itself(true)}, "says http://"},
		{"by the survivor's list", []Sight{sight(idA, "a", learner)}, "says http://a"},
		{"by one list, a voter by another", []Sight{sight(idA, "a", learner), sight(0xd, "d", voter)}, ""},
		{"by an old list, not by its own word", []Sight{sight(idA, "a", learner), itself(false)}, ""},
		{"nobody says so", []Sight{sight(idA, "a", voter)}, ""},
	} {
		_, err := Consider(lone(), arbiter.At("v"), c.sights, Local{}, arbiter.FormatID(idB))
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.says != "" && (!errors.Is(err, ErrMember) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "is a learner")):
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// How far the named member's log is known to go, and what is given up at least.
//
// Rules: P10, P15, P18.
func TestConsiderEnds(t *testing.T) {
	name := arbiter.FormatID(idB)
	far := sight(idB, "b")
	far.Commit = 95
	marked := lone()
	marked.Confirmed, marked.ConfirmedAt = arbiter.Position{}, 0
	marked.MarkGeneration, marked.MarkIndex, marked.WholeGeneration = 4, 70, 4
	none := lone()
	none.Confirmed, none.ConfirmedAt = arbiter.Position{}, 0
	none.MarkGeneration, none.MarkIndex = 3, 70 // of another generation
	local := func(i uint64) Local {
		return Local{Dir: "d", Member: idB, Cluster: cluster, Name: "b", Last: arbiter.Position{Index: i, Term: 3}}
	}
	for _, c := range []struct {
		name    string
		rec     arbiter.Record
		sights  []Sight
		local   Local
		end     uint64
		endIs   string
		ref     uint64
		givenUp uint64
		known   bool
	}{
		{"nothing is seen", lone(), nil, Local{}, 0, "", 90, 0, false},
		{"by its commit index", lone(), []Sight{sight(idB, "b")}, Local{}, 40, "the commit index that http://b knows", 90, 50, true},
		{"by its log", lone(), []Sight{sight(idB, "b")}, local(60), 60, "the end of the log in d", 90, 30, true},
		{"the log is no further", lone(), []Sight{sight(idB, "b")}, local(40), 40, "the end of the log in d", 90, 50, true},
		{"the log was read before", lone(), []Sight{far}, local(60), 95, "the commit index that http://b knows", 90, 0, true},
		{"another member's log", lone(), nil, Local{Dir: "d", Member: idA, Cluster: cluster, Last: arbiter.Position{Index: 99}}, 0, "", 90, 0, false},
		{"beside the mark", marked, nil, local(60), 60, "the end of the log in d", 70, 10, true},
		{"nothing was confirmed", none, nil, local(60), 60, "the end of the log in d", 0, 0, false},
	} {
		got, err := Consider(c.rec, arbiter.At("v"), c.sights, c.local, name)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		ref, at, what := got.Reference()
		n, known := got.GivenUp()
		if got.End.Index != c.end || got.EndIs != c.endIs || ref != c.ref || n != c.givenUp || known != c.known {
			t.Errorf("%s: end %d, %q; reference %d; given up %d %t", c.name, got.End.Index, got.EndIs, ref, n, known)
		}
		if ref != 0 && (at == 0 || what == "") || ref == 0 && (at != 0 || what != "") {
			t.Errorf("%s: reference %d at %d, %q", c.name, ref, at, what)
		}
	}
	paused := lone()
	paused.Pause = true
	if _, err := Consider(paused, arbiter.At("v"), nil, Local{}, name); !errors.Is(err, ErrPaused) {
		t.Errorf("a paused record: %v", err)
	}
}

// What speaks for a living survivor.
//
// Rules: P18, P20.
func TestAlive(t *testing.T) {
	led := sight(idB, "b")
	led.Leader = idA
	away := Sight{URL: "http://a", Err: errors.New("refused")}
	for _, c := range []struct {
		name    string
		sights  []Sight
		written time.Duration // ago
		says    []string
	}{
		{"nothing", []Sight{sight(idB, "b"), away}, 5 * time.Minute, nil},
		{"exactly three minutes", nil, QuietFor, nil},
		{"the other one answers", []Sight{sight(idA, "a")}, 5 * time.Minute, []string{"a (000000000000000a) answers at http://a"}},
		{"it has a leader", []Sight{led}, 5 * time.Minute, []string{"b (b0b0b0b0b0b0b0b0) has a leader, 000000000000000a"}},
		{"written just now", nil, QuietFor - time.Second, []string{"the record was written 2m59s ago"}},
		{"written by a clock ahead", nil, -time.Hour, []string{"by a clock ahead of this one"}},
		{"all at once", []Sight{sight(idA, "a"), led}, time.Second, []string{"answers at", "has a leader", "1s ago"}},
	} {
		r := lone()
		r.WrittenAt = theTime.Add(-c.written).UnixMilli()
		cs, err := Consider(r, arbiter.At("v"), c.sights, Local{}, arbiter.FormatID(idB))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		err = cs.Alive(theTime)
		if errors.Is(err, ErrAlive) != (len(c.says) > 0) {
			t.Errorf("%s: %v", c.name, err)
		}
		for _, s := range c.says {
			if err != nil && !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %v does not say %q", c.name, err, s)
			}
		}
	}
}
