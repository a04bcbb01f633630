package arbiter

import (
	"fmt"
	"strconv"
	"time"
)

const (
	// Format and FormatVersion mark an encoded record.
	Format        = "twok-record"
	FormatVersion = 1

	// MaxSize is the largest encoded record, in bytes. It leaves every store
	// room, whatever it adds.
	MaxSize = 4095

	// MaxReason, MaxName and MaxBy are what Fit leaves of the texts, in encoded bytes.
	MaxReason = 128
	MaxName   = 64
	MaxBy     = 40

	// maxForeign bounds what Decode parses to tell garbage from foreign.
	maxForeign = 64 << 10

	timeLayout = "2006-01-02T15:04:05.000Z07:00"
)

// The fields this version knows. All others live in Extra.
var (
	recordFields = names("format", "version", "id", "cluster_id", "generation", "survivor", "nonce", "claim_nonce", "reason",
		"created_at", "claimed_at", "written_at", "claim_end", "fork", "confirmed", "confirmed_at",
		"whole", "mark", "drain", "pause", "forced", "history")
	entryFields = names("first", "last", "survivor", "fork", "forced", "by", "at")
)

func names(s ...string) map[string]bool {
	m := make(map[string]bool, len(s))
	for _, n := range s {
		m[n] = true
	}
	return m
}

// Encode writes a record in the format of the package documentation: the same
// record always gives the same bytes, and Decode gives the record back. The
// error is ErrInvalid or ErrTooLarge, with the reason.
func Encode(r Record) ([]byte, error) {
	if err := r.Validate(); err != nil {
		return nil, fmt.Errorf("encode the record: %w", err)
	}
	b := appendRecord(r)
	if len(b) > MaxSize {
		return nil, fmt.Errorf("encode the record: %w: %d bytes, at most %d; reason has %d, the survivor's name %d, unknown fields %d",
			ErrTooLarge, len(b), MaxSize, len(r.Reason), len(r.Survivor.Name), extraSize(r))
	}
	// Nothing is written that could not be read again.
	if back, err := Decode(b); err != nil || back != r {
		return nil, fmt.Errorf("encode the record: %w: it does not survive its own encoding (%v)", ErrInvalid, err)
	}
	return b, nil
}

// appendRecord encodes a record whose Extra fields are valid.
func appendRecord(r Record) []byte {
	w := &writer{sep: ",\n"}
	w.b = append(w.b, "{\n"...)
	w.str("format", Format)
	w.num("version", FormatVersion)
	w.str("id", r.ID)
	w.str("cluster_id", FormatID(r.ClusterID))
	w.num("generation", r.Generation)
	if r.Survivor.ID != 0 {
		w.key("survivor")
		o := w.object()
		o.str("id", FormatID(r.Survivor.ID))
		o.strIf("name", r.Survivor.Name)
		w.close(o)
	}
	w.str("nonce", r.Nonce)
	w.strIf("claim_nonce", r.ClaimNonce)
	w.strIf("reason", r.Reason)
	w.time("created_at", r.CreatedAt)
	w.time("claimed_at", r.ClaimedAt)
	w.time("written_at", r.WrittenAt)
	w.position("claim_end", r.ClaimEnd)
	w.position("fork", r.Fork)
	w.position("confirmed", r.Confirmed)
	w.time("confirmed_at", r.ConfirmedAt)
	if r.WholeGeneration != 0 {
		w.key("whole")
		o := w.object()
		o.num("generation", r.WholeGeneration)
		o.key("members")
		o.b = fmt.Appendf(o.b, `["%s","%s"]`, FormatID(r.WholeMembers[0]), FormatID(r.WholeMembers[1]))
		o.time("at", r.WholeAt)
		w.close(o)
	}
	if r.MarkGeneration != 0 {
		w.key("mark")
		o := w.object()
		o.num("generation", r.MarkGeneration)
		o.num("index", r.MarkIndex)
		w.close(o)
	}
	w.flag("drain", r.Drain)
	w.flag("pause", r.Pause)
	w.flag("forced", r.Forced)
	if n := r.HistoryCount(); n > 0 {
		w.key("history")
		for i, e := range r.History[:n] {
			w.b = append(w.b, [...]string{"[\n", ",\n"}[min(i, 1)]...)
			w.entry(e)
		}
		w.b = append(w.b, "\n]"...)
	}
	w.extra(r.Extra)
	return append(w.b, "\n}\n"...)
}

func extraSize(r Record) int {
	n := len(r.Extra)
	for _, e := range r.History {
		n += len(e.Extra)
	}
	return n
}

// writer appends the fields of one object in the order of the calls.
type writer struct {
	b   []byte
	sep string
	any bool
}

func (w *writer) key(name string) {
	if w.any {
		w.b = append(w.b, w.sep...)
	}
	w.any = true
	w.b = append(appendString(w.b, name), ':')
}

// object starts a nested object in one line; close ends it.
func (w *writer) object() *writer { return &writer{b: append(w.b, '{'), sep: ","} }
func (w *writer) close(o *writer) { w.b = append(o.b, '}') }

func (w *writer) str(name, s string) {
	w.key(name)
	w.b = appendString(w.b, s)
}

func (w *writer) strIf(name, s string) {
	if s != "" {
		w.str(name, s)
	}
}

func (w *writer) num(name string, n uint64) {
	w.key(name)
	w.b = strconv.AppendUint(w.b, n, 10)
}

func (w *writer) flag(name string, set bool) {
	if set {
		w.key(name)
		w.b = append(w.b, "true"...)
	}
}

func (w *writer) time(name string, ms int64) {
	if ms != 0 {
		w.str(name, formatTime(ms))
	}
}

func formatTime(ms int64) string { return time.UnixMilli(ms).UTC().Format(timeLayout) }

func (w *writer) position(name string, p Position) {
	if p == (Position{}) {
		return
	}
	w.key(name)
	o := w.object()
	o.num("index", p.Index)
	o.num("term", p.Term)
	w.close(o)
}

func (w *writer) entry(e HistoryEntry) {
	o := w.object()
	o.num("first", e.First)
	o.num("last", e.Last)
	o.str("survivor", FormatID(e.Survivor))
	o.position("fork", e.Fork)
	o.flag("forced", e.Forced)
	o.strIf("by", e.By)
	o.time("at", e.At)
	o.extra(e.Extra)
	w.close(o)
}

// extra appends the fields of a canonical object, which Validate has checked.
func (w *writer) extra(extra string) {
	if extra == "" {
		return
	}
	n, err := parseJSON([]byte(extra))
	if err != nil {
		panic(err)
	}
	for _, f := range sortedFields(n.fields) {
		w.key(f.name)
		w.b = appendCanonical(w.b, f.value)
	}
}
