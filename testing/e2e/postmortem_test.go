package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"twok/arbiter"
	"twok/internal/agent"
	"twok/internal/lab"
	"twok/walsurgery"
)

// postMortem is one file, as docs/postmortem.md has it.
type postMortem struct {
	path string

	Format     int             `json:"format"`
	Kind       string          `json:"kind"`
	MemberID   string          `json:"member_id"`
	ClusterID  string          `json:"cluster_id"`
	Generation uint64          `json:"generation"`
	Reason     string          `json:"reason"`
	Error      string          `json:"error"`
	Plan       json.RawMessage `json:"plan"`
	Before     struct {
		Log *struct {
			MemberID string              `json:"member_id"`
			Term     uint64              `json:"term"`
			Last     walsurgery.Position `json:"last"`
		} `json:"log"`
		Data *struct {
			Problem string   `json:"problem"`
			Voters  []string `json:"voters"`
			Token   *struct {
				Generation uint64 `json:"generation"`
			} `json:"token"`
		} `json:"data"`
	} `json:"before"`
	After struct {
		Log *struct {
			Term   uint64              `json:"term"`
			Vote   string              `json:"vote"`
			Commit uint64              `json:"commit"`
			Last   walsurgery.Position `json:"last"`
		} `json:"log"`
		MemberID string `json:"member_id"`
		Kept     string `json:"kept"`
	} `json:"after"`
	RecordBefore json.RawMessage `json:"record_before"`
	Record       json.RawMessage `json:"record"`
}

func (m postMortem) record(t *testing.T, raw json.RawMessage) arbiter.Record {
	t.Helper()
	rec, err := arbiter.Decode(raw)
	if err != nil {
		t.Fatalf("%s: the record: %v", m.path, err)
	}
	return rec
}

// postMortems waits for n of them beside the data of a site and checks their names and modes.
func (p *pair) postMortems(site string, n int) []postMortem {
	p.Helper()
	dir := filepath.Join(p.Site(site).DataDir, agent.PostMortemDir)
	var names []string
	p.until(fmt.Sprintf("%d post-mortems of %s", n, site), func(context.Context) (err error) {
		if names, err = filepath.Glob(filepath.Join(dir, "*.json")); err == nil && len(names) != n {
			err = fmt.Errorf("there are %q", names)
		}
		return err
	})
	var out []postMortem
	for _, name := range names {
		b, err := os.ReadFile(name)
		p.must(err)
		m := postMortem{path: name}
		if err := json.Unmarshal(b, &m); err != nil {
			p.Fatalf("%s: %v", name, err)
		}
		if want := fmt.Sprintf("%08d-%s-", m.Generation, m.Kind); m.Format != 1 || !strings.HasPrefix(filepath.Base(name), want) {
			p.Errorf("%s: format %d, generation %d, kind %s", name, m.Format, m.Generation, m.Kind)
		}
		st, err := os.Stat(name)
		p.must(err)
		if st.Mode().Perm() != 0o600 {
			p.Errorf("%s has mode %s", name, st.Mode())
		}
		out = append(out, m)
	}
	st, err := os.Stat(dir)
	p.must(err)
	if st.Mode().Perm() != 0o700 {
		p.Errorf("%s has mode %s", dir, st.Mode())
	}
	return out
}

// TestPostMortems: a claim and a return leave one file each, which say what was planned, what was there before and after,
// and the record; so does a return from an empty log.
//
// Rules: P7, P8, P12, P13.
func TestPostMortems(t *testing.T) {
	t.Parallel()
	for _, minor := range lab.Minors {
		if !full && minor != "3.7" {
			continue
		}
		t.Run(minor, func(t *testing.T) {
			t.Parallel()
			p := start(t, minor)
			p.panicsOK = true // etcd's answer to a damaged WAL
			leader := p.leader()
			loser := lab.Other(leader)
			p.must(p.Site(loser).Kill())
			p.written("a write by the survivor")
			p.must(p.Site(loser).Start())
			rec := p.wholeAndAudited()

			m := p.postMortems(leader, 1)[0]
			var plan walsurgery.Plan
			if err := json.Unmarshal(m.Plan, &plan); err != nil {
				t.Fatal(err)
			}
			before, after := m.record(t, m.RecordBefore), m.record(t, m.Record)
			switch {
			case m.Kind != agent.KindClaim || m.Error != "" || m.Generation != after.Generation:
				t.Errorf("%s: %q of generation %d, error %q", m.path, m.Kind, m.Generation, m.Error)
			case before.ID != rec.ID || after.ID != rec.ID || after.Generation != before.Generation+1 || after.Survivor.Name != leader:
				t.Errorf("%s: generation %d became %d, survivor %q", m.path, before.Generation, after.Generation, after.Survivor.Name)
			case fmt.Sprintf("%016x", after.Survivor.ID) != m.MemberID || fmt.Sprintf("%016x", rec.ClusterID) != m.ClusterID:
				t.Errorf("%s: member %s of cluster %s", m.path, m.MemberID, m.ClusterID)
			case m.Before.Log == nil || m.After.Log == nil || m.Before.Data == nil || m.Before.Data.Token == nil:
				t.Errorf("%s: before %+v, after %+v", m.path, m.Before, m.After)
			case m.Before.Log.Last != plan.Last || m.After.Log.Last != plan.End || m.After.Log.Commit != plan.End.Index ||
				m.After.Log.Term != plan.Term || m.After.Log.Vote != m.MemberID || plan.Fork != walsurgery.Position(after.Fork):
				t.Errorf("%s: the plan %v, before %+v, after %+v, fork %v", m.path, plan, *m.Before.Log, *m.After.Log, after.Fork)
			case len(m.Before.Data.Voters) != 2 || m.Before.Data.Token.Generation != before.Generation:
				t.Errorf("%s: the data before: %+v", m.path, *m.Before.Data)
			}

			m = p.postMortems(loser, 1)[0]
			var ret struct {
				MemberID string `json:"member_id"`
				KeepLog  bool   `json:"keep_log"`
			}
			if err := json.Unmarshal(m.Plan, &ret); err != nil {
				t.Fatal(err)
			}
			if m.Kind != agent.KindReturnLog || !ret.KeepLog || ret.MemberID != m.After.MemberID || ret.MemberID == m.MemberID ||
				m.Before.Log == nil || m.Before.Log.MemberID != m.MemberID || m.record(t, m.Record).Generation != rec.Generation {
				t.Errorf("%s: %+v, plan %+v", m.path, m, ret)
			}
			if _, err := walsurgery.ReadMetadata(m.After.Kept); err != nil {
				t.Errorf("%s: what was kept: %v", m.path, err)
			}

			p.must(p.Site(loser).Kill())
			p.damage(loser, inData)
			p.written("a write by the survivor")
			p.must(p.Site(loser).Start())
			rec = p.wholeAndAudited()
			m = p.postMortems(loser, 2)[1]
			if err := json.Unmarshal(m.Plan, &ret); err != nil {
				t.Fatal(err)
			}
			if m.Kind != agent.KindReturnEmpty || ret.KeepLog || m.Reason != "wal-unreadable" || m.Generation != rec.Generation ||
				!strings.Contains(m.After.Kept, "member.set-aside-") || m.Before.Log != nil || m.Before.Data.Problem != "wal-unreadable" {
				t.Errorf("%s: %+v, plan %+v", m.path, m, ret)
			}
			if _, err := os.Stat(filepath.Join(m.After.Kept, "snap", "db")); err != nil {
				t.Errorf("%s: what was kept: %v", m.path, err)
			}
			p.postMortems(leader, 2)
		})
	}
}

// TestPostMortemByHand: the claim by hand leaves one too, before the command ends; a refused one and a dry run do not.
//
// Rules: P7, P8.
func TestPostMortemByHand(t *testing.T) {
	t.Parallel()
	p := start(t, "3.6", external)
	self := p.Site(p.leader())
	other := p.Site(lab.Other(self.Name))
	p.w.Stop()
	for _, s := range []*lab.Site{self, other} { // agents first: neither shall claim
		s.StopAgent()
	}
	p.must(other.Stop())
	self.PauseRestarter()
	p.must(self.StopEtcd())
	survive := func(want int, url string, more ...string) {
		t.Helper()
		args := append([]string{"wal", "survive", "--arbiter", url, "--trace", p.traceOf(self.DataDir)}, more...)
		if url != p.Arbiter {
			args = []string{"wal", "survive", "--arbiter", url}
		}
		if code, out, stderr := p.run(append(args, self.DataDir)...); code != want {
			t.Errorf("survive %q: status %d, want %d; %s%s", more, code, want, out, stderr)
		}
	}
	survive(0, p.Arbiter, "--dry-run")
	survive(32, p.Arbiter+"-other")
	if names, err := filepath.Glob(filepath.Join(self.DataDir, agent.PostMortemDir, "*")); err != nil || len(names) > 0 {
		t.Errorf("a dry run and a refusal left %q, %v", names, err)
	}
	survive(0, p.Arbiter)
	names, err := filepath.Glob(filepath.Join(self.DataDir, agent.PostMortemDir, "*.json"))
	if err != nil || len(names) != 1 {
		t.Fatalf("after the command: %q, %v", names, err)
	}
	if m := p.postMortems(self.Name, 1)[0]; m.Kind != agent.KindClaim || m.Generation != 2 {
		t.Errorf("%s: %+v", m.path, m)
	}
	p.must(self.Start())
	p.must(self.WaitServing(p.within()))
	p.must(other.Start())
	p.whole()
	p.Log(p.audit())
}

// TestPostMortemCannotBeWritten: a post-mortem that cannot be written, because its directory is something else, or
// belongs to nobody, or its disk is full, is told in the log; the failover and the return are as ever.
//
// Rules: P7, P8, P12; F31.
func TestPostMortemCannotBeWritten(t *testing.T) {
	t.Parallel()
	t.Run("not a directory", func(t *testing.T) {
		unwritable(t, "not a directory", func(dir string) error { return os.WriteFile(dir, nil, 0o600) })
	})
	t.Run("a symlink", func(t *testing.T) {
		unwritable(t, "not a directory", func(dir string) error { return os.Symlink(t.TempDir(), dir) })
	})
	t.Run("read only", func(t *testing.T) {
		if !inMountNamespace(t) {
			return
		}
		unwritable(t, "read-only file system", func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_RDONLY, "size=16k"))
		})
	})
	t.Run("full", func(t *testing.T) {
		if !inMountNamespace(t) {
			return
		}
		unwritable(t, "no space left on device", func(dir string) error {
			err := errors.Join(os.Mkdir(dir, 0o700), syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16k"))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "somebody's"), make([]byte, 16<<10), 0o600)
			}
			return err
		})
	})
}

func unwritable(t *testing.T, says string, spoil func(dir string) error) {
	p := prepare(t, "3.7")
	for _, name := range lab.Sites {
		dir := filepath.Join(p.Site(name).DataDir, agent.PostMortemDir)
		p.must(os.MkdirAll(filepath.Dir(dir), 0o700))
		p.must(spoil(dir))
		t.Cleanup(func() { _ = syscall.Unmount(dir, 0) }) // where it was mounted
	}
	p.must(p.Start(p.within()))
	p.whole()
	p.write()
	p.failover(lab.CutLink)
	for _, name := range lab.Sites {
		p.until("the log of "+name+" tells of it", func(context.Context) error {
			if l := strings.Join(p.agentLines(name), "\n"); !strings.Contains(l, "post-mortem in ") || !strings.Contains(l, says) {
				return errors.New("not yet")
			}
			return nil
		})
		left, err := filepath.Glob(filepath.Join(p.Site(name).DataDir, agent.PostMortemDir, "*.json*"))
		if err != nil || len(left) > 0 {
			t.Errorf("%s: left over: %q, %v", name, left, err)
		}
	}
}

// inMountNamespace runs the calling test again in a process that may mount and whose mounts end with it, as root of a user
// namespace unless it is root anyway. It is true in that process. Where no such namespace may be made the test fails.
func inMountNamespace(t *testing.T) bool {
	t.Helper()
	const mark = "TWOK_E2E_MOUNTS"
	if os.Getenv(mark) != "" {
		return true
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var pattern []string
	for part := range strings.SplitSeq(t.Name(), "/") {
		pattern = append(pattern, "^"+part+"$")
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run", strings.Join(pattern, "/"), "-test.v")
	cmd.Env = append(os.Environ(), mark+"=1", "TWOK_E2E_TWOK="+twok(t))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("in a mount namespace: %v\n%s", err, out)
	}
	return false
}
