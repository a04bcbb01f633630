package walsurgery

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/wal"

	"twok/internal/failpoint"
)

const stepCreated = "wal/create/created" // the empty WAL stands under its name

var _ = failpoint.Declare(stepCreated)

// reserve is what an append may need besides the log: wal.Open preallocates one
// segment of 64 MB, and the append may fill one and begin another (P7).
const reserve = 128 << 20

// ReadMetadata reads whose log walDir holds: the first two records of the
// oldest segment, verified by their CRC. It changes nothing.
//
// Errors: ErrNoWAL, ErrCorrupt, ErrUnexpectedFormat, or of the file system.
func ReadMetadata(walDir string) (Metadata, error) {
	for attempt := 1; ; attempt++ {
		m, err := readMetadata(walDir)
		if errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrNoWAL) && attempt < inspectAttempts {
			continue // purged by a running etcd since the directory was read
		}
		return m, err
	}
}

func readMetadata(walDir string) (Metadata, error) {
	segs, err := segmentNames(walDir)
	if err != nil {
		return Metadata{}, err
	}
	s := &scan{dir: walDir}
	if err := s.open(segs[0]); err != nil {
		return Metadata{}, err
	}
	defer s.close()
	seg := s.segs[0]
	r := newFrameReader(io.NewSectionReader(seg.f, 0, seg.size), seg.name, seg.size, 0, 0, false)
	for {
		f, err := r.next()
		if errors.Is(err, io.EOF) || err == nil && f.typ != recCRC && f.typ != recMetadata {
			err = unexpected("segment %s does not begin with metadata", seg.name)
		}
		if err != nil {
			return Metadata{}, fmt.Errorf("read metadata of WAL %s: %w", walDir, err)
		}
		if f.typ == recMetadata {
			m, err := parseMetadata(f.data)
			if err != nil {
				return Metadata{}, fmt.Errorf("read metadata of WAL %s: %w", walDir, err)
			}
			return m, nil
		}
	}
}

// FreeSpace returns the bytes free for this user on walDir's file system, and
// what a claim or a rewrite may need at most: the size of the WAL and 128 MB (P7).
func FreeSpace(walDir string) (free, need uint64, err error) {
	segs, err := segmentNames(walDir)
	if err != nil {
		return 0, 0, err
	}
	need = reserve
	for _, s := range segs {
		st, err := os.Stat(filepath.Join(walDir, s.name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // purged meanwhile
		}
		if err != nil {
			return 0, 0, fmt.Errorf("size of the WAL: %w", err)
		}
		need += uint64(st.Size())
	}
	free, err = freeBytes(walDir)
	return free, need, err
}

// CheckSpace is FreeSpace as a condition: ErrNoSpace, with both figures, if less
// is free than needed.
func CheckSpace(walDir string) error {
	_, need, err := FreeSpace(walDir)
	if err != nil {
		return err
	}
	return spaceFor(walDir, need)
}

func spaceFor(dir string, need uint64) error {
	free, err := freeBytes(dir)
	if err == nil && free < need {
		err = fmt.Errorf("%s: %d MB free, %d MB needed: %w", dir, free>>20, need>>20, ErrNoSpace)
	}
	return err
}

func freeBytes(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// CreateEmpty makes a prepared log in walDir: metadata, the initial snapshot
// record of index 0 that etcd writes into every new log, and nothing else. An
// etcd started on it, without snap/db, is a member with that ID that knows
// nothing and learns everything from the leader. walDir must not exist or be
// empty; it appears complete or not at all. After an error it may be there,
// complete: a second call then returns ErrExists.
//
// Errors: ErrExists, ErrNoSpace, or of the file system.
func CreateEmpty(lg *zap.Logger, walDir string, md Metadata) (err error) {
	if md.MemberID == 0 || md.ClusterID == 0 {
		return fmt.Errorf("create WAL %s: %s: an ID is 0", walDir, md)
	}
	walDir = filepath.Clean(walDir)
	switch d, err := os.ReadDir(walDir); {
	case err == nil && len(d) > 0:
		return fmt.Errorf("create WAL %s: %w", walDir, ErrExists)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("create WAL %s: %w", walDir, err)
	}
	if err := spaceFor(filepath.Dir(walDir), reserve); err != nil {
		return err
	}
	if err := create(quiet(lg), walDir, md); err != nil {
		return err
	}
	if err := failpoint.Hit(stepCreated); err != nil {
		return err
	}
	if err := adoptOwner(walDir); err != nil {
		return err
	}
	// etcd's code syncs the segment and the directory above, not the one between.
	if err := syncDir(walDir); err != nil {
		return fmt.Errorf("create WAL %s: %w", walDir, err)
	}
	if got, err := ReadMetadata(walDir); err != nil || got != md {
		return fmt.Errorf("create WAL %s: it reads back as %s: %w", walDir, got, err)
	}
	return nil
}

func create(lg *zap.Logger, walDir string, md Metadata) (err error) {
	defer guard("create WAL", walDir, &err)
	raw, err := proto.Marshal(&etcdserverpb.Metadata{NodeID: proto.Uint64(md.MemberID), ClusterID: proto.Uint64(md.ClusterID)})
	if err != nil {
		return fmt.Errorf("create WAL %s: %w", walDir, err)
	}
	w, err := wal.Create(lg, walDir, raw)
	if err != nil {
		if errors.Is(err, unix.ENOSPC) {
			err = fmt.Errorf("%w: %w", err, ErrNoSpace)
		}
		return fmt.Errorf("create WAL %s: %w", walDir, err)
	}
	if w == nil { // wal.Create forgets its error then
		return fmt.Errorf("create WAL %s: etcd's code could not sync the directory above it, its log line says why: %w", walDir, unix.EIO)
	}
	return closeWAL(walDir, w)
}

// Exchange swaps the names a and b in one step (renameat2, RENAME_EXCHANGE) and
// syncs both parents. Both must exist. After an error of the sync, which says so,
// the exchange has happened but may not survive a power failure.
//
// Errors: ErrCannotExchange, or of the file system.
func Exchange(a, b string) error {
	op := fmt.Sprintf("exchange %s and %s", a, b)
	err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	switch {
	case errors.Is(err, unix.EXDEV):
		return fmt.Errorf("%s: %w: they are on different mounts, or one comes from a lower layer of an overlay: %w", op, err, ErrCannotExchange)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%s: %w: one of them is a mount point: mount its parent instead: %w", op, err, ErrCannotExchange)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%s: %w: the file system has no RENAME_EXCHANGE: %w", op, err, ErrCannotExchange)
	case err != nil:
		return fmt.Errorf("%s: %w", op, err)
	}
	err = syncDir(filepath.Dir(a))
	if filepath.Dir(a) != filepath.Dir(b) {
		err = errors.Join(err, syncDir(filepath.Dir(b)))
	}
	if err != nil {
		return fmt.Errorf("%s: they were exchanged, but a power failure may undo it: %w", op, err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

// adoptOwner gives walDir and its segments to the owner of the directory above,
// if this process may do so and they belong to somebody else: an agent that runs
// as root must not leave files that etcd cannot open.
func adoptOwner(walDir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	uid, gid, err := owner(filepath.Dir(filepath.Clean(walDir)))
	if err != nil {
		return err
	}
	if u, g, err := owner(walDir); err == nil && u != 0 {
		uid, gid = u, g // a WAL directory of its own
	}
	names := []string{walDir}
	d, err := os.ReadDir(walDir)
	if err != nil {
		return fmt.Errorf("owner of the WAL: %w", err)
	}
	for _, e := range d {
		names = append(names, filepath.Join(walDir, e.Name()))
	}
	for _, n := range names {
		u, g, err := owner(n)
		if err == nil && (u != uid || g != gid) {
			err = os.Chown(n, uid, gid)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // etcd's preallocated file may have gone
			return fmt.Errorf("owner of the WAL: %w", err)
		}
	}
	return nil
}

func owner(name string) (uid, gid int, err error) {
	st, err := os.Stat(name)
	if err != nil {
		return 0, 0, err
	}
	sys := st.Sys().(*syscall.Stat_t)
	return int(sys.Uid), int(sys.Gid), nil
}
