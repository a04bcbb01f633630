package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"go.uber.org/zap"

	"twok/arbiter"
	"twok/internal/failover"
	"twok/internal/member"
	"twok/walsurgery"
)

// PostMortemDir is the directory in the data directory that gets one small JSON file for each surgery and each
// return: docs/postmortem.md. twok reads none of them and deletes none of them.
const PostMortemDir = "twok-postmortem"

// The kinds of a post-mortem.
const (
	KindClaim       = "claim"        // an append (P8)
	KindForcedClaim = "forced-claim" // an append that a person asked for (P18)
	KindReturnLog   = "return-log"   // the WAL under a new member ID
	KindReturnEmpty = "return-empty" // an empty WAL under a new member ID, the old directory set aside
)

const (
	// postMortemAfter is when one is written at the latest: etcd may stay down after the append (P16).
	postMortemAfter = 10 * time.Second
	// postMortemWait bounds how long the agent's end waits for one.
	postMortemWait = 3 * time.Second
)

// postMortems collects what a section does and writes it when etcd was let go: nothing waits for a write,
// and nothing fails because of one. It may be used by several goroutines.
type postMortems struct {
	mu      sync.Mutex
	last    *arbiter.Record // as read last
	before  *arbiter.Record // what the claim replaces
	claimed *arbiter.Record
	data    failover.Data
	pending []postMortem
	out     sync.WaitGroup
	writing sync.Mutex
}

// postMortem is the file. Its fields are documented and stay.
type postMortem struct {
	Format     int             `json:"format"`
	Kind       string          `json:"kind"`
	Time       string          `json:"time"`
	Twok       string          `json:"twok"`
	DataDir    string          `json:"data_dir"`
	ClusterID  string          `json:"cluster_id"`
	MemberID   string          `json:"member_id"`
	Generation uint64          `json:"generation"`
	Reason     string          `json:"reason"`
	Error      string          `json:"error,omitempty"`
	Plan       any             `json:"plan"`
	Before     postMortemState `json:"before"`
	After      postMortemState `json:"after"`
	OldRecord  json.RawMessage `json:"record_before,omitempty"`
	Record     json.RawMessage `json:"record,omitempty"`

	at time.Time
}

type postMortemState struct {
	Log      *postMortemLog  `json:"log,omitempty"`
	Data     *postMortemData `json:"data,omitempty"`
	MemberID string          `json:"member_id,omitempty"`
	Kept     string          `json:"kept,omitempty"`
}

type postMortemLog struct {
	MemberID  string              `json:"member_id"`
	ClusterID string              `json:"cluster_id"`
	Term      uint64              `json:"term"`
	Vote      string              `json:"vote"`
	Commit    uint64              `json:"commit"`
	Snapshot  walsurgery.Position `json:"snapshot"`
	First     walsurgery.Position `json:"first"`
	Last      walsurgery.Position `json:"last"`
	Segments  int                 `json:"segments"`
	Bytes     int64               `json:"bytes"`
	Torn      string              `json:"torn,omitempty"`
}

type postMortemData struct {
	Problem  string           `json:"problem,omitempty"`
	MemberID string           `json:"member_id,omitempty"`
	Name     string           `json:"name,omitempty"`
	Applied  uint64           `json:"applied"`
	Voters   []string         `json:"voters"`
	Token    *postMortemToken `json:"token,omitempty"`
}

type postMortemToken struct {
	RecordID   string   `json:"record_id"`
	Generation uint64   `json:"generation"`
	Members    []string `json:"members"`
	Term       uint64   `json:"term"`
	Index      uint64   `json:"index,omitempty"`
}

type returnPlan struct {
	MemberID string `json:"member_id"`
	KeepLog  bool   `json:"keep_log"`
}

// saw: the record was read.
func (p *postMortems) saw(r arbiter.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = &r
}

// at is the record's generation as a part of a name: whose history a directory is set aside for. Empty: none was read.
func (p *postMortems) at() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		return ""
	}
	return fmt.Sprintf("-g%d", p.last.Generation)
}

// claims: this swap is about to be sent.
func (p *postMortems) claims(r arbiter.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before, p.claimed = p.last, &r
}

// read: these are the data under the locks.
func (p *postMortems) read(d failover.Data) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.data = d
}

// appended: the plan was carried out, or failed half-way. kept is the log that was replaced, if one was.
func (p *postMortems) appended(cfg Config, before walsurgery.Summary, plan walsurgery.Plan, after walsurgery.Summary, kept string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := postMortem{Kind: KindClaim, MemberID: hex(plan.Owner.MemberID), ClusterID: hex(before.ClusterID), Plan: plan,
		Before: postMortemState{Log: logOf(before), Data: dataOf(p.data)}, After: postMortemState{Log: logOf(after), Kept: kept}}
	if err != nil {
		m.Error, m.After.Log = err.Error(), nil
	}
	if p.claimed != nil {
		m.Generation, m.Reason = p.claimed.Generation, p.claimed.Reason
		if p.claimed.Forced {
			m.Kind = KindForcedClaim
		}
	}
	m.OldRecord, m.Record = m.encode(p.before), m.encode(p.claimed)
	p.keep(cfg, m)
}

// returned: the WAL has its new ID. before is nil if the old log could not be read.
func (p *postMortems) returned(cfg Config, before *walsurgery.Summary, act failover.Action, keep bool, why failover.Reason, kept string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := postMortem{Kind: KindReturnLog, ClusterID: hex(act.Cluster), Reason: why.String(),
		Plan:   returnPlan{MemberID: hex(act.ID), KeepLog: keep},
		Before: postMortemState{Data: dataOf(p.data)}, After: postMortemState{MemberID: hex(act.ID), Kept: kept}}
	if before != nil {
		m.MemberID, m.Before.Log = hex(before.MemberID), logOf(*before)
	}
	if !keep {
		m.Kind = KindReturnEmpty
	}
	if p.last != nil {
		m.Generation, m.Record = p.last.Generation, m.encode(p.last)
	}
	p.keep(cfg, m)
}

// keep holds m until etcd is let go, or for postMortemAfter. p.mu is held.
func (p *postMortems) keep(cfg Config, m postMortem) {
	m.at = time.Now().UTC()
	m.Format, m.Time, m.Twok, m.DataDir = 1, m.at.Format(postMortemTime), buildVersion(), cfg.DataDir
	p.pending = append(p.pending, m)
	time.AfterFunc(postMortemAfter, func() { p.write(cfg) })
}

// write begins to write what is pending and returns at once.
func (p *postMortems) write(cfg Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.pending {
		p.out.Go(func() {
			p.writing.Lock() // names are chosen one after the other
			defer p.writing.Unlock()
			if path, err := m.write(cfg.DataDir); err != nil {
				cfg.Logger.Warn("the post-mortem of what was just done could not be written; everything else goes on", zap.Error(err))
			} else {
				cfg.Logger.Info("post-mortem", zap.String("kind", m.Kind), zap.String("path", path))
			}
		})
	}
	p.pending = nil
}

// end writes what is pending and waits for all of it, but not for ever.
func (p *postMortems) end(cfg Config) {
	p.write(cfg)
	done := make(chan struct{})
	go func() { p.out.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(postMortemWait):
		cfg.Logger.Warn("a post-mortem is not written yet; it is given up", zap.String("directory", filepath.Join(cfg.DataDir, PostMortemDir)))
	}
}

const postMortemTime = "2006-01-02T15:04:05.000Z"

// write makes GENERATION-KIND-TIME.json, durably, in a directory that only its owner reads. After an
// error there is no file.
func (m postMortem) write(dataDir string) (path string, err error) {
	dir := filepath.Join(dataDir, PostMortemDir)
	defer func() {
		if err != nil {
			err = fmt.Errorf("post-mortem in %s: %w; let the directory belong to this user, and let there be space", dir, err)
		}
	}()
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return "", err
	}
	if err := postMortemDir(dir); err != nil {
		return "", err
	}
	base := filepath.Join(dir, fmt.Sprintf("%08d-%s-%s", m.Generation, m.Kind, m.at.Format("20060102T150405.000Z")))
	path = base + ".json"
	for i := 2; ; i++ {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return "", err
		}
		path = fmt.Sprintf("%s.%d.json", base, i)
	}
	if err := writeDurably(path, append(b, '\n')); err != nil {
		// What is left of it is of no use to anybody.
		if rerr := os.Remove(path + ".tmp"); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
		return "", err
	}
	return path, nil
}

func postMortemDir(dir string) error {
	switch err := os.Mkdir(dir, 0o700); {
	case errors.Is(err, fs.ErrExist):
		st, err := os.Lstat(dir) // not through a symlink: this may be root, and the directory somebody else's
		if err == nil && !st.IsDir() {
			err = fmt.Errorf("%s is not a directory", dir)
		}
		return err
	case err != nil:
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	up, err := os.Open(filepath.Dir(dir))
	if err != nil {
		return errors.Join(err, d.Close())
	}
	return errors.Join(member.GiveToOwner(d), d.Close(), up.Sync(), up.Close())
}

func logOf(s walsurgery.Summary) *postMortemLog {
	return &postMortemLog{MemberID: hex(s.MemberID), ClusterID: hex(s.ClusterID), Term: s.HardState.Term, Vote: hex(s.Vote), Commit: s.Commit,
		Snapshot: s.Snapshot, First: s.First, Last: s.Last, Segments: s.Segments, Bytes: s.LogBytes, Torn: s.TornAt}
}

func dataOf(d failover.Data) *postMortemData {
	out := &postMortemData{MemberID: hex(d.Member), Name: d.Name, Applied: d.Applied, Voters: []string{}}
	if d.Problem != failover.None {
		out.Problem = d.Problem.String()
	}
	for _, id := range d.Confs.Applied.IDs {
		if id != 0 {
			out.Voters = append(out.Voters, hex(id))
		}
	}
	if t := d.Token; t.Present && !t.Bad {
		out.Token = &postMortemToken{RecordID: t.RecordID, Generation: t.Generation, Term: t.Term, Index: d.TokenIndex,
			Members: []string{hex(t.Members[0]), hex(t.Members[1])}}
	}
	return out
}

// encode is the record as it stands in the store.
func (m *postMortem) encode(r *arbiter.Record) json.RawMessage {
	if r == nil {
		return nil
	}
	b, err := arbiter.Encode(*r)
	if err != nil { // it was read, or swapped
		m.Error += fmt.Sprintf("the record cannot be encoded: %v", err)
		return nil
	}
	return b
}

// buildVersion is the module's version; empty for a build without one.
func buildVersion() string {
	if bi, ok := debug.ReadBuildInfo(); ok {
		return bi.Main.Version
	}
	return ""
}
