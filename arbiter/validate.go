package arbiter

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// maxTime is the last millisecond of the year 9999, the last that RFC 3339 can write.
var maxTime = time.Date(9999, 12, 31, 23, 59, 59, 999e6, time.UTC).UnixMilli()

// Validate checks the invariants I1 to I8 of the package documentation. The
// error wraps ErrInvalid and names the field. Encode refuses, and Decode calls
// garbage, what Validate refuses.
func (r Record) Validate() error {
	for _, check := range []func(Record) error{
		checkIdentity, checkSurvivor, checkHistory, checkPositions, checkNotes, checkTimes, checkText, checkExtra,
	} {
		if err := check(r); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	return nil
}

// I1
func checkIdentity(r Record) error {
	switch {
	case !validToken(r.ID):
		return fmt.Errorf("id %.80q is not 1 to 64 letters, digits, '-', '_' or '.'", r.ID)
	case !validToken(r.Nonce):
		return fmt.Errorf("nonce %.80q is not 1 to 64 letters, digits, '-', '_' or '.'", r.Nonce)
	case r.ClaimNonce != "" && !validToken(r.ClaimNonce):
		return fmt.Errorf("claim_nonce %.80q is not 1 to 64 letters, digits, '-', '_' or '.'", r.ClaimNonce)
	case r.ClusterID == 0:
		return fmt.Errorf("no cluster_id")
	case r.Generation == 0:
		return fmt.Errorf("generation 0: a record starts at 1 or above")
	}
	return nil
}

// validToken keeps IDs and nonces harmless in logs, file names and JSON.
func validToken(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for _, c := range []byte(s) {
		switch {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}

// I2
func checkSurvivor(r Record) error {
	newest, claimed := r.Newest()
	switch {
	case r.Survivor.ID == 0 && r.Survivor.Name != "":
		return fmt.Errorf("survivor %.80q has a name but no id", r.Survivor.Name)
	case r.Survivor.ID == 0 && claimed:
		return fmt.Errorf("history has claims but no survivor is named")
	case r.Survivor.ID != 0 && !claimed:
		return fmt.Errorf("survivor %s is named but history has no claim", FormatID(r.Survivor.ID))
	case claimed && newest.Survivor != r.Survivor.ID:
		return fmt.Errorf("survivor is %s but the newest claim in history is by %s", FormatID(r.Survivor.ID), FormatID(newest.Survivor))
	case claimed && newest.Last != r.Generation:
		return fmt.Errorf("generation is %d but the newest claim in history ends at %d", r.Generation, newest.Last)
	case r.Survivor.ID == 0 && (r.ClaimEnd != Position{} || r.Fork != Position{} || r.Confirmed != Position{} || r.ClaimedAt != 0 || r.ClaimNonce != "" || r.Forced):
		return fmt.Errorf("a claim's details are there but no survivor is named")
	}
	return nil
}

// I3
func checkHistory(r Record) error {
	var last uint64
	n := r.HistoryCount()
	for i, e := range r.History {
		if i >= n {
			if e != (HistoryEntry{}) {
				return fmt.Errorf("history[%d] follows an unused place", i)
			}
			continue
		}
		switch {
		case e.First == 0:
			return fmt.Errorf("history[%d] starts at generation 0", i)
		case e.First > e.Last:
			return fmt.Errorf("history[%d] covers generations %d to %d", i, e.First, e.Last)
		case e.First <= last:
			return fmt.Errorf("history[%d] starts at generation %d, not above %d where the one before ends", i, e.First, last)
		case e.Survivor == 0:
			return fmt.Errorf("history[%d] has no survivor", i)
		}
		last = e.Last
	}
	return nil
}

// I4
func checkPositions(r Record) error {
	half := func(p Position) bool { return (p.Index == 0) != (p.Term == 0) }
	for _, p := range []struct {
		name string
		pos  Position
	}{{"claim_end", r.ClaimEnd}, {"fork", r.Fork}, {"confirmed", r.Confirmed}} {
		if half(p.pos) {
			return fmt.Errorf("%s has index %d with term %d: both or neither", p.name, p.pos.Index, p.pos.Term)
		}
	}
	for i, e := range r.History {
		if half(e.Fork) {
			return fmt.Errorf("history[%d].fork has index %d with term %d: both or neither", i, e.Fork.Index, e.Fork.Term)
		}
	}
	if r.Confirmed == (Position{}) && r.ConfirmedAt != 0 {
		return fmt.Errorf("confirmed_at without confirmed")
	}
	return nil
}

// I5
func checkNotes(r Record) error {
	switch {
	case r.WholeGeneration == 0 && (r.WholeMembers != [2]uint64{} || r.WholeAt != 0):
		return fmt.Errorf("whole has details but no generation")
	case r.WholeGeneration > r.Generation:
		return fmt.Errorf("whole is of generation %d, above the record's %d", r.WholeGeneration, r.Generation)
	case r.WholeGeneration != 0 && (r.WholeMembers[0] == 0 || r.WholeMembers[1] == 0 || r.WholeMembers[0] == r.WholeMembers[1]):
		return fmt.Errorf("whole does not name two members: %s and %s", FormatID(r.WholeMembers[0]), FormatID(r.WholeMembers[1]))
	case r.MarkGeneration == 0 && r.MarkIndex != 0:
		return fmt.Errorf("mark has an index but no generation")
	case r.MarkGeneration != 0 && r.MarkIndex == 0:
		return fmt.Errorf("mark has a generation but no index")
	case r.MarkGeneration > r.Generation:
		return fmt.Errorf("mark is of generation %d, above the record's %d", r.MarkGeneration, r.Generation)
	}
	return nil
}

// I6
func checkTimes(r Record) error {
	bad := func(ms int64) bool { return ms < 0 || ms > maxTime }
	for _, t := range []struct {
		name string
		ms   int64
	}{
		{"created_at", r.CreatedAt}, {"claimed_at", r.ClaimedAt}, {"written_at", r.WrittenAt},
		{"confirmed_at", r.ConfirmedAt}, {"whole.at", r.WholeAt},
	} {
		if bad(t.ms) {
			return fmt.Errorf("%s is %d ms, outside 1970 to 9999", t.name, t.ms)
		}
	}
	for i, e := range r.History {
		if bad(e.At) {
			return fmt.Errorf("history[%d].at is %d ms, outside 1970 to 9999", i, e.At)
		}
	}
	return nil
}

// I7
func checkText(r Record) error {
	if !utf8.ValidString(r.Survivor.Name) {
		return fmt.Errorf("survivor's name is not UTF-8")
	}
	if !utf8.ValidString(r.Reason) {
		return fmt.Errorf("reason is not UTF-8")
	}
	for i, e := range r.History {
		if !utf8.ValidString(e.By) {
			return fmt.Errorf("history[%d].by is not UTF-8", i)
		}
	}
	return nil
}

// I8
func checkExtra(r Record) error {
	if err := canonicalExtra(r.Extra, recordFields); err != nil {
		return fmt.Errorf("extra: %w", err)
	}
	for i, e := range r.History {
		if err := canonicalExtra(e.Extra, entryFields); err != nil {
			return fmt.Errorf("history[%d].extra: %w", i, err)
		}
	}
	return nil
}

func canonicalExtra(extra string, known map[string]bool) error {
	if extra == "" {
		return nil
	}
	n, err := parseJSON([]byte(extra))
	if err != nil {
		return err
	}
	if n.kind != kindObject || len(n.fields) == 0 {
		return fmt.Errorf("not an object with fields")
	}
	for _, f := range n.fields {
		if known[f.name] {
			return fmt.Errorf("field %q is a known one", f.name)
		}
	}
	if c := string(appendCanonical(nil, n)); c != extra {
		return fmt.Errorf("not canonical: want %.200s", c)
	}
	return nil
}

// notes is the room for what later swaps add without fitting the record again: confirmation, whole note and mark.
const notes = 400

// Fit returns r with the texts that are for people only, the reason, the
// survivor's name and who forced a claim, made valid UTF-8 and cut to MaxReason, MaxName and MaxBy
// bytes; the last is kept of the newest claims that have room. A fitted record without Extra and with
// numbers below 10^16 always encodes.
func Fit(r Record) Record {
	r.Reason = fitText(r.Reason, MaxReason)
	r.Survivor.Name = fitText(r.Survivor.Name, MaxName)
	var by [HistoryLen]string
	for i := range r.History {
		by[i], r.History[i].By = r.History[i].By, ""
	}
	room := MaxSize - notes - len(appendRecord(r))
	for i := HistoryLen - 1; i >= 0; i-- { // the newest first
		by := fitText(by[i], MaxBy)
		if room -= len(appendString(nil, by)) + len(`"by":,`); by != "" && room >= 0 {
			r.History[i].By = by
		}
	}
	return r
}

func fitText(s string, limit int) string {
	s = strings.ToValidUTF8(s, "?")
	s = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c == 0x2028 || c == 0x2029 {
			return ' ' // would cost six bytes each when escaped
		}
		return c
	}, s)
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") // not through the middle of a rune
	}
	for len(appendString(nil, s))-len(`""`) > limit { // quotes and backslashes are escaped
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}
