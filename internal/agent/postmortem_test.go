package agent

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"twok/arbiter"
	"twok/internal/failover"
	"twok/walsurgery"
)

// noted is a claim and a return with every field set.
func noted(cfg Config, p *postMortems) {
	rec := arbiter.Record{ID: "5f0cafe", ClusterID: 7, Generation: 4, Nonce: "n", CreatedAt: 1, WrittenAt: 1}
	p.saw(rec)
	rec.Generation, rec.Reason, rec.Survivor = 5, "no leader", arbiter.Member{ID: 0xa, Name: "a"}
	rec.ClaimNonce, rec.ClaimedAt, rec.ClaimEnd, rec.Fork = "n", 2, arbiter.Position{Index: 9, Term: 2}, arbiter.Position{Index: 10, Term: 3}
	rec.History[0] = arbiter.HistoryEntry{First: 5, Last: 5, Survivor: 0xa, Fork: rec.Fork, At: 2}
	p.claims(rec)
	d := failover.Data{Member: 0xa, Name: "a", Applied: 8, TokenIndex: 3, Token: failover.Token{Present: true, RecordID: "5f0cafe", Generation: 4, Members: [2]uint64{0xa, 0xb}, Term: 2}}
	d.Confs.Applied = failover.Voters{Count: 2, IDs: [2]uint64{0xa, 0xb}}
	p.read(d)
	log := walsurgery.Summary{Metadata: walsurgery.Metadata{MemberID: 0xa, ClusterID: 7}, HardState: walsurgery.HardState{Term: 2, Vote: 0xa, Commit: 8},
		Last: walsurgery.Position{Index: 9, Term: 2}, TornAt: "somewhere"}
	p.appended(cfg, log, walsurgery.Plan{Owner: log.Metadata, Term: 3, Remove: []uint64{0xb}, Join: []string{"http://a:2380"}, JoinAfter: 1}, log, "/data/member/wal.before-a", nil)
	p.appended(cfg, log, walsurgery.Plan{Owner: log.Metadata, Term: 3}, log, "", errors.New("the disk"))
	p.read(failover.Data{Problem: failover.WALUnreadable})
	p.returned(cfg, nil, failover.Action{ID: 0xc, Cluster: 7}, false, failover.WALUnreadable, "kept")
}

// Every field that a post-mortem has is in docs/postmortem.md, and the other way round.
//
// Rules: none (documentation).
func TestPostMortemIsDocumented(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), Logger: zap.NewNop()}
	var p postMortems
	noted(cfg, &p)
	p.end(cfg)
	names, err := filepath.Glob(filepath.Join(cfg.DataDir, PostMortemDir, "*.json"))
	if err != nil || len(names) != 3 {
		t.Fatalf("%q, %v", names, err)
	}
	var have []string
	var walk func(prefix string, v any)
	walk = func(prefix string, v any) {
		m, ok := v.(map[string]any)
		if !ok || prefix == "record" || prefix == "record_before" { // as the store has it
			return
		}
		for k, v := range m {
			name := strings.TrimPrefix(prefix+"."+k, ".")
			have = append(have, name)
			walk(name, v)
		}
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var v map[string]any
		if err := json.Unmarshal(b, &v); err != nil {
			t.Fatal(err)
		}
		walk("", v)
	}
	slices.Sort(have)
	doc, err := os.ReadFile("../../docs/postmortem.md")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, m := range regexp.MustCompile("(?m)^\\| (`[^|]*`) \\|").FindAllStringSubmatch(string(doc), -1) {
		for f := range strings.SplitSeq(m[1], ", ") {
			want = append(want, strings.Trim(f, "`"))
		}
	}
	slices.Sort(want)
	if have = slices.Compact(have); !slices.Equal(have, want) {
		for _, f := range have {
			if !slices.Contains(want, f) {
				t.Errorf("docs/postmortem.md lacks %s", f)
			}
		}
		for _, f := range want {
			if !slices.Contains(have, f) {
				t.Errorf("docs/postmortem.md has %s, which no post-mortem has", f)
			}
		}
	}
	for _, kind := range []string{KindClaim, KindForcedClaim, KindReturnLog, KindReturnEmpty} {
		if !strings.Contains(string(doc), "`"+kind+"`") {
			t.Errorf("docs/postmortem.md lacks the kind %s", kind)
		}
	}
}

// After a surgery without a release (P16) it is written after a while; the agent's end writes what is pending; a write that
// hangs delays that end, and nothing else, for a few seconds. Files never replace each other.
//
// Rules: none (documentation beside the data); F13.
func TestPostMortemTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		cfg := Config{DataDir: t.TempDir(), Logger: zap.New(core)}
		count := func() int {
			names, err := filepath.Glob(filepath.Join(cfg.DataDir, PostMortemDir, "*"))
			if err != nil {
				t.Fatal(err)
			}
			return len(names)
		}
		var p postMortems
		noted(cfg, &p)
		if n := count(); n != 0 {
			t.Errorf("%d files before etcd was let go", n)
		}
		time.Sleep(postMortemAfter + time.Millisecond)
		p.out.Wait()
		if n := count(); n != 3 {
			t.Errorf("%d files after %s", n, postMortemAfter)
		}
		noted(cfg, &p)
		noted(cfg, &p) // at the same moment
		p.end(cfg)
		if n := count(); n != 9 {
			t.Errorf("%d files at the end", n)
		}
		hang := make(chan struct{})
		p.out.Go(func() { <-hang })
		began := time.Now()
		p.end(cfg)
		if d := time.Since(began); d != postMortemWait {
			t.Errorf("the end waited %s for a write that hangs", d)
		}
		if logs.FilterMessageSnippet("given up").Len() != 1 {
			t.Errorf("the log: %v", logs.All())
		}
		close(hang)
		time.Sleep(postMortemAfter + time.Millisecond) // the timers
	})
}

// The directory belongs to the owner of the data directory, also when the agent is root, and only the owner reads it. A forced
// claim is named so.
//
// Rules: P18; F9.
func TestPostMortemBelongsToOwner(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), Logger: zap.NewNop()}
	uid := os.Geteuid()
	if uid == 0 {
		uid = 12345
		if err := os.Chown(cfg.DataDir, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	var p postMortems
	p.claims(arbiter.Record{Generation: 6, Forced: true})
	p.appended(cfg, walsurgery.Summary{}, walsurgery.Plan{}, walsurgery.Summary{}, "", nil)
	p.end(cfg)
	dir := filepath.Join(cfg.DataDir, PostMortemDir)
	names, err := filepath.Glob(filepath.Join(dir, "00000006-forced-claim-*.json"))
	if err != nil || len(names) != 1 {
		t.Fatalf("%q, %v", names, err)
	}
	for name, mode := range map[string]uint32{dir: unix.S_IFDIR | 0o700, names[0]: unix.S_IFREG | 0o600} {
		var st unix.Stat_t
		if err := unix.Stat(name, &st); err != nil || int(st.Uid) != uid || st.Mode != mode {
			t.Errorf("%s: owner %d, mode %o; want %d, %o; %v", name, st.Uid, st.Mode, uid, mode, err)
		}
	}
}
