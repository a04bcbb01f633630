package member

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"twok/internal/failover"
	"twok/internal/lab"
)

// Anything that can happen to the token's key, in transactions within transactions, by users who may and may not, with
// leases, alarms and compactions; SIGKILL at a random moment; then etcd alone again. What it serves is the token that
// was read, or the tail spoke of an operation.
//
// Rules: P4.
func TestTokenReadingAgainstEtcd(t *testing.T) {
	eachMinor(t, func(t *testing.T, minor string) {
		p := startPair(t, minor, lab.Fast, "--strict-reconfig-check=false", "--backend-batch-interval", "500ms", "--bcrypt-cost", "4")
		tok := p.token(1)
		a := p.Site("a")
		_, err := p.client("a").MemberRemove(p.within(patience), p.ids["b"])
		p.must(err)
		p.must(p.Site("b").Kill())
		p.waitLeading()
		cl := p.client("a")
		ctx := p.within(patience)
		for _, user := range []string{"root", "u"} {
			_, err := cl.UserAdd(ctx, user, "pw")
			p.must(err)
			_, rerr := cl.RoleAdd(ctx, user)
			_, gerr := cl.UserGrantRole(ctx, user, user)
			p.must(errors.Join(rerr, gerr))
		}
		_, err = cl.RoleGrantPermission(ctx, "u", "k", "", clientv3.PermissionType(clientv3.PermReadWrite))
		p.must(err)
		_, err = cl.AuthEnable(ctx)
		p.must(err)
		p.oneByOne(tok)
		changed, spoke := 0, 0
		for round, quiet := range []int{1, 100, 30} { // one operation of so many is on the token's key
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for i := range 4 {
				user := "root"
				if i == 3 {
					user = "u"
				}
				c := p.as(user)
				wg.Go(func() { p.meddle(ctx, c, i, quiet, tok) })
			}
			time.Sleep(time.Duration(300+rand.IntN(500)) * time.Millisecond)
			p.must(a.Kill())
			cancel()
			wg.Wait()
			lock, log := p.open("a")
			db, err := readDatabase(lock)
			p.must(err)
			d, rerr := Read(lock, log, 0)
			p.must(errors.Join(log.Close(), lock.Release()))
			if d.Problem != failover.None {
				t.Fatal(d.Problem, rerr)
			}
			p.must(a.StartEtcd())
			r, err := p.as("root").Get(p.within(patience), TokenKey)
			p.must(err)
			var value string
			var lease int64
			if len(r.Kvs) > 0 {
				value, lease = string(r.Kvs[0].Value), r.Kvs[0].Lease
			}
			same := (len(r.Kvs) > 0) == db.token.found && value == string(db.token.value) && lease == db.token.lease
			if !same {
				changed++
			}
			if d.Tail != (failover.Tail{}) {
				spoke++
			}
			got, _, terr := DecodeToken([]byte(value))
			plain := len(r.Kvs) > 0 && terr == nil && lease == 0
			switch {
			case same && d.Token.Bad == (plain || len(r.Kvs) == 0):
				t.Errorf("round %d: %q with lease %x is in the database: %+v", round, value, lease, d.Token)
			case !same && d.Tail == (failover.Tail{}):
				t.Errorf("round %d: etcd serves %q with lease %x, the database has %+v, the tail nothing", round, value, lease, db.token)
			case !same && !d.Tail.Bad && !(plain && got.RecordID == d.Tail.RecordID && got.Generation <= d.Tail.Generation) && !d.Token.Bad:
				t.Errorf("round %d: etcd serves %q with lease %x, the database has %+v, the tail %+v", round, value, lease, db.token, d.Tail)
			}
			t.Logf("round %d: applied %d of %d, token %+v, tail %+v; served %q, lease %x", round, d.Applied, d.Last.Index, d.Token, d.Tail, value, lease)
		}
		t.Logf("served another token than the database had: %d times; the tail spoke: %d", changed, spoke)
	})
}

// oneByOne makes transactions one after the other, each with a mark of its own: the entry of each that changed the
// token's key, lease or value, is one that walker takes for such.
func (p *pair) oneByOne(tok failover.Token) {
	p.t.Helper()
	ctx, c := p.within(patience), p.as("root")
	r := rand.New(rand.NewPCG(rand.Uint64(), 3))
	lease := clientv3.LeaseID(77)
	_, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(lease), TTL: 600})
	p.must(err)
	state := func() string {
		g, err := c.Get(ctx, TokenKey)
		p.must(err)
		return fmt.Sprint(g.Kvs)
	}
	const marks = 150
	changed := map[string]bool{}
	for before := state(); len(changed) < marks; {
		mark := fmt.Sprintf("mark-%d-", len(changed))
		put := clientv3.OpPut("zz", mark) // beyond what is deleted
		op := func() clientv3.Op { return p.tokenOp(r, 0, 2, lease, tok) }
		inner := func() clientv3.Op {
			return clientv3.OpTxn([]clientv3.Cmp{tokenCmp(r)}, []clientv3.Op{op()}, []clientv3.Op{op()})
		}
		c.Txn(ctx).If(tokenCmp(r)).Then(put, inner()).Else(put, inner()).Commit() // an error changes nothing
		after := state()
		changed[mark], before = after != before, after
	}
	p.must(p.Site("a").Kill())
	lock, log := p.open("a")
	n, more := 0, 0
	for e := range log.From(1) {
		for mark, ch := range changed {
			if !bytes.Contains(e.Data, []byte(mark)) {
				continue
			}
			touched := false
			w := walker{key: []byte(TokenKey), put: func(*pb.PutRequest) { touched = true }, remove: func() { touched = true }}
			if err := w.data(e.Data); err != nil || ch && !touched {
				p.t.Errorf("entry %d changed the token and was not seen to: %v\n%q", e.Index, err, e.Data)
			}
			switch {
			case ch:
				n++
			case touched:
				more++
			}
		}
	}
	p.must(errors.Join(log.Close(), lock.Release()))
	p.must(p.Site("a").StartEtcd())
	p.t.Logf("%d transactions changed the token, %d might have", n, more)
	if n == 0 || more == 0 {
		p.t.Error("nothing was shown")
	}
}

// as is a client of a at which a user has logged in.
func (p *pair) as(user string) *clientv3.Client {
	p.t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{p.Site("a").ClientURL}, Username: user, Password: "pw", DialTimeout: patience, Logger: zap.NewNop()})
	p.must(err)
	p.t.Cleanup(func() { c.Close() })
	return c
}

// waitLeading waits until a leads alone.
func (p *pair) waitLeading() {
	p.t.Helper()
	for ctx := p.within(patience); ; time.Sleep(20 * time.Millisecond) {
		st, err := p.Site("a").Status(ctx)
		if err == nil && st.Leader == p.ids["a"] {
			return
		}
		if ctx.Err() != nil {
			p.t.Fatal(err)
		}
	}
}

// meddle does things to the token's key until ctx ends. Errors are expected: the request then changed nothing.
func (p *pair) meddle(ctx context.Context, c *clientv3.Client, who, quiet int, tok failover.Token) {
	r := rand.New(rand.NewPCG(rand.Uint64(), uint64(who)))
	lease := clientv3.LeaseID(1 + r.Int64N(1<<40))
	op := func() clientv3.Op { return p.tokenOp(r, who, quiet, lease, tok) }
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, time.Second)
		switch n := r.IntN(40); {
		case n == 0:
			c.Revoke(try, lease)
		case n <= 2 && r.IntN(quiet) == 0:
			pb.NewLeaseClient(c.ActiveConnection()).LeaseGrant(try, &pb.LeaseGrantRequest{ID: int64(lease), TTL: 600})
			c.Do(try, clientv3.OpPut(TokenKey, "leased", clientv3.WithLease(lease)))
		case n == 3 && who == 0:
			if g, err := c.Get(try, "k"); err == nil {
				c.Compact(try, g.Header.Revision)
			}
		case n == 4 && who == 1: // NOSPACE: puts are refused, deletes are not
			for _, action := range []pb.AlarmRequest_AlarmAction{pb.AlarmRequest_ACTIVATE, pb.AlarmRequest_DEACTIVATE} {
				pb.NewMaintenanceClient(c.ActiveConnection()).Alarm(try, &pb.AlarmRequest{MemberID: p.ids["a"], Action: action, Alarm: pb.AlarmType_NOSPACE})
			}
		case n == 5 && who == 2: // the others' requests are of an older revision of the users then
			c.RoleGrantPermission(try, "u", "k", "l", clientv3.PermissionType(clientv3.PermRead))
		case n < 20:
			c.Do(try, op())
		default:
			inner := clientv3.OpTxn([]clientv3.Cmp{tokenCmp(r)}, []clientv3.Op{op()}, []clientv3.Op{op()})
			c.Txn(try).If(tokenCmp(r)).Then(inner).Else(op(), clientv3.OpTxn([]clientv3.Cmp{tokenCmp(r)}, nil, []clientv3.Op{clientv3.OpPut("z", "")})).Commit()
		}
		cancel()
	}
}

// tokenOp is now and then, one of quiet, an operation on the token's key.
func (p *pair) tokenOp(r *rand.Rand, who, quiet int, lease clientv3.LeaseID, tok failover.Token) clientv3.Op {
	if r.IntN(quiet) > 0 {
		return clientv3.OpPut("k", "v")
	}
	tok.Generation = 1 + r.Uint64N(5)
	if r.IntN(8) == 0 {
		tok.RecordID = "record-2"
	}
	value := string(encode(p.t, tok, fmt.Sprintf("n-%d-%d", who, r.Uint32())))
	switch r.IntN(12) {
	case 0:
		return clientv3.OpPut(TokenKey, "mine")
	case 1:
		return clientv3.OpPut(TokenKey, value, clientv3.WithLease(lease))
	case 2:
		return clientv3.OpPut(TokenKey, value, clientv3.WithIgnoreLease())
	case 3:
		return clientv3.OpPut(TokenKey, "", clientv3.WithIgnoreValue())
	case 4:
		return clientv3.OpDelete(TokenKey)
	case 5:
		return clientv3.OpDelete("/twok/", clientv3.WithPrefix())
	case 6:
		return clientv3.OpDelete("/tw", clientv3.WithRange("/u"))
	case 7:
		return clientv3.OpDelete("\x00", clientv3.WithRange("l"), clientv3.WithPrevKV())
	}
	return clientv3.OpPut(TokenKey, value)
}

func tokenCmp(r *rand.Rand) clientv3.Cmp {
	switch r.IntN(3) {
	case 0:
		return clientv3.Compare(clientv3.Version(TokenKey), ">", r.IntN(4))
	case 1:
		return clientv3.Compare(clientv3.Value(TokenKey), "=", "mine")
	}
	return clientv3.Compare(clientv3.LeaseValue(TokenKey), "=", 0)
}
