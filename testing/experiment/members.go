package experiment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/internal/lab"
	"twok/testing/network"
)

// members are etcds without agents, with etcd's own timing, each in a site of its own.
type members struct {
	net   *network.Network
	bin   lab.Binaries
	dir   string
	names []string
	run   map[string]*etcd
	cl    map[string]*clientv3.Client
}

func newMembers(ctx context.Context, s *Session, names ...string) (*members, error) {
	n, err := network.New(ctx, network.Config{Sites: names})
	if err != nil {
		return nil, err
	}
	m := &members{net: n, bin: s.Bin, dir: s.Dir, names: names, run: map[string]*etcd{}, cl: map[string]*clientv3.Client{}}
	for _, name := range names {
		cls, err := dial(m.clientURL(name))
		if err != nil {
			return nil, errors.Join(err, m.close())
		}
		m.cl[name] = cls[0]
		if err := m.start(name, "new", names); err != nil {
			return nil, errors.Join(err, m.close())
		}
	}
	for _, name := range names {
		if err := m.run[name].serving(ctx, m.cl[name]); err != nil {
			return nil, errors.Join(err, m.close())
		}
	}
	return m, nil
}

func (m *members) clientURL(name string) string { return "http://" + m.net.Host(name) + ":2379" }
func (m *members) peerURL(name string) string   { return "http://" + m.net.Host(name) + ":2380" }
func (m *members) data(name string) string      { return filepath.Join(m.dir, name, "data") }
func (m *members) log(name string) string       { return filepath.Join(m.dir, name, "etcd.log") }

// start starts a member that knows these as its initial cluster.
func (m *members) start(name, state string, initial []string, flags ...string) error {
	if err := os.MkdirAll(filepath.Join(m.dir, name), 0o755); err != nil {
		return err
	}
	var cluster []string
	for _, x := range initial {
		cluster = append(cluster, x+"="+m.peerURL(x))
	}
	argv := append([]string{m.bin.Etcd, "--name", name, "--data-dir", m.data(name),
		"--listen-client-urls", m.clientURL(name), "--advertise-client-urls", m.clientURL(name),
		"--listen-peer-urls", m.peerURL(name), "--initial-advertise-peer-urls", m.peerURL(name),
		"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", state}, flags...)
	e, err := startEtcd(m.log(name), m.clientURL(name), func(start func() error) error { return m.net.In(name, start) }, argv...)
	if err != nil {
		return err
	}
	m.run[name] = e
	return nil
}

// leader waits until all agree.
func (m *members) leader(ctx context.Context) (string, error) {
	for {
		ids, leaders := map[uint64]string{}, map[uint64]bool{}
		for _, name := range m.names {
			try, cancel := context.WithTimeout(ctx, time.Second)
			st, err := m.cl[name].Status(try, m.clientURL(name))
			cancel()
			if err == nil {
				ids[st.Header.MemberId], leaders[st.Leader] = name, true
			}
		}
		for id := range leaders {
			if len(leaders) == 1 && len(ids) == len(m.names) && ids[id] != "" {
				return ids[id], nil
			}
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("find the leader: %w", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// redundant waits until all n members are voters of each other's lists and the returned one, asked at back, has
// applied what the one asked at front had when it was asked. It returns when that was.
func redundant(ctx context.Context, front, back *clientv3.Client, n int) (time.Time, error) {
	for {
		err := redundantNow(ctx, front, back, n)
		if err == nil {
			return time.Now(), nil
		}
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("wait for full redundancy: %w: %w", ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func redundantNow(ctx context.Context, front, back *clientv3.Client, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	st, err := front.Status(ctx, front.Endpoints()[0])
	if err != nil {
		return err
	}
	// Linearizable: it waits until this member has applied what is committed now.
	got, err := back.Get(ctx, "/")
	if err != nil {
		return err
	}
	bst, err := back.Status(ctx, back.Endpoints()[0])
	if err != nil {
		return err
	}
	if got.Header.Revision < st.Header.Revision || bst.RaftAppliedIndex < st.RaftAppliedIndex || bst.IsLearner {
		return fmt.Errorf("the returned member has applied %d of %d, learner %t", bst.RaftAppliedIndex, st.RaftAppliedIndex, bst.IsLearner)
	}
	for _, cl := range []*clientv3.Client{front, back} {
		list, err := cl.MemberList(ctx)
		if err != nil {
			return err
		}
		voters := 0
		for _, x := range list.Members {
			if !x.IsLearner {
				voters++
			}
		}
		if voters != n || len(list.Members) != n {
			return fmt.Errorf("%d voters of %d members, not %d", voters, len(list.Members), n)
		}
	}
	return nil
}

// close ends everything; the directories stay.
func (m *members) close() error {
	for _, e := range m.run {
		e.kill()
	}
	var errs []error
	for _, cl := range m.cl {
		errs = append(errs, cl.Close())
	}
	return errors.Join(append(errs, m.net.Close())...)
}
