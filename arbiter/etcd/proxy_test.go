package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"twok/arbiter/arbitertest"
)

// proxy stands between a client and an etcd, passes gRPC requests without
// decoding them, counts the ranges and transactions and disturbs them. A
// connection that it cuts is cut on TCP.
type proxy struct {
	l     net.Listener
	s     *grpc.Server
	store *grpc.ClientConn

	mu       sync.Mutex
	faults   [2]struct{ fault, left int }
	requests [2]int
	held     []chan chan struct{}
	conns    map[string]*cuttable // by the client's address
	closed   chan struct{}
}

var _ arbitertest.Faults = (*proxy)(nil)

// raw passes messages as they are.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = bytes.Clone(data.Materialize())
	return nil
}

func newProxy(addr string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	store, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{})), grpc.WithNoProxy())
	if err != nil {
		l.Close()
		return nil, err
	}
	p := &proxy{l: l, store: store, conns: map[string]*cuttable{}, closed: make(chan struct{})}
	p.s = grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.UnknownServiceHandler(p.serve))
	go p.s.Serve(&cuttables{l, p})
	return p, nil
}

func (p *proxy) addr() string { return p.l.Addr().String() }

// Inject implements arbitertest.Faults.
func (p *proxy) Inject(op arbitertest.Op, f arbitertest.Fault, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults[op].fault, p.faults[op].left = int(f), n
	if f == arbitertest.Refuse {
		p.l.Close()
		for _, c := range p.conns {
			c.cut()
		}
	}
}

// Requests implements arbitertest.Faults.
func (p *proxy) Requests(op arbitertest.Op) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests[op]
}

// Release implements arbitertest.Faults.
func (p *proxy) Release() {
	p.mu.Lock()
	held := p.held
	p.held = nil
	p.mu.Unlock()
	for _, h := range held {
		done := make(chan struct{})
		h <- done
		<-done
	}
}

// Close implements arbitertest.Faults.
func (p *proxy) Close() {
	close(p.closed)
	p.s.Stop()
	p.store.Close()
}

func (p *proxy) arrived(method string) (f arbitertest.Fault, held chan chan struct{}) {
	op := arbitertest.Read
	switch method {
	case pb.KV_Txn_FullMethodName, pb.KV_Put_FullMethodName, pb.KV_DeleteRange_FullMethodName:
		op = arbitertest.Swap
	case pb.KV_Range_FullMethodName:
	default:
		return 0, nil // a login
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests[op]++
	if s := &p.faults[op]; s.left > 0 {
		s.left--
		f = arbitertest.Fault(s.fault)
	}
	if f == arbitertest.Hold {
		held = make(chan chan struct{})
		p.held = append(p.held, held)
	}
	return f, held
}

var errCut = errors.New("cut")

func (p *proxy) serve(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	fault, held := p.arrived(method)
	pr, _ := peer.FromContext(stream.Context())
	p.mu.Lock()
	conn := p.conns[pr.Addr.String()]
	p.mu.Unlock()
	var delivered chan struct{}
	switch fault {
	case arbitertest.CutBefore:
		conn.cut()
		return errCut
	case arbitertest.Stall:
		select {
		case <-stream.Context().Done():
		case <-p.closed:
		}
		return errCut
	case arbitertest.Fail:
		return status.Error(codes.Internal, "internal error")
	case arbitertest.Hold:
		select {
		case delivered = <-held:
			defer close(delivered)
		case <-p.closed:
			return errCut
		}
	}
	md, _ := metadata.FromIncomingContext(stream.Context())
	md = md.Copy()
	for k := range md {
		if strings.HasPrefix(k, ":") || k == "content-type" || k == "user-agent" || k == "te" {
			delete(md, k)
		}
	}
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(context.Background(), md), 20*time.Second)
	defer cancel()
	var reply []byte
	err := p.store.Invoke(ctx, method, &request, &reply)
	switch fault {
	case arbitertest.LoseReply, arbitertest.Hold:
		conn.cut()
		return errCut
	case arbitertest.TearReply:
		conn.tear()
	}
	if err != nil {
		return err
	}
	return stream.SendMsg(&reply)
}

// cuttables are the connections that the listener accepts.
type cuttables struct {
	net.Listener
	p *proxy
}

func (l *cuttables) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	k := &cuttable{Conn: c}
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.p.conns[c.RemoteAddr().String()] = k
	return k, nil
}

type cuttable struct {
	net.Conn
	mu   sync.Mutex
	torn bool
}

func (c *cuttable) cut() { c.Close() }

// tear lets half of the next write pass and cuts.
func (c *cuttable) tear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.torn = true
}

func (c *cuttable) Write(b []byte) (int, error) {
	c.mu.Lock()
	torn := c.torn
	c.mu.Unlock()
	if !torn {
		return c.Conn.Write(b)
	}
	n, err := c.Conn.Write(b[:len(b)/2])
	c.cut()
	return n, errors.Join(err, fmt.Errorf("torn: %w", errCut))
}
