package lostwrites

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Script writes a shell script for people to review and to run: one etcdctl transaction for each key, which brings the key to where
// this history left it.
//
// Each transaction is guarded: it holds only if the key's mod revision is still the one that the comment above it tells (or,
// without Compare, the one at the fork), so nothing that the cluster wrote meanwhile is overwritten; what is refused is reported
// and counted. Keys that the other history has written since the fork are comments, unless overwrite is set. Leases are
// granted anew with their old TTL: nobody keeps them alive but who knows of them.
//
// The form: etcdctl txn reads its operations from standard input, where a key and a value in double quotes are Go strings. All
// bytes but letters, digits and harmless punctuation are written as \xHH, so that neither the shell nor etcdctl finds anything to
// interpret: NUL, newlines and quotes. "--" ends the flags, for keys that begin with a dash. No value stands on a
// command line of a process, whose length is limited.
func (l *Listing) Script(w io.Writer, overwrite bool) error {
	b := bufio.NewWriter(w)
	p := func(format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }
	p("#!/bin/sh")
	p("# What member %x of cluster %x wrote beyond entry %d, where its history", l.Member, l.Cluster, l.Fork.Index)
	p("# was overridden. Made by twok lost-writes from %s", oneLine(l.Dir))
	p("# Read it before you run it. It needs etcdctl 3.5 or later; where and as whom it writes comes from etcdctl's own")
	p("# environment: ETCDCTL_ENDPOINTS, ETCDCTL_CACERT, ETCDCTL_CERT, ETCDCTL_KEY, ETCDCTL_USER.")
	p("# Exit codes: 0 all done, 3 some keys were written meanwhile and left as they are, 1 etcdctl failed.")
	for _, n := range l.Notes {
		p("# NOTE: %s", oneLine(n))
	}
	if err := b.Flush(); err != nil {
		return err
	}
	if _, err := b.WriteString(prelude); err != nil {
		return err
	}
	leases := map[int64]string{}
	for _, le := range l.Leases {
		if le.TTL <= 0 {
			continue
		}
		hash := "#" // for lines that are comments themselves
		for _, k := range l.Keys {
			if k.Lost.Exists && k.Lost.Lease == le.ID && k.replayed(overwrite) {
				hash = ""
			}
		}
		name := fmt.Sprintf("lease_%016x", uint64(le.ID))
		leases[le.ID] = name
		p("# Lease %016x had a TTL of %d s. Its keys vanish again unless somebody keeps the new one alive.", uint64(le.ID), le.TTL)
		p("%s%s=$(grant %d) || exit 1", hash, name, le.TTL)
		p("")
	}
	for i := range l.Keys {
		if err := l.line(b, &l.Keys[i], leases, overwrite); err != nil {
			return err
		}
	}
	for _, u := range l.Unknown {
		p("# NOT REPLAYED, its result is not known (compacted): entry %d, %s", u.Index, oneLine(u.What))
	}
	for _, e := range l.Events {
		if e.Kind == "auth" {
			p("# NOT REPLAYED: entry %d, auth, %s", e.Index, oneLine(e.Detail))
		}
	}
	p("finish")
	return b.Flush()
}

const prelude = `
set -u
ETCDCTL_API=3
export ETCDCTL_API
written=0
skipped=0

# write COMPARE OPERATION: in one transaction.
write() {
	reply=$(printf '%s\n\n%s\n\n\n' "$1" "$2" | "${ETCDCTL:-etcdctl}" --write-out=simple txn) || {
		printf 'failed: %.200s\n%d keys were written before\n' "$2" "$written" >&2
		exit 1
	}
	case $reply in
	SUCCESS*) written=$((written + 1)) ;;
	*)
		skipped=$((skipped + 1))
		printf 'left as it is, written meanwhile: %.200s\n' "$2" >&2
		;;
	esac
}

# grant TTL: prints the ID of a new lease.
grant() {
	reply=$("${ETCDCTL:-etcdctl}" --write-out=simple lease grant "$1") || exit 1
	reply=${reply#lease }
	printf '%s' "${reply%% *}"
}

finish() {
	printf '%d keys written, %d left as they are\n' "$written" "$skipped"
	[ "$skipped" -eq 0 ] || exit 3
	exit 0
}

`

// replayed says whether the script writes the key.
func (k *Key) replayed(overwrite bool) bool {
	return !k.Internal && k.Status != Same && (k.Status != Superseded || overwrite)
}

func (l *Listing) line(b *bufio.Writer, k *Key, leases map[int64]string, overwrite bool) error {
	p := func(format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }
	p("# %s, revision %d, %s%s", Show(k.Key, 100), k.Revision, k.Certainty, map[bool]string{true: ", may predate the fork"}[k.Perhaps])
	if k.Presumed {
		p("#   deleted later, at a revision that was compacted")
	}
	was := "at the fork: not known (compacted)"
	if k.AtFork.Known {
		s, err := l.describeState(k.AtFork)
		if err != nil {
			return err
		}
		was = "at the fork: " + s
	}
	p("#   %s", was)
	if k.Now != nil {
		now := "no such key"
		if k.Now.Exists {
			now = fmt.Sprintf("mod revision %d, %s", k.Now.Mod, showPart(k.Now.Value, k.Now.Len))
		}
		word := map[Status]string{
			Lost: "not written since the fork", Same: "the same",
			Superseded: "CONFLICT: it differs, and the survivor's history has written the key since, or may have",
		}[k.Status]
		p("#   at the endpoints: %s: %s", now, word)
	}
	op := "del -- " + Quote(k.Key)
	if k.Lost.Exists {
		v, err := k.Lost.Value.Bytes()
		if err != nil {
			return fmt.Errorf("value of %.80q: %w", k.Key, err)
		}
		lease := ""
		if k.Lost.Lease != 0 {
			name, ok := leases[k.Lost.Lease]
			switch {
			case ok:
				lease = "--lease='\"$" + name + "\"' "
			default:
				p("#   its lease %016x is not known any more: the key is written without one", uint64(k.Lost.Lease))
			}
		}
		op = "put " + lease + "-- " + Quote(k.Key) + " " + Quote(v)
	}
	line := fmt.Sprintf("write 'mod(%s) %s' '%s'", Quote(k.Key), l.guard(k), op)
	switch {
	case k.Internal:
		p("#   twok's own, not replayed")
	case k.Status == Same:
		p("#   nothing to do")
	case !k.replayed(overwrite):
		p("#   to overwrite it take away the next line's #")
		p("#%s", line)
	default:
		p("%s", line)
	}
	p("")
	return nil
}

// guard is what the key's mod revision must be.
func (l *Listing) guard(k *Key) string {
	switch {
	case k.Now != nil:
		return fmt.Sprintf(`= "%d"`, k.Now.Mod)
	case k.First > l.HighRevision && k.AtFork.Known:
		return fmt.Sprintf(`= "%d"`, k.AtFork.Mod)
	}
	return fmt.Sprintf(`< "%d"`, l.HighRevision+1)
}

func (l *Listing) describeState(s State) (string, error) {
	if !s.Exists {
		return "no such key", nil
	}
	v, err := s.Value.Bytes()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("mod revision %d, %s", s.Mod, showPart(v, len(v))), nil
}

func showPart(v []byte, n int) string {
	if n <= 60 {
		return strconv.Quote(string(v))
	}
	return fmt.Sprintf("%s… (%d bytes)", strconv.Quote(string(v[:60])), n)
}

// Show quotes bytes for people, on one line, up to n of them.
func Show(b []byte, n int) string {
	if len(b) <= n {
		return strconv.Quote(string(b))
	}
	return fmt.Sprintf("%s… (%d bytes)", strconv.Quote(string(b[:n])), len(b))
}

// Quote writes bytes as a Go string within double quotes that holds no quote, backslash but its own, or
// character beyond printable ASCII: it may stand within single quotes of a shell.
func Quote(b []byte) string {
	var s strings.Builder
	s.Grow(len(b) + 2)
	s.WriteByte('"')
	for _, c := range b {
		if c >= ' ' && c <= '~' && c != '"' && c != '\\' && c != '\'' {
			s.WriteByte(c)
		} else {
			fmt.Fprintf(&s, `\x%02x`, c)
		}
	}
	s.WriteByte('"')
	return s.String()
}

// oneLine keeps text within a comment.
func oneLine(s string) string {
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}
