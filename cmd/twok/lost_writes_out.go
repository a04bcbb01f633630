package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"twok/internal/lostwrites"
	"twok/walsurgery"
)

// What `twok lost-writes --json` prints: docs/lost-writes.md. Keys and values are base64, since JSON strings hold no
// arbitrary bytes; "…_text" repeats what is printable. Positions and revisions are numbers, IDs hexadecimal text.
type (
	lostReport struct {
		Version  int                 `json:"version"` // 1
		Dir      string              `json:"dir"`
		Member   hexID               `json:"member"`
		Cluster  hexID               `json:"cluster"`
		Fork     lostFork            `json:"fork"`
		Applied  uint64              `json:"applied"`
		Commit   uint64              `json:"committed"`
		First    walsurgery.Position `json:"first"`
		Last     walsurgery.Position `json:"last"`
		Alone    bool                `json:"alone"`
		Compact  int64               `json:"compacted_revision"`
		Compared bool                `json:"compared"`
		Changes  []lostChange        `json:"changes"`
		Keys     []lostKey           `json:"keys"`
		Leases   []lostLease         `json:"leases"`
		Events   []lostEvent         `json:"events"`
		Unknown  []lostUnknown       `json:"unknown"`
		Notes    []string            `json:"notes"`
	}
	lostFork struct {
		Index  uint64              `json:"index"`
		Other  walsurgery.Position `json:"other"`
		Source string              `json:"source"`
		Exact  bool                `json:"exact"`
		// The revision at the fork lies between them; equal where it is known.
		LowRevision  int64 `json:"low_revision"`
		HighRevision int64 `json:"high_revision"`
	}
	lostChange struct {
		Revision  int64     `json:"revision"`
		Sub       int64     `json:"sub"`
		Index     uint64    `json:"index,omitempty"`
		Op        string    `json:"op"` // put or delete
		Key       []byte    `json:"key"`
		KeyText   *string   `json:"key_text,omitempty"`
		New       *lostVal  `json:"new,omitempty"`
		Old       lostState `json:"old"`
		Certainty string    `json:"certainty"`
		Perhaps   bool      `json:"may_predate_fork"`
		FromLog   bool      `json:"from_log"`
	}
	// lostVal is a key with a value.
	lostVal struct {
		Mod     int64   `json:"mod_revision"`
		Create  int64   `json:"create_revision,omitempty"`
		Version int64   `json:"version,omitempty"`
		Lease   hexID   `json:"lease"`
		Bytes   int     `json:"bytes"`
		Value   []byte  `json:"value"`
		Text    *string `json:"value_text,omitempty"`
		// Cut: value is its beginning only.
		Cut bool `json:"cut,omitempty"`
	}
	// lostState is a key at some moment: not known, absent, or there.
	lostState struct {
		Known bool     `json:"known"`
		Is    *lostVal `json:"is,omitempty"`
	}
	lostKey struct {
		Key       []byte     `json:"key"`
		KeyText   *string    `json:"key_text,omitempty"`
		Changes   int        `json:"changes"`
		Revision  int64      `json:"revision"`
		AtFork    lostState  `json:"at_fork"`
		Lost      lostState  `json:"lost"`
		Now       *lostState `json:"now,omitempty"`
		Status    string     `json:"status"` // not-compared, lost, same, superseded
		Certainty string     `json:"certainty"`
		Perhaps   bool       `json:"may_predate_fork"`
		Presumed  bool       `json:"deleted_by_what_is_unknown"`
		Internal  bool       `json:"internal"`
	}
	lostLease struct {
		ID  hexID `json:"id"`
		TTL int64 `json:"ttl"` // seconds, 0: not known any more
	}
	lostEvent struct {
		Index     uint64 `json:"index"`
		Term      uint64 `json:"term"`
		Kind      string `json:"kind"`
		Detail    string `json:"detail"`
		Certainty string `json:"certainty"`
	}
	lostUnknown struct {
		Revision int64  `json:"revision,omitempty"`
		Index    uint64 `json:"index"`
		What     string `json:"what"`
	}
)

// printableText is b as text, if it can be read as such.
func printableText(b []byte) *string {
	if !utf8.Valid(b) {
		return nil
	}
	s := string(b)
	for _, r := range s {
		if !unicode.IsPrint(r) && r != '\n' && r != '\t' {
			return nil
		}
	}
	return &s
}

func stateOf(s lostwrites.State) (lostState, error) {
	out := lostState{Known: s.Known}
	if !s.Exists {
		return out, nil
	}
	v, err := s.Value.Bytes()
	if err != nil {
		return out, err
	}
	out.Is = &lostVal{Mod: s.Mod, Create: s.Create, Version: s.Version, Lease: hexID(s.Lease), Bytes: len(v), Value: v, Text: printableText(v)}
	return out, nil
}

// lostJSON writes the object piece by piece: the values need not fit into memory.
func lostJSON(out io.Writer, l *lostwrites.Listing) error {
	r := lostReport{Version: 1, Dir: l.Dir, Member: hexID(l.Member), Cluster: hexID(l.Cluster),
		Fork: lostFork{Index: l.Fork.Index, Other: l.Fork.Other, Source: l.Fork.Source, Exact: l.Fork.Exact,
			LowRevision: l.LowRevision, HighRevision: l.HighRevision},
		Applied: l.Applied, Commit: l.Committed, First: l.First, Last: l.Last, Alone: l.Alone, Compact: l.Compacted,
		Leases: []lostLease{}, Events: []lostEvent{}, Unknown: []lostUnknown{}, Notes: append([]string{}, l.Notes...)}
	for _, k := range l.Keys {
		r.Compared = r.Compared || k.Status != lostwrites.NotCompared
	}
	for _, x := range l.Leases {
		r.Leases = append(r.Leases, lostLease{hexID(x.ID), x.TTL})
	}
	for _, e := range l.Events {
		r.Events = append(r.Events, lostEvent{e.Index, e.Term, e.Kind, e.Detail, e.Certainty.String()})
	}
	for _, u := range l.Unknown {
		r.Unknown = append(r.Unknown, lostUnknown(u))
	}
	w := bufio.NewWriter(out)
	s := &stream{w: w}
	s.object(r, map[string]func(){
		"changes": func() { list(s, len(l.Changes), func(i int) (any, error) { return changeOf(l.Changes[i]) }) },
		"keys":    func() { list(s, len(l.Keys), func(i int) (any, error) { return keyOf(l.Keys[i]) }) },
	})
	if s.err != nil {
		return s.err
	}
	return w.Flush()
}

func changeOf(c lostwrites.Change) (lostChange, error) {
	out := lostChange{Revision: c.Revision, Sub: c.Sub, Index: c.Index, Op: "delete", Key: c.Key, KeyText: printableText(c.Key),
		Certainty: c.Certainty.String(), Perhaps: c.Perhaps, FromLog: c.FromLog}
	var err error
	if out.Old, err = stateOf(c.Old); err != nil || c.Delete {
		return out, err
	}
	out.Op = "put"
	n, err := stateOf(lostwrites.State{Known: true, Exists: true, Mod: c.Revision, Create: c.Create, Version: c.Version, Lease: c.Lease, Value: c.Value})
	out.New = n.Is
	return out, err
}

func keyOf(k lostwrites.Key) (lostKey, error) {
	out := lostKey{Key: k.Key, KeyText: printableText(k.Key), Changes: k.Changes, Revision: k.Revision, Status: k.Status.String(),
		Certainty: k.Certainty.String(), Perhaps: k.Perhaps, Presumed: k.Presumed, Internal: k.Internal}
	var err error
	if out.AtFork, err = stateOf(k.AtFork); err != nil {
		return out, err
	}
	if out.Lost, err = stateOf(k.Lost); err != nil {
		return out, err
	}
	if now := k.Now; now != nil {
		out.Now = &lostState{Known: true}
		if now.Exists {
			out.Now.Is = &lostVal{Mod: now.Mod, Create: now.Create, Lease: hexID(now.Lease), Bytes: now.Len, Value: now.Value,
				Text: printableText(now.Value), Cut: len(now.Value) < now.Len}
		}
	}
	return out, nil
}

// stream writes JSON without holding all of it.
type stream struct {
	w   *bufio.Writer
	err error
}

func (s *stream) text(t string) {
	if s.err == nil {
		_, s.err = s.w.WriteString(t)
	}
}

// object writes r with the fields named in parts, which are empty in r, from what the functions write.
func (s *stream) object(r lostReport, parts map[string]func()) {
	r.Changes, r.Keys = []lostChange{}, []lostKey{}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		s.err = err
		return
	}
	for {
		at, name := len(b), ""
		for n := range parts {
			if i := bytes.Index(b, []byte("\n  \""+n+"\": []")); i >= 0 && i < at {
				at, name = i, n
			}
		}
		if name == "" {
			break
		}
		head := at + len("\n  \""+name+"\": ")
		s.text(string(b[:head]))
		parts[name]()
		b = b[head+len("[]"):]
	}
	s.text(string(b) + "\n")
}

func list(s *stream, n int, item func(int) (any, error)) {
	s.text("[")
	for i := range n {
		x, err := item(i)
		if err == nil && s.err == nil {
			var b []byte
			if b, err = json.MarshalIndent(x, "    ", "  "); err == nil {
				s.text(map[bool]string{true: "\n    ", false: ",\n    "}[i == 0] + string(b))
			}
		}
		if err != nil {
			s.err = err
			return
		}
	}
	s.text(map[bool]string{true: "]", false: "\n  ]"}[n == 0])
}

func lostTable(out io.Writer, l *lostwrites.Listing) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	row("directory", "%s", l.Dir)
	row("member", "%s of cluster %s%s", hexID(l.Member), hexID(l.Cluster), map[bool]string{true: ", alone at the end of its log"}[l.Alone])
	row("fork", "entry %d, from %s%s", l.Fork.Index, l.Fork.Source, map[bool]string{true: "", false: " (perhaps a little earlier)"}[l.Fork.Exact])
	if l.LowRevision == l.HighRevision {
		row("", "revision %d", l.LowRevision)
	} else {
		row("", "revision between %d and %d", l.LowRevision, l.HighRevision)
	}
	row("log", "%s to %s, committed to %d, in the database to %d", l.First, l.Last, l.Committed, l.Applied)
	for _, n := range l.Notes {
		row("note", "%s", n)
	}
	if len(l.Changes) == 0 && len(l.Events) == 0 && len(l.Unknown) == 0 {
		row("lost", "nothing: the directory's history has no write beyond the fork")
		return w.Flush()
	}
	status := map[string]lostwrites.Key{}
	count := map[lostwrites.Status]int{}
	for _, k := range l.Keys {
		status[string(k.Key)] = k
		count[k.Status]++
	}
	row("lost", "%d changes of %d keys", len(l.Changes), len(l.Keys))
	compared := len(l.Keys) > count[lostwrites.NotCompared]
	if compared {
		row("now", "%d lost, %d the same, %d superseded", count[lostwrites.Lost], count[lostwrites.Same], count[lostwrites.Superseded])
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(l.Changes) > 0 {
		fmt.Fprintf(w, "\nREVISION\tENTRY\tKEY\tOLD\tNEW\tLEASE\tCOMMITTED\tNOW\n")
	}
	for _, c := range l.Changes {
		old, err := cell(c.Old)
		if err != nil {
			return err
		}
		now, lease, entry := "", "-", "-"
		value := "(deleted)"
		if !c.Delete {
			if value, err = cell(lostwrites.State{Known: true, Exists: true, Value: c.Value}); err != nil {
				return err
			}
			if c.Lease != 0 {
				lease = hexID(c.Lease).String()
			}
		}
		if c.Index > 0 {
			entry = fmt.Sprint(c.Index)
		}
		sure := map[lostwrites.Certainty]string{lostwrites.Committed: "yes", lostwrites.Possibly: "possibly"}[c.Certainty]
		if c.Perhaps {
			sure += ", perhaps before the fork"
		}
		if k := status[string(c.Key)]; k.Revision != c.Revision {
			now = "(written again)"
		} else if k.Internal {
			now = "(twok's own)"
		} else if compared {
			now = k.Status.String()
		}
		fmt.Fprintf(w, "%d.%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.Revision, c.Sub, entry, lostwrites.Show(c.Key, 60), old, value, lease, sure, now)
	}
	if len(l.Unknown) > 0 {
		fmt.Fprintf(w, "\nNOT KNOWN ANY MORE (compacted)\nENTRY\tREVISION\tWHAT\n")
	}
	for _, u := range l.Unknown {
		fmt.Fprintf(w, "%d\t%s\t%s\n", u.Index, map[bool]string{true: "-", false: fmt.Sprint(u.Revision)}[u.Revision == 0], u.What)
	}
	if len(l.Events) > 0 {
		fmt.Fprintf(w, "\nBESIDE KEYS\nENTRY\tWHAT\t\tCOMMITTED\n")
	}
	for _, e := range l.Events {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\n", e.Index, e.Kind, e.Detail, map[lostwrites.Certainty]string{lostwrites.Committed: "yes", lostwrites.Possibly: "possibly"}[e.Certainty])
	}
	return w.Flush()
}

// cell is a state in few words.
func cell(s lostwrites.State) (string, error) {
	switch {
	case !s.Known:
		return "(not known)", nil
	case !s.Exists:
		return "(none)", nil
	}
	v, err := s.Value.Bytes()
	return lostwrites.Show(v, 40), err
}
