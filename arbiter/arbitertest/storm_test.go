package arbitertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"twok/arbiter"
)

// A right register passes a storm; one that lies about its outcome, and a list
// that was changed behind its back, do not.
// Rules: P1; F29.
func TestStormBites(t *testing.T) {
	run := func(swap swapFunc) (*Storm, *Memory, error) {
		m := NewMemory()
		var clients []arbiter.Register
		for range 4 {
			c := m.Client()
			c.Inject(Swap, LoseReply, 3)
			slow := func(c *Client, ctx context.Context) ([]byte, arbiter.Version, error) {
				value, v, err := c.Read(ctx)
				time.Sleep(time.Millisecond / 5) // the clients meet
				return value, v, err
			}
			clients = append(clients, &faulty{c: c, read: slow, swap: swap})
		}
		s := &Storm{}
		if err := s.Run(t.Context(), clients, func(n int) bool { return n >= 40 }); err != nil {
			return s, m, err
		}
		value, _ := m.Get()
		return s, m, s.Check(value)
	}
	s, m, err := run((*Client).CompareAndSwap)
	if err != nil || s.Acked() < 40 || s.Doubt() < 3 {
		t.Fatalf("a right register: %d acknowledged, %d in doubt, %v", s.Acked(), s.Doubt(), err)
	}
	value, _ := m.Get()
	lines := strings.SplitAfter(strings.TrimSuffix(string(value), "\n"), "\n")
	n := len(lines)
	lines[n-1] += "\n"
	for what, changed := range map[string]string{
		"the end is gone": strings.Join(lines[:n-3], ""),
		"two swapped":     strings.Join(append(slices.Clone(lines[:n-2]), lines[n-1], lines[n-2]), ""),
		"one more":        string(value) + "r1-9-9\n",
		"nothing":         "",
	} {
		if s.Check([]byte(changed)) == nil {
			t.Errorf("%s: not noticed", what)
		}
	}
	for what, swap := range map[string]swapFunc{
		"last writer wins":         func(c *Client, ctx context.Context, _ arbiter.Version, next []byte) error { c.m.Put(next); return nil },
		"a lost reply is conflict": reclass(arbiter.ErrUnknown, arbiter.ErrConflict),
		"conflict is applied":      reclass(arbiter.ErrConflict, nil),
	} {
		if _, _, err := run(swap); err == nil {
			t.Errorf("%s: not noticed", what)
		}
	}
	if err := s.Run(t.Context(), nil, nil); err != nil {
		t.Error(fmt.Errorf("without clients: %w", err))
	}
}
