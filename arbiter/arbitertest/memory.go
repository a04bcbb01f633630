package arbitertest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"twok/arbiter"
)

// Memory is the reference store: one register in memory. NewMemory makes it;
// all methods are safe for concurrent use.
type Memory struct {
	mu          sync.Mutex
	value       []byte
	exists      bool
	revision    uint64
	contentTags bool
}

// NewMemory returns a register without a value.
func NewMemory() *Memory { return &Memory{} }

// NewMemoryContentTags is NewMemory with tags that are hashes of the content, as
// S3's: equal bytes have equal tags (ABA).
func NewMemoryContentTags() *Memory { return &Memory{contentTags: true} }

// Put stores bytes past every client. nil stores an empty value.
func (m *Memory) Put(value []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set(value)
}

// Remove makes the register absent, as no client can.
func (m *Memory) Remove() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.value, m.exists = nil, false
}

// Get returns what the register holds; false if nothing.
func (m *Memory) Get() ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bytes.Clone(m.value), m.exists
}

// Client returns a new client without faults.
func (m *Memory) Client() *Client { return &Client{m: m} }

// Fixture returns the register as the suite wants it.
func (m *Memory) Fixture() Fixture {
	return Fixture{
		Open: func() (arbiter.Register, error) { return m.Client(), nil },
		Put:  func(v []byte) error { m.Put(v); return nil },
		Disturbed: func() (arbiter.Register, Faults, error) {
			c := m.Client()
			return c, c, nil
		},
		Forbidden: func() (arbiter.Register, error) {
			c := m.Client()
			c.Forbid(true)
			return c, nil
		},
	}
}

func (m *Memory) set(value []byte) {
	m.value, m.exists = append([]byte{}, value...), true
	m.revision++
}

func (m *Memory) version() arbiter.Version {
	switch {
	case !m.exists:
		return arbiter.Absent
	case m.contentTags:
		return arbiter.At(fmt.Sprintf("%x", sha256.Sum256(m.value)))
	}
	return arbiter.At(strconv.FormatUint(m.revision, 10))
}

func (m *Memory) read() ([]byte, arbiter.Version) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bytes.Clone(m.value), m.version()
}

func (m *Memory) swap(prev arbiter.Version, next []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.version() != prev {
		return arbiter.ErrConflict
	}
	m.set(next)
	return nil
}

// Client is one client of a Memory: an arbiter.Register, and the Faults on its
// own way.
type Client struct {
	m *Memory

	mu        sync.Mutex
	faults    [2]struct{ fault, left int }
	requests  [2]int
	refused   bool
	forbidden bool
	held      []func()
}

var (
	_ arbiter.Register = (*Client)(nil)
	_ Faults           = (*Client)(nil)

	errBroken = errors.New("the connection broke")
)

// Inject implements Faults.
func (c *Client) Inject(op Op, f Fault, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults[op].fault, c.faults[op].left = int(f), n
}

// Requests implements Faults.
func (c *Client) Requests(op Op) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests[op]
}

// Release implements Faults.
func (c *Client) Release() {
	c.mu.Lock()
	held := c.held
	c.held = nil
	c.mu.Unlock()
	for _, deliver := range held {
		deliver()
	}
}

// Close implements Faults.
func (c *Client) Close() {}

// Forbid makes the store refuse this client from now on, or accept it again.
func (c *Client) Forbid(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forbidden = on
}

// SetReachable ends (false) or restores the way to the store: every request is
// refused as unavailable meanwhile.
func (c *Client) SetReachable(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused = !on
}

// send counts a request and takes it through the fault that is due. deliver runs
// it at the store. The error is nil if the answer of deliver reached the client.
func (c *Client) send(ctx context.Context, op Op, deliver func()) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: nothing was sent: %w", arbiter.ErrUnavailable, err)
	}
	c.mu.Lock()
	var fault Fault
	if f := &c.faults[op]; f.left > 0 {
		f.left--
		fault = Fault(f.fault)
	}
	if fault == Refuse {
		c.refused = true
	}
	refused, forbidden := c.refused, c.forbidden
	if !refused {
		c.requests[op]++
	}
	if fault == Hold {
		c.held = append(c.held, deliver)
	}
	c.mu.Unlock()

	lost := arbiter.ErrUnknown
	if op == Read {
		lost = arbiter.ErrUnavailable
	}
	switch {
	case refused:
		return fmt.Errorf("%w: the connection was refused", arbiter.ErrUnavailable)
	case fault == CutBefore:
		return fmt.Errorf("%w: %w", lost, errBroken)
	case fault == LoseReply || fault == TearReply:
		if !forbidden {
			deliver()
		}
		return fmt.Errorf("%w: %w", lost, errBroken)
	case fault == Stall || fault == Hold:
		<-ctx.Done()
		return fmt.Errorf("%w: %w", lost, ctx.Err())
	case fault == Fail:
		return fmt.Errorf("%w: internal error", lost)
	case forbidden:
		return arbiter.ErrForbidden
	}
	deliver()
	return nil
}

// Read implements arbiter.Register.
func (c *Client) Read(ctx context.Context) ([]byte, arbiter.Version, error) {
	var value []byte
	var v arbiter.Version
	if err := c.send(ctx, Read, func() { value, v = c.m.read() }); err != nil {
		return nil, arbiter.Absent, fmt.Errorf("read the memory register: %w", err)
	}
	return value, v, nil
}

// CompareAndSwap implements arbiter.Register.
func (c *Client) CompareAndSwap(ctx context.Context, prev arbiter.Version, next []byte) error {
	next = bytes.Clone(next)
	var outcome error
	if err := c.send(ctx, Swap, func() { outcome = c.m.swap(prev, next) }); err != nil {
		return fmt.Errorf("swap the memory register: %w", err)
	}
	if outcome != nil {
		return fmt.Errorf("swap the memory register: %w", outcome)
	}
	return nil
}
