package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"twok/internal/failover"
	"twok/internal/lab"
	"twok/testing/history"
	"twok/testing/trace"
)

// Collect looks at everything at the end of a run: over the API while both members serve, then, after
// it ended agents and etcds, in the databases and the agents' traces. What could not be looked at is
// an error, and missing in what is returned.
func (c *Cluster) Collect(ctx context.Context) (*history.Final, error) {
	f := &history.Final{}
	err := c.overAPI(ctx, f)
	for errors.Is(err, rpctypes.ErrCompacted) && ctx.Err() == nil { // etcd compacts by itself; nobody writes any more, and it has an end
		f = &history.Final{}
		err = c.overAPI(ctx, f)
	}
	if err != nil {
		f.HashRevision = 0 // hashes, compactions and keys are not all there
		return f, fmt.Errorf("look at the members over the API: %w", err)
	}
	var errs []error
	if c.Options.Mode != "bare" {
		rec, err := c.Record(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("read the record: %w", err))
		} else {
			f.Record = &history.Record{Generation: rec.Generation}
			for _, h := range rec.History {
				if h.First != 0 {
					f.Record.Reigns = append(f.Record.Reigns, history.Reign{First: h.First, Last: h.Last, Survivor: h.Survivor})
				}
			}
		}
	}
	if err := c.end(); err != nil {
		return f, errors.Join(append(errs, fmt.Errorf("end the members: %w", err))...)
	}
	for i := range f.Members {
		m := &f.Members[i]
		var err error
		m.Disk, m.DiskLeases, m.DiskCompact, err = readDatabase(filepath.Join(c.Site(m.Site).DataDir, "member", "snap", "db"))
		if err != nil {
			errs = append(errs, fmt.Errorf("read the database of %s: %w", m.Site, err))
		}
		if m.Replaced, m.Touched, err = replaced(c.Site(m.Site).DataDir); err != nil {
			errs = append(errs, fmt.Errorf("look for what %s has replaced: %w", m.Site, err))
		}
	}
	if c.Options.Mode != "bare" {
		if err := c.traces(f); err != nil {
			errs = append(errs, err)
		}
	}
	return f, errors.Join(errs...)
}

// end ends agents, so that none acts on what follows, and then the etcds, which write what they have.
func (c *Cluster) end() error {
	var errs []error
	for _, name := range lab.Sites {
		s := c.Site(name)
		if c.Options.Mode == "signal" {
			s.PauseRestarter()
		}
		s.KillAgent()
	}
	for _, name := range lab.Sites {
		errs = append(errs, c.Site(name).StopEtcd())
	}
	return errors.Join(errs...)
}

func (c *Cluster) overAPI(ctx context.Context, f *history.Final) error {
	clients := map[string]*clientv3.Client{}
	for _, name := range lab.Sites {
		cl, err := c.Site(name).Client()
		if err != nil {
			return err
		}
		defer cl.Close()
		clients[name] = cl
	}
	var err error
	if f.Linear, f.HashRevision, _, err = everything(ctx, clients["a"], 0); err != nil {
		return fmt.Errorf("linearizable read: %w", err)
	}
	for _, name := range lab.Sites {
		m := history.Member{Site: name, Leases: []int64{}}
		// Whatever was acknowledged is applied at this member then; leases have no revision to wait for.
		if _, err := clients[name].Get(ctx, "\x00"); err != nil {
			return fmt.Errorf("linearizable read at %s: %w", name, err)
		}
		known, err := clients[name].Leases(ctx)
		if err != nil {
			return fmt.Errorf("leases of %s: %w", name, err)
		}
		for _, l := range known.Leases {
			m.Leases = append(m.Leases, int64(l.ID))
		}
		// The member's own data, at the revision of the linearizable read.
		for {
			own, _, revision, err := everything(ctx, clients[name], f.HashRevision, clientv3.WithSerializable())
			if err == nil {
				m.Keys, m.Revision = own, revision
				break
			}
			if errors.Is(err, rpctypes.ErrCompacted) {
				return fmt.Errorf("read %s at revision %d: %w", name, f.HashRevision, err)
			}
			if err := wait(ctx, fmt.Errorf("revision %d at %s: %w", f.HashRevision, name, err)); err != nil {
				return err
			}
		}
		list, err := clients[name].MemberList(ctx)
		if err != nil {
			return fmt.Errorf("member list of %s: %w", name, err)
		}
		for _, x := range list.Members {
			kind := "voter"
			if x.IsLearner {
				kind = "learner"
			}
			m.Members = append(m.Members, fmt.Sprintf("%x %s %s", x.ID, x.Name, kind))
		}
		slices.Sort(m.Members)
		f.Members = append(f.Members, m)
	}
	for { // until both have finished the same compaction
		var err error
		for i, am := range c.AuditMembers() {
			m := &f.Members[i]
			var e error
			m.Hash, m.Compact, e = am.HashKV(ctx, f.HashRevision)
			err = errors.Join(err, e)
		}
		if err == nil && f.Members[0].Compact == f.Members[1].Compact {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("the members compacted at %d and %d", f.Members[0].Compact, f.Members[1].Compact)
		}
		if strings.Contains(err.Error(), "required revision has been compacted") { // the peer port's words
			return fmt.Errorf("%w: %w", err, rpctypes.ErrCompacted)
		}
		if err := wait(ctx, err); err != nil {
			return err
		}
	}
}

func wait(ctx context.Context, why error) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ctx.Err(), why)
	case <-time.After(100 * time.Millisecond):
		return nil
	}
}

// page is how many keys are read at once: a large database does not fit into one reply.
const page = 200

// everything is every key at a revision; 0: the one of the first reply. newest is of the last reply's header.
func everything(ctx context.Context, cl *clientv3.Client, at int64, opts ...clientv3.OpOption) (all []history.KV, revision, newest int64, err error) {
	for from := "\x00"; ; {
		resp, err := cl.Get(ctx, from, append(opts[:len(opts):len(opts)], clientv3.WithFromKey(), clientv3.WithLimit(page), clientv3.WithRev(at))...)
		if err != nil {
			return nil, at, 0, err
		}
		if at == 0 {
			at = resp.Header.Revision
		}
		all, newest = append(all, keys(resp)...), resp.Header.Revision
		if !resp.More {
			return all, at, newest, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

func keys(resp *clientv3.GetResponse) (out []history.KV) {
	for _, kv := range resp.Kvs {
		out = append(out, history.KV{Key: string(kv.Key), Value: history.Value(kv.Value), Mod: kv.ModRevision, Create: kv.CreateRevision, Version: kv.Version})
	}
	return out
}

// replaced are the logs and member directories that stand beside those in use, and how many segments each has; and what was written to in
// them since.
func replaced(dataDir string) (out map[string]int, touched []string, err error) {
	out = map[string]int{}
	for _, g := range []struct{ dir, wal string }{{filepath.Join("member", "wal.before-*"), ""}, {"member.set-aside-*", "wal"}} {
		dirs, err := filepath.Glob(filepath.Join(dataDir, g.dir))
		if err != nil {
			return nil, nil, err
		}
		for _, dir := range dirs {
			segs, err := filepath.Glob(filepath.Join(dir, g.wal, "*.wal"))
			if err != nil {
				return nil, nil, err
			}
			out[filepath.Base(dir)] = len(segs)
			more, err := written(dir)
			if err != nil {
				return nil, nil, err
			}
			touched = append(touched, more...)
		}
	}
	return out, touched, nil
}

// written are the files in a directory that were written to after that got its name: by somebody who has them open still.
func written(dir string) (files []string, err error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	named := time.Unix(st.Ctim.Unix())
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if err == nil && fi.ModTime().After(named) {
			files = append(files, fmt.Sprintf("%s, put away at %s, written to at %s", path, named.Format(time.StampMicro), fi.ModTime().Format(time.StampMicro)))
		}
		return err
	})
	return files, err
}

// traces are the claims, the returns and the member IDs that the agents' traces show.
func (c *Cluster) traces(f *history.Final) error {
	ls, err := trace.ReadFiles(c.Site("a").Trace, c.Site("b").Trace, "")
	if err != nil {
		return fmt.Errorf("read the traces: %w", err)
	}
	f.IDs, f.Phases = map[string][]uint64{}, map[string][]history.Phase{}
	asked := map[string]int{} // the claim that is out, an index of Claims
	rewrites := map[string]failover.Action{}
	for i := range ls {
		l := &ls[i]
		site := lab.Sites[l.Site]
		if id, err := strconv.ParseUint(l.Member, 16, 64); err == nil && id != 0 && !slices.Contains(f.IDs[site], id) {
			f.IDs[site] = append(f.IDs[site], id)
		}
		if ph := f.Phases[site]; len(ph) == 0 || ph[len(ph)-1].Name != l.To || ph[len(ph)-1].Generation != l.Generation {
			f.Phases[site] = append(ph, history.Phase{At: l.At, Name: l.To, Generation: l.Generation})
		}
		n, out := asked[site]
		switch {
		case l.Start != nil:
			delete(asked, site)
		case out && l.Event == failover.Swapped.String() && l.Outcome == "done", out && l.From == "claiming" && l.To == "appending":
			f.Claims[n].Won = true
			delete(asked, site)
		case out && l.Event == failover.Swapped.String() && l.Outcome != "unknown":
			delete(asked, site)
		}
		if rw, out := rewrites[site]; out && l.Event == failover.Rewritten.String() && l.Outcome == "done" && l.In != nil {
			f.Returns = append(f.Returns, history.Return{
				Site: site, ID: rw.ID, Kept: rw.Keep && l.In.Why == failover.None, Blank: rw.Why == failover.DiskBlank,
			})
		}
		for _, a := range l.Out {
			if a.Kind == failover.Rewrite {
				rewrites[site] = a.Action
			}
			if a.Kind == failover.Swap && a.Claim && a.Record.Generation > 1 {
				asked[site] = len(f.Claims)
				f.Claims = append(f.Claims, history.Claim{Site: site, Generation: a.Record.Generation, At: l.T})
			}
		}
	}
	return nil
}
