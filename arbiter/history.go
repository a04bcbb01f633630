package arbiter

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
)

// HistoryCount is how many places of History are used.
func (r Record) HistoryCount() int {
	for i, e := range r.History {
		if e == (HistoryEntry{}) {
			return i
		}
	}
	return HistoryLen
}

// Newest returns the newest claim in History; false if there was none.
func (r Record) Newest() (HistoryEntry, bool) {
	n := r.HistoryCount()
	if n == 0 {
		return HistoryEntry{}, false
	}
	return r.History[n-1], true
}

// EntryOf returns the entry of History that covers a generation; false if the
// history has forgotten it, skipped it (P17) or never had it.
func (r Record) EntryOf(generation uint64) (HistoryEntry, bool) {
	for _, e := range r.History[:r.HistoryCount()] {
		if e.First <= generation && generation <= e.Last {
			return e, true
		}
	}
	return HistoryEntry{}, false
}

// Names says whether the record names this member as the survivor: by ID alone (F17).
func (r Record) Names(memberID uint64) bool {
	return memberID != 0 && r.Survivor.ID == memberID
}

// FormatID writes a member or cluster ID in 16 hex digits.
func FormatID(id uint64) string { return fmt.Sprintf("%016x", id) }

// ParseID reads what FormatID wrote, and nothing else.
func ParseID(s string) (uint64, error) {
	id, err := strconv.ParseUint(s, 16, 64)
	if err != nil || FormatID(id) != s {
		return 0, fmt.Errorf("%.40q is not an ID of 16 lower-case hex digits", s)
	}
	return id, nil
}

// NewID returns a fresh record ID (P3): 128 random bits in hex.
func NewID() string { return random128() }

// NewNonce returns a fresh nonce for one swap (P1): 128 random bits in hex.
func NewNonce() string { return random128() }

func random128() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: it ends the program instead (crypto/rand)
	return hex.EncodeToString(b[:])
}
