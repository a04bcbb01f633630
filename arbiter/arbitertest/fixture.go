package arbitertest

import (
	"fmt"

	"twok/arbiter"
)

// Fixture is a fresh register that holds no value.
type Fixture struct {
	// Open returns another independent client, as another process would have:
	// nothing is shared but the store. Required.
	Open func() (arbiter.Register, error)

	// Put stores raw bytes past the clients, as a stray tool would. Required.
	Put func(value []byte) error

	// Disturbed returns a client and the faults on its way to the store. If it is
	// nil, OpenVia and Addr are used with a Proxy.
	Disturbed func() (arbiter.Register, Faults, error)
	// OpenVia returns a client that dials via (host:port) in place of Addr.
	OpenVia func(via string) (arbiter.Register, error)
	// Addr is where the store listens (host:port, HTTP without TLS).
	Addr string

	// Forbidden returns a client whose credentials the store refuses.
	Forbidden func() (arbiter.Register, error)

	// Cannot says for what of the above there is no way, and why.
	Cannot map[Ability]string

	// Close ends the fixture; may be nil.
	Close func()
}

// Ability is something that a fixture may lack.
type Ability string

const (
	// CanDisturb: faults on the way to the store (Disturbed, or OpenVia and Addr).
	CanDisturb Ability = "disturb"
	// CanForbid: Forbidden.
	CanForbid Ability = "forbid"
	// CanHoldEmpty: the store holds a value of no bytes, and Put can place it.
	CanHoldEmpty Ability = "empty value"
	// CanHoldGarbage: Put can place bytes that are no record.
	CanHoldGarbage Ability = "garbage"
)

// Op is a kind of request.
type Op int

const (
	Read Op = iota // changes nothing: GET, HEAD
	Swap           // everything else
)

func (o Op) String() string { return [...]string{"read", "swap"}[o] }

// Fault is what happens to a request on its way.
type Fault int

const (
	// CutBefore: the connection breaks, the store never sees the request.
	CutBefore Fault = iota + 1
	// LoseReply: the store answers, the connection breaks before the answer passes.
	LoseReply
	// TearReply: as LoseReply, but the first half of the answer passes.
	TearReply
	// Stall: the store never sees the request and nothing answers.
	Stall
	// Hold: the request waits until Release and reaches the store then.
	Hold
	// Fail: "the store has an internal error" is the answer; the store never sees
	// the request.
	Fail
	// Refuse: no connection is made, for this and every later request.
	Refuse
)

func (f Fault) String() string {
	return [...]string{"none", "cut before", "lose reply", "tear reply", "stall", "hold", "fail", "refuse"}[f]
}

// Faults disturbs the requests of one client.
type Faults interface {
	// Inject disturbs the next n requests of this kind.
	Inject(op Op, f Fault, n int)
	// Requests counts the requests of this kind seen so far, disturbed or not.
	Requests(op Op) int
	// Release delivers the held requests and returns when the store has answered them.
	Release()
	// Close ends it.
	Close()
}

// Cannot is the error of a case that a fixture excuses.
type Cannot struct {
	Ability Ability
	Reason  string
}

func (c *Cannot) Error() string {
	return fmt.Sprintf("not checked: cannot %s: %s", c.Ability, c.Reason)
}

// can returns Cannot if the fixture excuses the ability, and another error if
// it neither has nor excuses it.
func (f Fixture) can(a Ability, has bool) error {
	if why, ok := f.Cannot[a]; ok {
		if why == "" {
			return fmt.Errorf("the fixture excuses %q without a reason", a)
		}
		return &Cannot{a, why}
	}
	if !has {
		return fmt.Errorf("the fixture has no way to %s and does not say why (Fixture.Cannot)", a)
	}
	return nil
}

func (f Fixture) disturbed() (arbiter.Register, Faults, error) {
	if err := f.can(CanDisturb, f.Disturbed != nil || f.OpenVia != nil && f.Addr != ""); err != nil {
		return nil, nil, err
	}
	if f.Disturbed != nil {
		return f.Disturbed()
	}
	p, err := NewProxy(f.Addr)
	if err != nil {
		return nil, nil, err
	}
	r, err := f.OpenVia(p.Addr())
	if err != nil {
		p.Close()
		return nil, nil, err
	}
	return r, p, nil
}
