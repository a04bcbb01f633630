package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/arbiter"
	"twok/arbiter/httpcas"
	"twok/internal/bind"
	"twok/internal/failover"
	"twok/internal/lab"
	"twok/internal/member"
)

// initBench is a pair of real etcds without agents, and a store.
type initBench struct {
	*testing.T
	*lab.Cluster
	store string
}

func newInitBench(t *testing.T) *initBench {
	t.Helper()
	bin, err := lab.Etcd(t.Context(), "3.7", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	c, err := lab.NewCluster(lab.Config{Dir: t.TempDir(), Etcd: bin, Mode: lab.Plain, Timing: lab.Fast, EtcdFlags: []string{"--strict-reconfig-check=false"}})
	if err != nil {
		t.Fatal(err)
	}
	srv, err := httpcas.NewServer(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	hs := httptest.NewServer(srv)
	t.Cleanup(func() {
		hs.Close()
		for _, err := range []error{c.Close(), srv.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	b := &initBench{t, c, hs.URL + "/"}
	b.must(c.Start(b.within()))
	b.must(c.WaitServing(b.within()))
	return b
}

func (b *initBench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *initBench) within() context.Context {
	ctx, cancel := context.WithTimeout(b.Context(), 2*time.Minute)
	b.Cleanup(cancel)
	return ctx
}

func (b *initBench) client(site string) *clientv3.Client {
	b.Helper()
	c, err := b.Site(site).Client()
	b.must(err)
	b.Cleanup(func() { c.Close() })
	return c
}

// read is what the store holds under a key, and the record in it if it is one.
func (b *initBench) read(key string) (string, arbiter.Record) {
	b.Helper()
	r, err := httpcas.New(httpcas.Config{URL: b.store + key})
	b.must(err)
	value, v, err := r.Read(b.within())
	b.must(err)
	if !v.Exists() {
		return "absent", arbiter.Record{}
	}
	rec, err := arbiter.Decode(value)
	if err != nil {
		rec = arbiter.Record{}
	}
	return string(value), rec
}

func (b *initBench) write(key, value string) {
	b.Helper()
	r, err := httpcas.New(httpcas.Config{URL: b.store + key})
	b.must(err)
	_, v, err := r.Read(b.within())
	b.must(err)
	b.must(r.CompareAndSwap(b.within(), v, []byte(value)))
}

// token is the pair token as that member has applied it; empty: none.
func (b *initBench) token(site string) string {
	b.Helper()
	get, err := b.client(site).Get(b.within(), member.TokenKey, clientv3.WithSerializable())
	b.must(err)
	if len(get.Kvs) == 0 {
		return ""
	}
	return string(get.Kvs[0].Value)
}

// bind binds to a key through a site's member.
func (b *initBench) bind(key, site string, more ...string) {
	b.Helper()
	args := append([]string{"arbiter", "init", "--arbiter", b.store + key, "--client-url", b.Site(site).ClientURL}, more...)
	if out, errs, code := twok(b.T, args...); code != 0 || errs != "" || !strings.Contains(out, "is bound to the record") {
		b.Fatalf("%v: exit %d, %s%s", args, code, out, errs)
	}
}

// refuses insists on a code and on words, with a hint, and that neither the store's key nor the token changed.
func (b *initBench) refuses(what string, code int, words, key, site string, more ...string) {
	b.Helper()
	args := append([]string{"arbiter", "init", "--timeout", "8s", "--arbiter", b.store + key, "--client-url", b.Site(site).ClientURL}, more...)
	before, _ := b.read(key)
	token := b.token(site)
	out, errs, got := twok(b.T, args...)
	if got != code || out != "" || !strings.Contains(errs, words) || !strings.Contains(errs, "\nhint: ") {
		b.Errorf("%s: exit %d, want %d and %q\n%s%s", what, got, code, words, out, errs)
	}
	if after, _ := b.read(key); after != before {
		b.Errorf("%s: the store held %q, holds %q", what, before, after)
	}
	if now := b.token(site); now != token {
		b.Errorf("%s: the token was %q, is %q", what, token, now)
	}
}

// On real etcd: init needs a live member, two voters, both answering, and a leader with a quorum. Each other
// state is refused and leaves store and token as they were.
//
// Rules: P3, P11, P14; F33.
func TestInitNeedsAPair(t *testing.T) {
	b := newInitBench(t)
	const nobody = "http://127.0.0.1:1"
	if _, errs, code := twok(t, "arbiter", "init", "--arbiter", b.store+"pair", "--client-url", nobody); code != exitNoLeader || !strings.Contains(errs, "\nhint: ") {
		t.Errorf("nobody at the client URL: exit %d: %s", code, errs)
	}
	leader, err := b.Leader(b.within())
	b.must(err)
	c := b.client(leader)
	learner, err := c.MemberAddAsLearner(b.within(), []string{nobody})
	b.must(err)
	b.refuses("a learner", exitNotAPair, "3 members, 1 of them learners", "pair", "a")
	_, err = c.MemberRemove(b.within(), learner.Member.ID)
	b.must(err)
	third, err := c.MemberAdd(b.within(), []string{"http://127.0.0.1:2"}) // within the same second the same URL gives the removed ID
	b.must(err)
	b.refuses("a third voter", exitNotAPair, "3 members, 0 of them learners", "pair", "a")
	_, err = c.MemberRemove(b.within(), third.Member.ID)
	b.must(err)

	b.CutLink()
	for {
		st, err := b.Site(leader).Status(b.within())
		b.must(err)
		if st.Leader == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	b.refuses("no quorum", exitNoLeader, "it knows of no leader", "pair", leader)
	b.HealLink()
	b.must(b.WaitServing(b.within()))

	b.must(b.Site("b").Kill())
	b.refuses("the other member is down", exitNoLeader, "no leader", "pair", "a")
	// It is back, but does not answer where its client port is said to be.
	b.Site("b").EtcdFlags("--advertise-client-urls", nobody)
	b.must(b.Site("b").Start())
	b.must(b.WaitServing(b.within()))
	_, err = b.Leader(b.within())
	b.must(err)
	for {
		list, err := b.client("a").MemberList(b.within())
		b.must(err)
		there := false
		for _, m := range list.Members {
			there = there || len(m.ClientURLs) == 1 && m.ClientURLs[0] == nobody
		}
		if there {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if leader, err = b.Leader(b.within()); err != nil {
		t.Fatal(err)
	}
	if leader == "b" { // the leader itself must be reached at its URL
		b.refuses("the leader does not answer at its client URL", exitNoLeader, "no leader that can be reached", "pair", "a")
		_, err := b.client("b").MoveLeader(b.within(), memberID(b, "a"))
		b.must(err)
	}
	b.refuses("the follower does not answer at its client URL", exitNotAPair, "local list", "pair", "a")
	b.must(b.Site("b").Kill())
	b.Site("b").EtcdFlags()
	b.must(b.Site("b").Start())
	b.must(b.WaitServing(b.within()))
	for { // its URL is published anew
		_, errs, code := twok(t, "arbiter", "init", "--arbiter", b.store+"pair", "--client-url", b.Site("a").ClientURL)
		if code == 0 {
			break
		}
		if code != exitNotAPair && code != exitNoLeader {
			t.Fatalf("exit %d: %s", code, errs)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if _, rec := b.read("pair"); rec.Generation != 1 || b.token("a") == "" {
		t.Errorf("%+v", rec)
	}
}

func memberID(b *initBench, site string) uint64 {
	b.Helper()
	st, err := b.Site(site).Status(b.within())
	b.must(err)
	return st.Header.MemberId
}

// On real etcd: what the store and the old record may hold. Everything that somebody else may need stays.
//
// Rules: P3, P11; F11, F38.
func TestInitAndTheStore(t *testing.T) {
	b := newInitBench(t)
	for class, code := range map[string]int{"403": exitForbidden, "503": exitUnavailable, "302": exitMisconfigured} {
		hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			var status int
			fmt.Sscan(class, &status)
			w.WriteHeader(status)
		}))
		b.refuses("a store that answers "+class, code, "arbiter", "one", "a", "--arbiter", hs.URL+"/one")
		hs.Close()
	}
	for _, args := range [][]string{{"more"}, {"--old-arbiter", b.store + "one"}, {"--arbiter", "ftp://h/x"}} {
		if _, _, code := twok(t, append([]string{"arbiter", "init", "--arbiter", b.store + "one"}, args...)...); code != exitUsage {
			t.Errorf("%q: exit %d", args, code)
		}
	}
	b.bind("one", "a")
	value, rec := b.read("one")
	b.bind("one", "b") // already
	if again, _ := b.read("one"); again != value {
		t.Error("bound twice, and the record changed")
	}
	b.refuses("bound elsewhere", exitBound, rec.ID, "two", "a")

	encode := func(f func(*arbiter.Record)) string {
		r := rec
		f(&r)
		v, err := arbiter.Encode(r)
		b.must(err)
		return string(v)
	}
	low := failover.Create(arbiter.NewID(), rec.ClusterID, failover.Stamp{Nonce: "n", Now: 1})
	lowValue, err := arbiter.Encode(low)
	b.must(err)
	for key, value := range map[string]string{
		"foreign": encode(func(r *arbiter.Record) { r.ClusterID++ }),
		"used": encode(func(r *arbiter.Record) {
			r.ID, r.Generation, r.WholeGeneration, r.WholeMembers, r.WholeAt = arbiter.NewID(), 9, 9, [2]uint64{1, 2}, 1
		}),
		"low": string(lowValue), "space": " \n", "garbage": "{", "else": `{"a": 1}`,
		"future": fmt.Sprintf(`{"format":"twok-record","version":%d}`, arbiter.FormatVersion+1),
	} {
		b.write(key, value)
		b.refuses("a register that holds "+key, exitTaken, "the register holds another record", key, "a", "--rebind")
		if key == "low" || key == "used" {
			continue // as an old record these are good
		}
		code := map[string]int{"foreign": exitTaken, "space": exitEmpty, "garbage": exitGarbage, "else": exitForeign, "future": exitFuture}[key]
		b.refuses("an old record that is "+key, code, "the old record", "three", "a", "--rebind", "--old-arbiter", b.store+key)
	}
	b.refuses("an old record that cannot be read", exitUnavailable, "the old record", "three", "a", "--rebind", "--old-arbiter", "http://127.0.0.1:1/x")
	b.bind("three", "b", "--rebind", "--old-arbiter", b.store+"used")
	if _, third := b.read("three"); third.Generation != 10 {
		t.Errorf("%+v", third)
	}
	if after, _ := b.read("one"); after != value {
		t.Error("the record that was left has changed")
	}
}

// On real etcd, a member that leads alone: only a survivor may be bound, with nobody beside it.
//
// Rules: P3, P11; F33.
func TestInitOfALoneMember(t *testing.T) {
	b := newInitBench(t)
	lone, err := b.Leader(b.within())
	b.must(err)
	b.bind("pair", lone)
	c := b.client(lone)
	_, err = c.MemberRemove(b.within(), memberID(b, lab.Other(lone)))
	b.must(err)
	b.must(b.Site(lab.Other(lone)).Stop())
	old := []string{"--rebind", "--old-arbiter", b.store + "pair"}
	b.refuses("one that the old record does not name", exitTaken, "it does not name the member that leads alone", "alone", lone, old...)
	learner, err := c.MemberAddAsLearner(b.within(), []string{"http://127.0.0.1:1"})
	b.must(err)
	b.refuses("one with a learner", exitNotAPair, "2 members, 1 of them learners", "alone", lone, old...)
	_, err = c.MemberRemove(b.within(), learner.Member.ID)
	b.must(err)
	get, err := c.Get(b.within(), member.TokenKey)
	b.must(err)
	tok := bind.Applied(get.Kvs[0].Value, 0)
	tok.Members = [2]uint64{1, 2}
	value, err := member.EncodeToken(tok, arbiter.NewNonce())
	b.must(err)
	_, err = c.Put(b.within(), member.TokenKey, string(value))
	b.must(err)
	b.refuses("one that the token does not name", exitNotAPair, "no token that names it", "alone", lone, "--rebind")
	_, err = c.Delete(b.within(), member.TokenKey)
	b.must(err)
	b.refuses("one without a token", exitNotAPair, "no token that names it", "alone", lone, "--rebind")
}
