package bind

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/internal/failover"
	"twok/internal/lab"
	"twok/internal/member"
)

// callTime is more than a token takes, and how long a member that shows nothing is asked.
const callTime = 10 * time.Second

// The token is written through the member that leads alone, once each of the two shows the pair at its own client port, and over
// the value that was read: each of these, left out, and a member that lacks acknowledged writes may claim. Nothing was written then.
//
// Rules: P14.
func TestWriteToken(t *testing.T) {
	b := start(t)
	b.must(b.WaitServing(b.within()))
	leader, err := b.Leader(b.within())
	b.must(err)
	other := lab.Other(leader)
	write := func(site string, may func(failover.Token) error) (failover.Token, bool, error) {
		c, err := b.d.Once(b.Site(site).ClientURL)
		b.must(err)
		defer c.Close()
		ctx, cancel := context.WithTimeout(b.within(), callTime)
		defer cancel()
		return WriteToken(ctx, &b.d, c, "record", 2, may)
	}
	any := func(failover.Token) error { return nil }
	untouched := func(what string, sent bool, err error, want failover.Token) {
		t.Helper()
		if err == nil || sent {
			t.Errorf("%s: sent %t, %v", what, sent, err)
		}
		if got := b.token(); got != want {
			t.Errorf("%s: the token is %+v, was %+v", what, got, want)
		}
	}

	_, sent, err := write(other, any)
	untouched("by the member that does not lead", sent, err, failover.Token{})

	refused := errors.New("refused")
	_, sent, err = write(leader, func(failover.Token) error { return refused })
	if !errors.Is(err, refused) {
		t.Errorf("what the caller says of the token that is there: %v", err)
	}
	untouched("although the caller refuses", sent, err, failover.Token{})

	_, sent, err = write(leader, func(failover.Token) error { // between the look and the transaction
		c, err := b.Site(other).Client()
		b.must(err)
		defer c.Close()
		_, err = c.Put(b.within(), member.TokenKey, "somebody's")
		b.must(err)
		return nil
	})
	untouched("over a value that came meanwhile", sent, err, Applied([]byte("somebody's"), 0))

	tok, sent, err := write(leader, any)
	if err != nil || !sent || !tok.Present || tok.Generation != 2 || tok.EntryTerm != tok.Term {
		t.Errorf("%+v, %t, %v", tok, sent, err)
	}
	if got := b.token(); !got.Present || got.Generation != 2 || got.Members != tok.Members {
		t.Errorf("the token is %+v", got)
	}

	// A member whose own list nobody can read has not shown the pair, whatever the leader's says.
	was := b.token()
	b.Site(other).EtcdFlags("--advertise-client-urls", "http://127.0.0.1:1")
	b.must(b.Site(other).StopEtcd())
	b.must(b.Site(other).StartEtcd())
	b.must(b.WaitServing(b.within()))
	c, err := b.Site(leader).Client()
	b.must(err)
	defer c.Close()
	for hidden := false; !hidden; {
		list, err := c.MemberList(b.within(), clientv3.WithSerializable())
		b.must(err)
		for _, m := range list.Members {
			hidden = hidden || len(m.ClientURLs) == 1 && m.ClientURLs[0] == "http://127.0.0.1:1"
		}
	}
	for ctx := b.within(); ; { // the member that was restarted may lead by now
		now, err := b.Leader(ctx)
		b.must(err)
		if now == leader {
			break
		}
		st, err := b.Site(leader).Status(ctx)
		b.must(err)
		oc, err := b.Site(other).Client()
		b.must(err)
		_, err = oc.MoveLeader(ctx, st.Header.MemberId)
		t.Logf("the leader is moved back: %v", err)
		b.must(oc.Close())
	}
	_, sent, err = write(leader, any)
	untouched("although the other member shows nothing", sent, err, was)
}
