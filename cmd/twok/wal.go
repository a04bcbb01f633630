package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"
	"go.uber.org/zap"

	"twok/walsurgery"
)

// Exit codes of the wal commands beyond 0, 1 and 2.
const (
	exitNoWAL   = 30
	exitDamaged = 31
)

func walCommand() *cli.Command {
	return &cli.Command{
		Name:  "wal",
		Usage: "look into the write-ahead log of an etcd member, or claim with it by hand",
		Subcommands: []*cli.Command{
			walInspectCommand(),
			walSurviveCommand(),
		},
	}
}

func walInspectCommand() *cli.Command {
	return &cli.Command{
		Name:      "inspect",
		Usage:     "show owner, state, membership changes and the end of a WAL",
		ArgsUsage: "DIR",
		Description: `DIR is etcd's data directory or the WAL directory itself. Nothing is changed,
created or locked; a running etcd is not disturbed.

Exit codes: 0 read to its end (a torn tail included: etcd repairs it), 2 wrong
usage, 30 no WAL there, 31 damaged or not written by etcd 3.5 to 3.7, 1 anything else.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
			&cli.IntFlag{Name: "tail", Usage: "show the last `N` entries", Value: 10},
		},
		Action: walInspect,
	}
}

func walInspect(c *cli.Context) error {
	if c.NArg() != 1 {
		return hint(usageError("twok wal inspect takes one directory, not %d arguments", c.NArg()), "give etcd's --data-dir; flags come before it")
	}
	if c.Int("tail") < 0 {
		return usageError("--tail %d is negative", c.Int("tail"))
	}
	r, err := inspectWAL(walDirOf(c.Args().First()), c.Int("tail"))
	if err != nil {
		return walError(err)
	}
	if c.Bool("json") {
		enc := json.NewEncoder(c.App.Writer)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	return r.print(c.App.Writer)
}

// walDirOf finds the WAL below a data directory.
func walDirOf(dir string) string {
	if sub := filepath.Join(dir, "member", "wal"); isDir(sub) {
		return sub
	}
	return dir
}

func isDir(name string) bool {
	st, err := os.Stat(name)
	return err == nil && st.IsDir()
}

// walError gives errors of walsurgery their exit codes and remedies.
func walError(err error) error {
	switch {
	case errors.Is(err, walsurgery.ErrNoWAL):
		return hint(withCode(err, exitNoWAL), "give etcd's --data-dir, or its --wal-dir if it has one")
	case errors.Is(err, walsurgery.ErrCorrupt):
		return hint(withCode(err, exitDamaged), "keep the directory as it is; return this member from the other one")
	case errors.Is(err, walsurgery.ErrUnexpectedFormat):
		return hint(withCode(err, exitDamaged), "twok knows etcd 3.5, 3.6 and 3.7")
	}
	return err
}

// hexID prints an ID as etcd does; JSON numbers would lose digits.
type hexID uint64

func (h hexID) String() string               { return strconv.FormatUint(uint64(h), 16) }
func (h hexID) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (h *hexID) UnmarshalText(b []byte) error {
	id, err := strconv.ParseUint(string(b), 16, 64)
	*h = hexID(id)
	return err
}

// walReport is what `twok wal inspect --json` prints.
type walReport struct {
	Dir     string `json:"dir"`
	Locked  bool   `json:"locked"` // another process, normally etcd, holds the lock
	Member  hexID  `json:"member"`
	Cluster hexID  `json:"cluster"`

	Term   uint64 `json:"term"`
	Vote   hexID  `json:"vote"`
	Commit uint64 `json:"commit"`

	Snapshot     walsurgery.Position `json:"snapshot"`
	HasConfState bool                `json:"has_conf_state"`
	Voters       []hexID             `json:"voters"`
	Learners     []hexID             `json:"learners"`

	First        walsurgery.Position `json:"first"`
	Last         walsurgery.Position `json:"last"`
	Entries      int                 `json:"entries"`
	Unsupported  int                 `json:"unsupported"`
	Inconsistent string              `json:"inconsistent"`

	Torn     bool   `json:"torn"`
	TornAt   string `json:"torn_at"`
	Segments int    `json:"segments"`
	Bytes    int64  `json:"bytes"`
	LogBytes int64  `json:"log_bytes"`

	Changes []walEntry `json:"changes"` // every membership change in the log
	Tail    []walEntry `json:"tail"`    // the last entries
}

type walEntry struct {
	Index   uint64 `json:"index"`
	Term    uint64 `json:"term"`
	Kind    string `json:"kind"` // normal, other, or the change's type
	Member  *hexID `json:"member,omitempty"`
	Context string `json:"context,omitempty"` // etcd's JSON
	Bytes   int    `json:"bytes"`
	Error   string `json:"error,omitempty"`
}

func inspectWAL(dir string, tail int) (*walReport, error) {
	l, err := walsurgery.Inspect(zap.NewNop(), dir)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	locked, err := walsurgery.Locked(dir)
	if err != nil {
		return nil, err
	}
	s := l.Summary()
	r := &walReport{Dir: dir, Locked: locked, Member: hexID(s.MemberID), Cluster: hexID(s.ClusterID),
		Term: s.HardState.Term, Vote: hexID(s.Vote), Commit: s.Commit,
		Snapshot: s.Snapshot, HasConfState: s.HasConfState, Voters: hexIDs(s.Voters), Learners: hexIDs(s.Learners),
		First: s.First, Last: s.Last, Entries: s.Entries, Unsupported: s.Unsupported, Inconsistent: s.Inconsistent,
		Torn: s.Torn, TornAt: s.TornAt, Segments: s.Segments, Bytes: s.Bytes, LogBytes: s.LogBytes,
		Changes: []walEntry{}, Tail: []walEntry{}}
	for e := range l.Changes() {
		r.Changes = append(r.Changes, describe(e))
	}
	r.Tail = describeAll(r.Tail, l.From(s.Last.Index-min(uint64(tail), s.Last.Index)+1))
	return r, nil
}

func describeAll(out []walEntry, seq iter.Seq[walsurgery.Entry]) []walEntry {
	for e := range seq {
		out = append(out, describe(e))
	}
	return out
}

func describe(e walsurgery.Entry) walEntry {
	w := walEntry{Index: e.Index, Term: e.Term, Kind: e.Kind.String(), Bytes: len(e.Data)}
	if e.Kind == walsurgery.KindConfChange {
		id := hexID(e.Change.NodeID)
		w.Kind, w.Member, w.Context = e.Change.Type.String(), &id, string(e.Change.Context)
		w.Bytes = len(e.Change.Context)
	}
	if e.Err != nil {
		w.Error = e.Err.Error()
	}
	return w
}

func hexIDs(ids []uint64) []hexID {
	out := make([]hexID, len(ids))
	for i, id := range ids {
		out[i] = hexID(id)
	}
	return out
}

// print writes the report for people.
func (r *walReport) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	yes := map[bool]string{true: "yes", false: "no"}
	row("WAL", "%s", r.Dir)
	row("locked", "%s", map[bool]string{true: "yes, etcd runs", false: "no"}[r.Locked])
	row("member", "%s of cluster %s", r.Member, r.Cluster)
	row("hard state", "term %d, vote %s, commit %d", r.Term, r.Vote, r.Commit)
	row("snapshot", "%s, voters %v, learners %v", r.Snapshot, r.Voters, r.Learners)
	if !r.HasConfState {
		row("", "it carries no configuration (written before etcd 3.5)")
	}
	row("log", "%s to %s, %d entries, %d after commit", r.First, r.Last, r.Entries, r.Last.Index-min(r.Commit, r.Last.Index))
	if r.Unsupported > 0 {
		row("", "%d entries of an unsupported kind", r.Unsupported)
	}
	if r.Inconsistent != "" {
		row("inconsistent", "%s", r.Inconsistent)
	}
	row("torn tail", "%s", yes[r.Torn])
	if r.Torn {
		row("", "%s", r.TornAt)
	}
	row("files", "%d segments, %d bytes, %d written", r.Segments, r.Bytes, r.LogBytes)
	if err := w.Flush(); err != nil {
		return err
	}
	list := func(title string, es []walEntry) error {
		if len(es) == 0 {
			return nil
		}
		fmt.Fprintf(out, "\n%s\n", title)
		fmt.Fprintf(w, "  INDEX\tTERM\tKIND\tMEMBER\tBYTES\t\n")
		for _, e := range es {
			id, more := "-", strings.TrimSpace(e.Context+" "+e.Error)
			if e.Member != nil {
				id = e.Member.String()
			}
			fmt.Fprintf(w, "  %d\t%d\t%s\t%s\t%d\t%s\n", e.Index, e.Term, e.Kind, id, e.Bytes, more)
		}
		return w.Flush()
	}
	if err := list("membership changes", r.Changes); err != nil {
		return err
	}
	return list("last entries", r.Tail)
}
