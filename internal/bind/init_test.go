package bind

import (
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"twok/arbiter"
	"twok/arbiter/httpcas"
	"twok/internal/etcdapi"
	"twok/internal/failover"
	"twok/internal/lab"
	"twok/internal/member"
)

const patience = time.Minute

type bench struct {
	*testing.T
	*lab.Cluster
	url string // of the store
	d   etcdapi.Dialer
}

// start is a pair without agents, and a store.
func start(t *testing.T) *bench {
	t.Helper()
	bin, err := lab.Etcd(t.Context(), "3.6", os.Stderr)
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
	b := &bench{T: t, Cluster: c, url: hs.URL}
	b.must(c.Start(b.within()))
	return b
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) within() context.Context {
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	b.Cleanup(cancel)
	return ctx
}

func (b *bench) register(key string) *httpcas.Register {
	r, err := httpcas.New(httpcas.Config{URL: b.url + "/" + key})
	b.must(err)
	return r
}

func (b *bench) record(key string) arbiter.Record {
	b.Helper()
	v, _, err := b.register(key).Read(b.within())
	b.must(err)
	rec, err := arbiter.Decode(v)
	b.must(err)
	return rec
}

func (b *bench) store(key string, rec arbiter.Record) {
	b.Helper()
	v, err := arbiter.Encode(rec)
	b.must(err)
	_, at, err := b.register(key).Read(b.within())
	b.must(err)
	b.must(b.register(key).CompareAndSwap(b.within(), at, v))
}

func (b *bench) token() failover.Token { return b.tokenAt("a") }

func (b *bench) tokenAt(site string) failover.Token {
	b.Helper()
	c, err := b.Site(site).Client()
	b.must(err)
	defer c.Close()
	get, err := c.Get(b.within(), member.TokenKey)
	b.must(err)
	if len(get.Kvs) == 0 {
		return failover.Token{}
	}
	return Applied(get.Kvs[0].Value, get.Kvs[0].Lease)
}

func (b *bench) options(key string) Options {
	return Options{Dialer: &b.d, Register: b.register(key), ClientURLs: []string{b.Site("b").ClientURL, b.Site("a").ClientURL}}
}

// A new pair, again, elsewhere without being asked to, elsewhere.
//
// Rules: P1, P3, P14.
func TestInitPair(t *testing.T) {
	b := start(t)
	res, err := Init(b.within(), b.options("one"))
	b.must(err)
	rec, tok := b.record("one"), b.token()
	if !res.Created || !res.Token || res.Before != "" || res.Alone || res.Generation != 1 || rec.ID != res.RecordID || rec.Generation != 1 || rec.Survivor.ID != 0 {
		t.Fatalf("%+v %+v", res, rec)
	}
	if !tok.Present || tok.RecordID != rec.ID || tok.Generation != 1 || tok.Cluster != rec.ClusterID {
		t.Fatalf("%+v", tok)
	}
	again, err := Init(b.within(), b.options("one"))
	if err != nil || again.Created || again.Token || again.RecordID != rec.ID || b.token() != tok || b.record("one") != rec {
		t.Fatalf("again: %+v %v", again, err)
	}
	if _, err := Init(b.within(), b.options("two")); !errors.Is(err, ErrBound) {
		t.Fatalf("elsewhere: %v", err)
	}
	if _, v, err := b.register("two").Read(b.within()); err != nil || v.Exists() {
		t.Fatalf("a refusal left a record: %v %v", v, err)
	}
	// The old record has moved on: the new generation lies above both.
	rec.Generation, rec.Nonce = 7, "later"
	rec.History[0] = arbiter.HistoryEntry{First: 2, Last: 7, Survivor: 5, Fork: arbiter.Position{Index: 3, Term: 2}}
	rec.Survivor, rec.ClaimNonce = arbiter.Member{ID: 5}, "n"
	b.store("one", rec)
	o := b.options("two")
	o.Rebind, o.Old = true, b.register("one")
	res, err = Init(b.within(), o)
	b.must(err)
	if got := b.record("two"); !res.Created || res.Before != rec.ID || res.Generation != 8 || got.Generation != 8 || got.ID == rec.ID || got.Survivor.ID != 0 {
		t.Fatalf("%+v %+v", res, got)
	}
	if got := b.token(); got.RecordID != res.RecordID || got.Generation != 8 {
		t.Fatalf("%+v", got)
	}
	// Interrupted between record and token: it goes on with that record.
	left := failover.Create(arbiter.NewID(), rec.ClusterID, failover.Stamp{Nonce: "n", Now: 1})
	left.Generation = 12
	b.store("three", left)
	o = b.options("three")
	o.Rebind = true
	res, err = Init(b.within(), o)
	if err != nil || res.Created || !res.Token || res.RecordID != left.ID || b.token().Generation != 12 {
		t.Fatalf("%+v %v", res, err)
	}
}

// What Init refuses, and leaves as it is.
//
// Rules: P3, P11; F33, F38.
func TestInitRefuses(t *testing.T) {
	b := start(t)
	res, err := Init(b.within(), b.options("bound"))
	b.must(err)
	rec := b.record("bound")
	foreign := rec
	foreign.ClusterID++
	used := rec
	used.ID, used.Generation = arbiter.NewID(), 9
	used.WholeGeneration, used.WholeMembers, used.WholeAt = 9, [2]uint64{1, 2}, 1
	low := failover.Create(arbiter.NewID(), rec.ClusterID, failover.Stamp{Nonce: "n", Now: 1})
	b.store("foreign", foreign)
	b.store("used", used)
	b.store("low", low)
	b.must(b.register("garbage").CompareAndSwap(b.within(), arbiter.Absent, []byte("{")))
	for _, key := range []string{"foreign", "used", "low", "garbage"} {
		before, _, err := b.register(key).Read(b.within())
		b.must(err)
		o := b.options(key)
		o.Rebind = true
		if _, err := Init(b.within(), o); !errors.Is(err, ErrTaken) {
			t.Errorf("%s: %v", key, err)
		}
		if after, _, err := b.register(key).Read(b.within()); err != nil || string(after) != string(before) {
			t.Errorf("%s was changed: %v", key, err)
		}
	}
	o := b.options("new")
	o.Rebind, o.Old = true, b.register("garbage")
	if _, err := Init(b.within(), o); err == nil {
		t.Error("an old record that cannot be read is passed over")
	}
	if got := b.token(); got.RecordID != res.RecordID {
		t.Errorf("the token was changed: %+v", got)
	}

	c, err := b.Site("a").Client()
	b.must(err)
	defer c.Close()
	third, err := c.MemberAddAsLearner(b.within(), []string{"http://127.0.0.1:1"})
	b.must(err)
	if _, err := Init(b.within(), b.options("bound")); !errors.Is(err, ErrNotAPair) {
		t.Errorf("with a learner: %v", err)
	}
	_, err = c.MemberRemove(b.within(), third.Member.ID)
	b.must(err)

	b.must(b.Site("b").Stop())
	ctx, cancel := context.WithTimeout(b.Context(), 15*time.Second)
	defer cancel()
	if _, err := Init(ctx, b.options("bound")); !errors.Is(err, ErrNoLeader) {
		t.Errorf("one member is down: %v", err)
	}
}

// A lone member whose data hold no token, or one that does not name it, is not bound: it was no survivor.
//
// Rules: P3; F33.
func TestInitAlone(t *testing.T) {
	b := start(t)
	// The leader removes the other one: a leader that removes itself leaves nobody who knows that it is done.
	lone, err := b.Leader(b.within())
	b.must(err)
	c, err := b.Site(lone).Client()
	b.must(err)
	defer c.Close()
	list, err := c.MemberList(b.within())
	b.must(err)
	res, err := Init(b.within(), b.options("pair"))
	b.must(err)
	old := b.tokenAt(lone)
	for _, m := range list.Members {
		if m.Name != lone {
			_, err = c.MemberRemove(b.within(), m.ID)
			b.must(err)
		}
	}
	b.must(b.Site(lab.Other(lone)).Stop())
	o := b.options("alone")
	o.ClientURLs = []string{b.Site(lone).ClientURL}
	o.Old = b.register("pair")
	o.Rebind = true
	if _, err := Init(b.within(), o); !errors.Is(err, ErrTaken) {
		t.Errorf("the old record names nobody: %v", err)
	}
	o.Old = nil
	res2, err := Init(b.within(), o)
	b.must(err)
	rec, tok := b.record("alone"), b.tokenAt(lone)
	if !res2.Alone || res2.Generation != 3 || rec.Survivor.ID != tok.Members[0]+tok.Members[1]-tok.Other(rec.Survivor.ID) || rec.Survivor.Name != lone || rec.ClaimEnd.Index == 0 {
		t.Errorf("%+v %+v", res2, rec)
	}
	if tok.Generation != 2 || tok.RecordID != rec.ID || tok.RecordID == res.RecordID || tok.Members != old.Members {
		t.Errorf("%+v", tok)
	}
	if again, err := Init(b.within(), o); err != nil || again.Created || again.Token {
		t.Errorf("again: %+v %v", again, err)
	}
	_, err = c.Delete(b.within(), member.TokenKey)
	b.must(err)
	o.Register = b.register("untold")
	if _, err := Init(b.within(), o); !errors.Is(err, ErrNotAPair) {
		t.Errorf("without a token: %v", err)
	}
}
