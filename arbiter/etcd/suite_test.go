package etcd

import (
	"context"
	"fmt"
	"testing"

	"twok/arbiter"
	"twok/arbiter/arbitertest"
)

// The suite against real etcds that ask for a user, as the least privilege has it.
// Rules: P1, P3; F1, F2, F11, F13, F28, F29.
func TestConformance(t *testing.T) {
	for _, minor := range []string{"3.5", "3.7"} {
		t.Run(minor, func(t *testing.T) {
			t.Parallel() // most of it is waiting for the disk
			c := startCluster(t, minor, 1)
			enableAuth(t, c)
			root := clientAs(t, "root", "root", c.members[0].url())
			n := 0
			arbitertest.Run(t, func(t *testing.T) arbitertest.Fixture {
				n++
				key := fmt.Sprintf("pair/%d", n)
				via := func(addr, user string) (arbiter.Register, error) {
					return New(Config{Endpoints: []string{addr}, Key: key, Login: loginAs(user, user)})
				}
				addr := c.members[0].client
				return arbitertest.Fixture{
					Open:      func() (arbiter.Register, error) { return via(addr, "twok") },
					Forbidden: func() (arbiter.Register, error) { return via(addr, "stranger") },
					Disturbed: func() (arbiter.Register, arbitertest.Faults, error) {
						p, err := newProxy(addr)
						if err != nil {
							return nil, nil, err
						}
						r, err := via(p.addr(), "twok")
						return r, p, err
					},
					Put: func(value []byte) error {
						_, err := root.Put(context.Background(), key, string(value))
						return err
					},
				}
			})
		})
	}
}

// A connection that is cut after any number of bytes, in either direction,
// leaves an outcome that says no more than is known.
// Rules: P1; F29.
func TestCutAtEveryByte(t *testing.T) {
	c := startCluster(t, "3.7", 1)
	via := func(addr string) (arbiter.Register, error) { return New(Config{Endpoints: []string{addr}, Key: "k"}) }
	addr := c.members[0].client
	seen, err := arbitertest.Sweep(arbitertest.Fixture{
		Addr: addr, OpenVia: via, Open: func() (arbiter.Register, error) { return via(addr) },
	}, 7)
	if err != nil {
		t.Error(err)
	}
	t.Logf("%v", seen)
}
