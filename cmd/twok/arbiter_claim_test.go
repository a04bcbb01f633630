package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"twok/arbiter"
	"twok/arbiter/arbitertest"
	"twok/arbiter/httpcas"
	"twok/internal/failover"
	"twok/internal/force"
	"twok/walsurgery"
)

const (
	claimA, claimB = uint64(0xaaaaaaaaaaaaaaaa), uint64(0xbbbbbbbbbbbbbbbb)
	claimCluster   = uint64(7)
)

var update = flag.Bool("update", false, "write testdata/claim.golden")

var claimTime = time.UnixMilli(1_767_322_900_000)

// claimable is a record that names a, which confirmed up to index 90; written so long ago.
func claimable(ago time.Duration, now time.Time) arbiter.Record {
	at := now.Add(-ago).UnixMilli()
	r := arbiter.Record{
		ID: "5f0cafe", Nonce: "n", ClaimNonce: "c", ClusterID: claimCluster, Generation: 4, Survivor: arbiter.Member{ID: claimA, Name: "a"},
		Reason: "no leader", ClaimEnd: arbiter.Position{Index: 50, Term: 3}, Fork: arbiter.Position{Index: 51, Term: 4},
		Confirmed: arbiter.Position{Index: 90, Term: 4}, ConfirmedAt: at, CreatedAt: at, ClaimedAt: at, WrittenAt: at,
	}
	r.History[0] = arbiter.HistoryEntry{First: 4, Last: 4, Survivor: claimA, Fork: r.Fork, At: at}
	return r
}

// claimStore is an embedded arbiter with this record, and a client of it.
func claimStore(t *testing.T, r arbiter.Record) (url string, reg arbiter.Register) {
	t.Helper()
	srv, err := httpcas.NewServer(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	hs := httptest.NewServer(srv)
	t.Cleanup(hs.Close)
	if reg, err = httpcas.New(httpcas.Config{URL: hs.URL + "/pair"}); err != nil {
		t.Fatal(err)
	}
	b, err := arbiter.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := reg.CompareAndSwap(t.Context(), arbiter.Absent, b); err != nil {
		t.Fatal(err)
	}
	return hs.URL + "/pair", reg
}

// claimDir is a data directory whose WAL is b's, and whose agent remembers its name.
func claimDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "member"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := walsurgery.CreateEmpty(nil, filepath.Join(dir, "member", "wal"), walsurgery.Metadata{MemberID: claimB, ClusterID: claimCluster}); err != nil {
		t.Fatal(err)
	}
	memory := `{"site":{"name":"b","member_id":13527612320720337851}}`
	if err := os.WriteFile(filepath.Join(dir, "twok-memory.json"), []byte(memory), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// claiming runs the command with this input.
func claiming(t *testing.T, in string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	a := app()
	a.Reader, a.Writer, a.ErrWriter = strings.NewReader(in), &out, &errs
	code = report(&errs, a.RunContext(t.Context(), append([]string{"twok", "arbiter", "claim"}, args...)))
	return out.String(), errs.String(), code
}

func current(t *testing.T, reg arbiter.Register) (arbiter.Record, arbiter.Version) {
	t.Helper()
	b, v, err := reg.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := arbiter.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	return r, v
}

// What is refused before anything is written, with which code, and what one can do.
//
// Rules: P11, P18.
func TestClaimRefusals(t *testing.T) {
	foreign := claimable(time.Hour, time.Now())
	foreign.ClusterID = 8
	paused := claimable(time.Hour, time.Now())
	paused.Pause = true
	dir := claimDir(t)
	base := []string{"--accept-data-loss", "--member", "b", "--data-dir", dir, "--wait", "0"}
	for _, c := range []struct {
		name string
		rec  arbiter.Record
		args []string
		code int
		says []string
	}{
		{"without the words", claimable(time.Hour, time.Now()), []string{"--member", "b"}, exitUsage, []string{"--accept-data-loss is required", "hint: nothing else is needed while a survivor lives"}},
		{"an argument", claimable(time.Hour, time.Now()), append(base, "b"), exitUsage, []string{`no argument, got "b"`}},
		{"JSON that would ask", claimable(time.Hour, time.Now()), append(base, "--json"), exitUsage, []string{"it goes with --yes"}},
		{"an unknown member", claimable(time.Hour, time.Now()), []string{"--accept-data-loss", "--member", "b", "--yes"}, exitMember, []string{"no member that can be seen is called \"b\"", "hint: give the name or the ID"}},
		{"another cluster's", foreign, append(base, "--yes"), exitMember, []string{"is of cluster 0000000000000007", "hint: "}},
		{"no directory", claimable(time.Hour, time.Now()), []string{"--accept-data-loss", "--member", "b", "--data-dir", dir + "/none", "--yes"}, exitMember, []string{"hint: give etcd's data directory"}},
		{"paused", paused, append(base, "--yes"), exitMember, []string{"the record is paused", "hint: " + failover.Paused.Remedy()}},
		{"written just now", claimable(time.Second, time.Now()), append(base, "--yes"), exitAlive, []string{"the other side may be alive: the record was written", "hint: wait:", "--override-live-survivor"}},
	} {
		url, reg := claimStore(t, c.rec)
		_, before := current(t, reg)
		_, stderr, code := claiming(t, "", append([]string{"--arbiter", url}, c.args...)...)
		if code != c.code {
			t.Errorf("%s: exit %d, want %d: %s", c.name, code, c.code, stderr)
		}
		for _, s := range c.says {
			if !strings.Contains(stderr, s) {
				t.Errorf("%s: %q is not in\n%s", c.name, s, stderr)
			}
		}
		if _, v := current(t, reg); v != before {
			t.Errorf("%s: the record was written", c.name)
		}
	}
	if _, stderr, code := claiming(t, "", append(base, "--arbiter", "http://127.0.0.1:1/pair", "--yes")...); code != exitUnavailable || !strings.Contains(stderr, "hint: ") {
		t.Errorf("no arbiter: exit %d, %s", code, stderr)
	}
}

// The member's name has to be typed; or its ID, if it has no name that anybody knows.
//
// Rules: P18.
func TestClaimAsks(t *testing.T) {
	dir := claimDir(t)
	byName := []string{"--member", "b", "--data-dir", dir}
	byID := []string{"--member", "0xbbbbbbbbbbbbbbbb"}
	for _, c := range []struct {
		name string
		in   string
		args []string
		code int
		says string
	}{
		{"its name", "b\n", byName, 0, "Type b to let it go on"},
		{"without a line's end", "b", byName, 0, "Type b"},
		{"another name", "a\n", byName, exitDeclined, `not confirmed: "a" is not "b"; nothing was changed`},
		{"its beginning", "bb\n", byName, exitDeclined, "not confirmed"},
		{"yes", "yes\n", byName, exitDeclined, "not confirmed"},
		{"an empty line", "\nb\n", byName, exitDeclined, "not confirmed"},
		{"nobody is there", "", byName, exitDeclined, "hint: type the name, or give --yes"},
		{"its ID", "bbbbbbbbbbbbbbbb\n", byID, 0, "Type bbbbbbbbbbbbbbbb"},
		{"its ID otherwise", "b\n", byID, exitDeclined, "not confirmed"},
	} {
		url, reg := claimStore(t, claimable(time.Hour, time.Now()))
		_, stderr, code := claiming(t, c.in, append([]string{"--arbiter", url, "--accept-data-loss", "--override-live-survivor", "--wait", "0"}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: exit %d: %s", c.name, code, stderr)
		}
		r, _ := current(t, reg)
		if ordered := failover.Ordered(r, claimB); ordered != (code == 0) {
			t.Errorf("%s: ordered %t", c.name, ordered)
		}
	}
}

// Without --override-live-survivor the record is watched before anybody is asked; what is written meanwhile ends it.
//
// Rules: P18, P20.
func TestClaimWatches(t *testing.T) {
	url, reg := claimStore(t, claimable(time.Hour, time.Now()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		time.Sleep(300 * time.Millisecond)
		r, v := current(t, reg)
		r.Nonce = "confirmed"
		b, err := arbiter.Encode(r)
		if err == nil {
			err = reg.CompareAndSwap(t.Context(), v, b)
		}
		if err != nil {
			t.Error(err)
		}
	}()
	_, stderr, code := claiming(t, "b\n", "--arbiter", url, "--accept-data-loss", "--member", "b", "--data-dir", claimDir(t))
	<-done
	if code != exitAlive || !strings.Contains(stderr, "watching the record for 3m0s") || !strings.Contains(stderr, "somebody wrote the record while it was watched") || strings.Contains(stderr, "Type b") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if r, _ := current(t, reg); r.Generation != 4 {
		t.Errorf("generation %d", r.Generation)
	}
}

// agentOf plays the named member's agent: it waits for the order, and makes of the record what step says.
func agentOf(t *testing.T, reg arbiter.Register, steps ...func(arbiter.Record) arbiter.Record) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			r, v := current(t, reg)
			if !failover.Ordered(r, claimB) {
				continue
			}
			for _, step := range steps {
				r = step(r)
			}
			b, err := arbiter.Encode(r)
			if err == nil {
				err = reg.CompareAndSwap(t.Context(), v, b)
			}
			if err != nil {
				t.Error(err)
			}
			return
		}
		t.Error("there was no order")
	}()
	return func() { <-done }
}

func claimOwn(r arbiter.Record) arbiter.Record {
	d := failover.Data{Member: claimB, Name: "b", Cluster: claimCluster, Term: 3, Last: arbiter.Position{Index: 60, Term: 3}}
	d.Confs.Self, d.Confs.Last = true, true
	d.Confs.Self = true
	return failover.ForcedClaim(r, d, 0, failover.Stamp{Nonce: "own", Now: time.Now().UnixMilli()})
}

func claimConfirm(r arbiter.Record) arbiter.Record {
	return failover.Confirm(r, arbiter.Position{Index: 63, Term: r.Fork.Term}, failover.Stamp{Nonce: "conf", Now: time.Now().UnixMilli()})
}

func claimVoid(r arbiter.Record) arbiter.Record {
	return failover.NoteWhole(r, claimA, claimB, 95, failover.Stamp{Nonce: "whole", Now: time.Now().UnixMilli()})
}

func claimBack(r arbiter.Record) arbiter.Record {
	return failover.Force(r, arbiter.Member{ID: claimA, Name: "a"}, "adam", "over b", failover.Stamp{Nonce: "back", Now: time.Now().UnixMilli()})
}

// The command waits for what becomes of its order, and says it.
//
// Rules: P16, P18.
func TestClaimWaits(t *testing.T) {
	dir := claimDir(t)
	for _, c := range []struct {
		name  string
		steps []func(arbiter.Record) arbiter.Record
		wait  string
		code  int
		says  string
	}{
		{"it leads", []func(arbiter.Record) arbiter.Record{claimOwn, claimConfirm}, "1m", 0, "bbbbbbbbbbbbbbbb leads, as generation 6; its own history begins at index 61, term 25769803776"},
		{"it claimed", []func(arbiter.Record) arbiter.Record{claimOwn}, "1s", exitPending, "not carried out yet: it claimed, and does not lead yet"},
		{"nothing happens", nil, "1s", exitPending, "the member's agent did not take it"},
		{"somebody overrides it", []func(arbiter.Record) arbiter.Record{claimBack}, "1m", exitConflict, "it is at generation 6 and names aaaaaaaaaaaaaaaa"},
		{"the pair is whole", []func(arbiter.Record) arbiter.Record{claimVoid}, "1m", exitConflict, "the order is void, nothing was given up"},
	} {
		url, reg := claimStore(t, claimable(time.Hour, time.Now()))
		args := []string{"--arbiter", url, "--accept-data-loss", "--member", "b", "--data-dir", dir, "--yes", "--override-live-survivor", "--wait", c.wait, "--json"}
		wait := func() {}
		if c.steps != nil {
			wait = agentOf(t, reg, c.steps...)
		}
		stdout, stderr, code := claiming(t, "", args...)
		wait()
		if code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: exit %d: %s", c.name, code, stderr)
		}
		var out claimJSON
		if err := json.Unmarshal([]byte(stdout), &out); err != nil || !out.Ordered || out.Already || out.Generation != 5 || out.Member != "bbbbbbbbbbbbbbbb" || out.Name != "b" ||
			out.Over != "aaaaaaaaaaaaaaaa" || out.OverName != "a" || out.Reference != 90 || out.End != 0 || out.GivenUp != nil || out.By == "" || out.Leads != (code == 0) {
			t.Errorf("%s: %v\n%s", c.name, err, stdout)
		}
		if c.steps == nil { // again: it is ordered already, and nothing is asked or written
			_, before := current(t, reg)
			stdout, stderr, code = claiming(t, "", "--arbiter", url, "--accept-data-loss", "--member", "b", "--data-dir", dir, "--wait", "0")
			if _, v := current(t, reg); code != 0 || v != before || !strings.Contains(stdout, "not carried out yet") || strings.Contains(stderr, "Type") {
				t.Errorf("%s: again: exit %d\n%s%s", c.name, code, stdout, stderr)
			}
		}
	}
}

// The outcome of a lost swap is named as what it is.
//
// Rules: P1, P18.
func TestClaimOutcomes(t *testing.T) {
	dir := claimDir(t)
	for _, c := range []struct {
		name    string
		fault   arbitertest.Fault
		code    int
		ordered bool
		says    string
	}{
		{"the reply is lost", arbitertest.LoseReply, 0, true, "ordered as generation 5"},
		{"the request is lost", arbitertest.CutBefore, exitUnknown, false, "running this command again is safe"},
	} {
		url, reg := claimStore(t, claimable(time.Hour, time.Now()))
		host, path, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
		proxy, err := arbitertest.NewProxy(host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(proxy.Close)
		proxy.Inject(arbitertest.Swap, c.fault, 1)
		_, stderr, code := claiming(t, "", "--arbiter", "http://"+proxy.Addr()+"/"+path, "--accept-data-loss", "--member", "b", "--data-dir", dir, "--yes", "--override-live-survivor", "--wait", "0")
		r, _ := current(t, reg)
		if code != c.code || failover.Ordered(r, claimB) != c.ordered || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: exit %d, %+v: %s", c.name, code, r, stderr)
		}
	}
	for _, c := range []struct {
		err  error
		code int
		says string
	}{
		{force.ErrAlive, exitAlive, "hint: wait"}, {force.ErrMember, exitMember, "/health shows member_id"}, {force.ErrPaused, exitMember, "paused"},
		{force.ErrChanged, exitConflict, "nothing was written"}, {force.ErrUnknown, exitUnknown, "the order may be in the record"},
		{arbiter.ErrForbidden, exitForbidden, "hint: "}, {errors.Join(force.ErrUnknown, context.DeadlineExceeded), exitUnknown, "again is safe"},
	} {
		var errs bytes.Buffer
		if code := report(&errs, claimError(c.err)); code != c.code || !strings.Contains(errs.String(), c.says) {
			t.Errorf("%v: exit %d: %s", c.err, code, errs.String())
		}
	}
}

// What a person reads before anything is given up.
//
// Rules: P18.
func TestClaimShows(t *testing.T) {
	var out bytes.Buffer
	section := func(name string, rec arbiter.Record, sights []force.Sight, local force.Local, want string) {
		t.Helper()
		cs, err := force.Consider(rec, arbiter.At("v"), sights, local, want)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out.WriteString("# " + name + "\n")
		if err := showClaim(&out, cs, claimTime); err != nil {
			t.Fatal(err)
		}
		out.WriteString("\n")
	}
	lone := claimable(4*time.Minute, claimTime)
	local := force.Local{Dir: "/var/lib/etcd", Member: claimB, Cluster: claimCluster, Name: "b", Last: arbiter.Position{Index: 60, Term: 3}}
	at := func(id uint64, name string, commit uint64) force.Sight {
		return force.Sight{URL: "http://" + name + ":2379", Member: id, Name: name, Cluster: claimCluster, Commit: commit, Term: 3}
	}
	away := force.Sight{URL: "http://a:2379", Err: errors.New("dial tcp: connection refused")}
	section("the survivor is dead, the named one's log is here", lone, []force.Sight{away}, local, "b")
	section("nothing can be seen", lone, nil, force.Local{}, "bbbbbbbbbbbbbbbb")
	section("it has all that was confirmed", lone, []force.Sight{at(claimB, "b", 95), at(claimA, "a", 99)}, force.Local{}, "b")
	whole := lone
	whole.WholeGeneration, whole.WholeMembers, whole.WholeAt = 4, [2]uint64{claimA, claimB}, lone.WrittenAt
	whole.Confirmed, whole.ConfirmedAt, whole.MarkGeneration, whole.MarkIndex = arbiter.Position{}, 0, 4, 70
	section("a whole pair, one rolled back", whole, nil, local, "b")
	fresh := lone
	fresh.Survivor, fresh.Confirmed, fresh.ConfirmedAt, fresh.Reason, fresh.History = arbiter.Member{}, arbiter.Position{}, 0, "", [arbiter.HistoryLen]arbiter.HistoryEntry{}
	section("nobody ever claimed", fresh, nil, local, "b")
	section("the survivor itself, rolled back", lone, nil, force.Local{Dir: "/var/lib/etcd", Member: claimA, Cluster: claimCluster, Name: "a", Last: arbiter.Position{Index: 80, Term: 4}}, "a")
	hostile := lone
	hostile.Survivor.Name, hostile.Reason = "a\x1b[2J", "x\ny"
	section("a record that plays with the terminal", hostile, nil, local, "b")
	ordered := failover.Force(lone, arbiter.Member{ID: claimB, Name: "b"}, "eve@host", "forced by eve@host over a", failover.Stamp{Nonce: "o", Now: claimTime.Add(-time.Minute).UnixMilli()})
	section("ordered already", ordered, nil, local, "b")

	golden := filepath.Join("testdata", "claim.golden")
	if *update {
		if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), want) {
		t.Errorf("the command shows (-update writes %s)\n%s", golden, out.String())
	}
}
