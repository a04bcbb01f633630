package walsurgery

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"

	"twok/internal/failpoint"
)

// Steps of RewriteID, each named after what has just been done.
const (
	stepRewriteBegin     = "wal/rewrite/begin"     // leftovers settled, locks taken
	stepRewriteSegment   = "wal/rewrite/segment"   // one segment of the copy written and synced
	stepRewriteStaged    = "wal/rewrite/staged"    // the copy complete, synced and verified
	stepRewriteExchanged = "wal/rewrite/exchanged" // it has the WAL's name
	stepRewriteAside     = "wal/rewrite/aside"     // the old log has its own
)

var (
	_ = failpoint.Declare(stepRewriteBegin)
	_ = failpoint.Declare(stepRewriteSegment)
	_ = failpoint.Declare(stepRewriteStaged)
	_ = failpoint.Declare(stepRewriteExchanged)
	_ = failpoint.Declare(stepRewriteAside)
)

// RewriteID gives the log in walDir to the member newID: every segment is copied
// with the metadata changed and all CRCs computed anew, into
// "<walDir>.staging-<newID>"; the copy is synced, verified and exchanged with
// walDir; the old log becomes "<walDir>.before-<old ID>" (or ….N where that
// exists), whose path is returned. Nothing but the metadata changes; a torn tail
// is not copied and stays in the old log. The caller holds the flock of
// member/snap/db and needs room for the WAL and 128 MB.
//
// A log that already belongs to newID is left alone, aside is "" unless an
// earlier call was killed before it could rename the old one. Called again after
// a kill at any step it completes; an unfinished copy is replaced.
//
// While copying, each frame is also encoded with its old content and must be
// byte-identical to the original, so that a record this code does not fully
// understand is refused instead of altered.
//
// Errors: ErrLocked, ErrNoWAL, ErrNoSpace, ErrCorrupt, ErrUnexpectedFormat,
// ErrCannotExchange; the old log is then still in place. Only an error after the
// exchange, which says so, leaves the new one there.
func RewriteID(lg *zap.Logger, walDir string, newID uint64) (aside string, err error) {
	walDir = filepath.Clean(walDir)
	defer guard("rewrite WAL", walDir, &err)
	lg = quiet(lg)
	if newID == 0 {
		return "", fmt.Errorf("rewrite WAL %s: the new member ID is 0", walDir)
	}
	if aside, err = settle(lg, walDir); err != nil {
		return "", err
	}
	old, err := ReadMetadata(walDir)
	if err != nil || old.MemberID == newID {
		return aside, err
	}
	locks, err := lockSegments(walDir)
	if err != nil {
		return "", err
	}
	defer locks.release()
	if err := CheckSpace(walDir); err != nil {
		return "", err
	}
	if err := failpoint.Hit(stepRewriteBegin); err != nil {
		return "", err
	}
	staging := stagingName(walDir, newID)
	if err := stage(walDir, staging, copier{newID: newID, step: stepRewriteSegment}); err != nil {
		return "", err
	}
	if err := failpoint.Hit(stepRewriteStaged); err != nil {
		return "", err
	}
	if aside, err = takePlace(walDir, staging, old.MemberID, stepRewriteExchanged, stepRewriteAside); err != nil {
		return aside, fmt.Errorf("rewrite WAL %s: %w", walDir, err)
	}
	lg.Info("rewrote the WAL for a new member ID", zap.String("wal", walDir),
		zap.String("old-id", strconv.FormatUint(old.MemberID, 16)), zap.String("new-id", strconv.FormatUint(newID, 16)))
	return aside, nil
}

// takePlace exchanges a finished copy with the WAL, hits the first step, and sets the old log, of that member, aside,
// whose path is returned, before the second step. Where nothing can be exchanged the copy is removed.
func takePlace(walDir, staging string, old uint64, exchanged, done string) (aside string, err error) {
	if err := Exchange(staging, walDir); err != nil {
		if errors.Is(err, ErrCannotExchange) {
			err = dropCopy(err, staging)
		}
		return "", err
	}
	if err := failpoint.Hit(exchanged); err != nil {
		return "", err
	}
	if aside, err = setAside(walDir, staging, strconv.FormatUint(old, 16)); err != nil {
		return "", fmt.Errorf("it was rewritten, but the old one could not be renamed: %w", err)
	}
	return aside, failpoint.Hit(done)
}

func stagingName(walDir string, id uint64) string {
	return walDir + ".staging-" + strconv.FormatUint(id, 16)
}

func beside(walDir, infix string) ([]string, error) {
	parent, prefix := filepath.Dir(walDir), filepath.Base(walDir)+infix
	d, err := os.ReadDir(parent)
	if err != nil {
		return nil, fmt.Errorf("look beside WAL %s: %w", walDir, err)
	}
	var names []string
	for _, e := range d {
		if e.IsDir() && strings.HasPrefix(e.Name(), prefix) {
			names = append(names, filepath.Join(parent, e.Name()))
		}
	}
	return names, nil
}

// SettleRewrite finishes what an earlier, killed RewriteID left, as the next one would: the replaced log gets its name, which is
// returned, an unfinished copy goes. It reads the WAL's metadata only, and may run beside etcd.
//
// Errors: of ReadMetadata; something foreign in the copy; of the file system.
func SettleRewrite(lg *zap.Logger, walDir string) (aside string, err error) {
	walDir = filepath.Clean(walDir)
	defer guard("settle WAL", walDir, &err)
	return settle(quiet(lg), walDir)
}

// settle finishes what an earlier, killed RewriteID left. A staging directory
// carries the ID it was made for in its name, so it says itself what it is:
// behind the exchange it holds the old log, whose ID is another one, and is set
// aside; before the exchange it is an unfinished or unused copy, and is removed.
// A copy is never mistaken for a log: its first record has the new ID, and it
// is removed only while the WAL's name does not hold that ID.
func settle(lg *zap.Logger, walDir string) (aside string, err error) {
	left, err := beside(walDir, ".staging-")
	if err != nil || len(left) == 0 {
		return "", err
	}
	cur, err := ReadMetadata(walDir)
	if err != nil {
		return "", err
	}
	for _, dir := range left {
		id, err := strconv.ParseUint(strings.TrimPrefix(filepath.Base(dir), filepath.Base(walDir)+".staging-"), 16, 64)
		if err != nil {
			continue // not ours
		}
		md, err := ReadMetadata(dir)
		unreadable := errors.Is(err, ErrNoWAL) || errors.Is(err, ErrCorrupt) || errors.Is(err, ErrUnexpectedFormat)
		switch {
		case err != nil && !unreadable:
			return "", fmt.Errorf("leftover of an earlier rewrite: %w", err)
		case err == nil && md.MemberID != id:
			if aside, err = setAside(walDir, dir, strconv.FormatUint(md.MemberID, 16)); err != nil {
				return "", err
			}
			lg.Info("set the replaced WAL aside after an interrupted rewrite", zap.String("dir", aside))
		case cur.MemberID == id:
			if aside, err = setAside(walDir, dir, "leftover"); err != nil {
				return "", err
			}
			lg.Warn("set a leftover of an interrupted rewrite aside", zap.String("dir", aside))
		default:
			if err := removeCopy(dir); err != nil {
				return "", err
			}
			lg.Info("removed the unfinished copy of an interrupted rewrite", zap.String("dir", dir))
		}
	}
	return aside, nil
}

// removeCopy removes a staging directory and in it the segments and what etcd's code preallocates,
// nothing else: anything foreign in it makes this fail.
func removeCopy(dir string) error {
	err := removeFiles(dir, func(name string) bool {
		_, ok := parseSegmentName(name)
		return ok || preallocated.MatchString(name)
	})
	if err != nil {
		return fmt.Errorf("remove the unfinished copy: %w", err)
	}
	return nil
}

// dropCopy removes an unfinished copy after err: it would take the space of a WAL.
func dropCopy(err error, staging string) error {
	if _, serr := os.Lstat(staging); errors.Is(serr, fs.ErrNotExist) {
		return err
	}
	return errors.Join(err, removeCopy(staging))
}

// setAside renames dir to "<walDir>.before-<label>" and syncs the parent.
func setAside(walDir, dir, label string) (string, error) {
	base := walDir + replacedInfix + label
	to := base
	for n := 1; ; n++ {
		_, err := os.Lstat(to)
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return "", fmt.Errorf("set the replaced WAL aside: %w", err)
		}
		to = fmt.Sprintf("%s.%d", base, n)
	}
	if err := os.Rename(dir, to); err != nil {
		return "", fmt.Errorf("set the replaced WAL aside: %w", err)
	}
	return to, syncDir(filepath.Dir(walDir))
}

// stage writes the copy and verifies it. After an error there is none, but for what stood there before.
func stage(walDir, staging string, c copier) (err error) {
	src, err := scanDir(walDir)
	if err != nil {
		return err
	}
	defer src.close()
	if err := src.checkBeyond(); err != nil {
		return err
	}
	if err := os.Mkdir(staging, 0o700); err != nil {
		return fmt.Errorf("rewrite WAL %s: %w", walDir, err)
	}
	defer func() {
		if err != nil {
			err = dropCopy(err, staging)
		}
	}()
	if err := like(staging, walDir); err != nil {
		return err
	}
	for i, seg := range src.segs {
		last := i == len(src.segs)-1
		if err := c.segment(seg, filepath.Join(walDir, seg.name), filepath.Join(staging, seg.name), last); err != nil {
			return fmt.Errorf("rewrite WAL %s: segment %s: %w", walDir, seg.name, err)
		}
		if err := failpoint.Hit(c.step); err != nil {
			return err
		}
	}
	if err := errors.Join(syncDir(staging), syncDir(filepath.Dir(staging))); err != nil {
		return err
	}
	return verifyCopy(src, staging, c.newID)
}

// copier copies frames from the old log to the new one, with a CRC for each.
type copier struct {
	newID    uint64
	raw      bool   // it is the log's own ID: frames are copied as they are
	step     string // hit after each segment
	from, to uint32 // running CRCs
	buf      []byte
	check    []byte
}

func (c *copier) segment(seg segment, from, to string, last bool) (err error) {
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileutil.PrivateFileMode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := like(to, from); err != nil {
		return err
	}
	if last { // etcd goes on in this one: keep its preallocated size
		if err := fileutil.Preallocate(f, seg.size, true); err != nil {
			return err
		}
	}
	r := newFrameReader(io.NewSectionReader(seg.f, 0, seg.size), seg.name, seg.size, 0, c.from, last)
	w := bufio.NewWriterSize(f, 256<<10)
	for {
		before := r.crc
		fr, err := r.next()
		if errors.Is(err, io.EOF) || errors.Is(err, errTorn) {
			break
		}
		if err != nil {
			return err
		}
		out, err := c.frame(fr, before)
		if err != nil {
			return fmt.Errorf("at %d: %w", r.off, err)
		}
		if _, err := w.Write(out); err != nil {
			return err
		}
	}
	c.from = r.crc
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Sync()
}

// frame returns fr with newID in it if it holds metadata, and a CRC that fits
// the copy; before is the old log's running CRC in front of it.
func (c *copier) frame(fr frame, before uint32) ([]byte, error) {
	if c.raw {
		return fr.raw, nil
	}
	c.check = appendFrame(c.check[:0], fr.typ, fr.crc, fr.data, fr.hasData)
	if !bytes.Equal(c.check, fr.raw) {
		return nil, unexpected("a record is encoded in a way that cannot be reproduced")
	}
	data := fr.data
	switch fr.typ {
	case recCRC:
		// The running value, but at the head of the log what etcd put there: 0, or
		// the end of a segment that was purged.
		if fr.crc != before {
			c.to = fr.crc
		}
	case recMetadata:
		var m etcdserverpb.Metadata
		if err := proto.Unmarshal(data, &m); err != nil {
			return nil, unexpected("metadata do not decode: %v", err)
		}
		same, err := proto.Marshal(&m)
		if err != nil || !bytes.Equal(same, data) {
			return nil, unexpected("metadata are encoded in a way that cannot be reproduced")
		}
		m.NodeID = proto.Uint64(c.newID)
		if data, err = proto.Marshal(&m); err != nil {
			return nil, err
		}
	}
	if fr.typ != recCRC {
		c.to = crc32.Update(c.to, castagnoli, data)
	}
	c.buf = appendFrame(c.buf[:0], fr.typ, c.to, data, fr.hasData)
	return c.buf, nil
}

// verifyCopy reads the copy from disk, by this package's reader and by etcd's,
// and compares it with the source: the same entries by position, kind and
// content, the same hard state and snapshot records, the same end.
func verifyCopy(src *scan, staging string, newID uint64) error {
	fail := func(what string) error {
		return fmt.Errorf("verify the copy %s: %w", staging, corrupt("%s differs", what))
	}
	dst, err := scanDir(staging)
	if err != nil {
		return fmt.Errorf("verify the copy: %w", err)
	}
	defer dst.close()
	sameSnap := func(a, b snapRecord) bool {
		return a.Position == b.Position && a.hasConf == b.hasConf && slices.Equal(a.voters, b.voters) && slices.Equal(a.learners, b.learners)
	}
	switch {
	case dst.meta != Metadata{MemberID: newID, ClusterID: src.meta.ClusterID}:
		return fail("metadata")
	case dst.torn != nil:
		return fail("the end")
	case dst.hs != src.hs:
		return fail("hard state")
	case !slices.EqualFunc(dst.snaps, src.snaps, sameSnap):
		return fail("a snapshot record")
	case len(dst.ents) != len(src.ents):
		return fail("the number of entries")
	}
	var a, b []byte
	for i, e := range src.ents {
		d := dst.ents[i]
		if e.index != d.index || e.term != d.term || e.kind != d.kind || e.n != d.n {
			return fail(fmt.Sprintf("entry %d", e.index))
		}
		a, b = slices.Grow(a[:0], int(e.n))[:e.n], slices.Grow(b[:0], int(e.n))[:e.n]
		_, err1 := src.segs[e.seg].f.ReadAt(a, e.off)
		_, err2 := dst.segs[d.seg].f.ReadAt(b, d.off)
		if err := errors.Join(err1, err2); err != nil {
			return fmt.Errorf("verify the copy %s: %w", staging, err)
		}
		if !bytes.Equal(a, b) {
			return fail(fmt.Sprintf("entry %d", e.index))
		}
	}
	snap := src.snapshot()
	hs, err := wal.Verify(quiet(nil), staging, &walpb.Snapshot{Index: proto.Uint64(snap.Index), Term: proto.Uint64(snap.Term)})
	if err != nil {
		return fmt.Errorf("verify the copy %s: etcd's reader: %w: %w", staging, err, ErrCorrupt)
	}
	if (HardState{hs.GetTerm(), hs.GetVote(), hs.GetCommit()}) != src.hs {
		return fail("the hard state that etcd's reader finds")
	}
	return nil
}

// like gives name the mode of the model, and its owner if this process may.
func like(name, model string) error {
	st, err := os.Stat(model)
	if err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		uid, gid, err := owner(model)
		if err != nil {
			return err
		}
		if err := os.Chown(name, uid, gid); err != nil {
			return err
		}
	}
	return os.Chmod(name, st.Mode().Perm())
}
