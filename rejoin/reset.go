package rejoin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"twok/internal/failpoint"
	"twok/walsurgery"
)

const (
	stepResetPrepared  = "rejoin/reset/prepared"
	stepResetExchanged = "rejoin/reset/exchanged"
	stepResetAside     = "rejoin/reset/aside"
)

var (
	_ = failpoint.Declare(stepResetPrepared)
	_ = failpoint.Declare(stepResetExchanged)
	_ = failpoint.Declare(stepResetAside)
)

const (
	prepared = "member.prepared-"
	setAside = "member.set-aside-"
)

// Reset replaces the member directory of dataDir by one that holds an empty
// prepared log for md and nothing else (P13). The old directory is kept, whole, as
// member.set-aside-<why>-<time>, whose path is returned.
//
// The caller holds the flock of the old member/snap/db, and afterwards, also after an error, ends every
// process that has that file open, before it releases the lock: an etcd that
// waits for it would go on with the old database and the new log (etcdproc.Evict).
//
// After an error before the exchange the old directory is in place and
// unchanged; after a kill at any step a second call completes, with whatever ID it
// is given. Errors: walsurgery.ErrCannotExchange (a mount point, say), or of the file system.
func Reset(lg *zap.Logger, dataDir string, md walsurgery.Metadata, why string) (aside string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("replace %s by an empty prepared member: %w", filepath.Join(dataDir, "member"), err)
		}
	}()
	if err := Settle(dataDir); err != nil {
		return "", err
	}
	memberDir := filepath.Join(dataDir, "member")
	staging := filepath.Join(dataDir, fmt.Sprintf("%s%016x", prepared, md.MemberID))
	if err := mkdirLike(memberDir, staging); err != nil {
		return "", err
	}
	for _, sub := range []string{"snap", "wal"} {
		like := filepath.Join(memberDir, sub)
		if _, err := os.Stat(like); errors.Is(err, fs.ErrNotExist) {
			like = memberDir
		}
		if err := mkdirLike(like, filepath.Join(staging, sub)); err != nil {
			return "", err
		}
	}
	if err := walsurgery.CreateEmpty(lg, filepath.Join(staging, "wal"), md); err != nil {
		return "", err
	}
	if err := ownTree(memberDir, staging); err != nil {
		return "", err
	}
	if err := failpoint.Hit(stepResetPrepared); err != nil {
		return "", err
	}
	if err := walsurgery.Exchange(staging, memberDir); err != nil {
		return "", err
	}
	if err := failpoint.Hit(stepResetExchanged); err != nil {
		return "", fmt.Errorf("after the exchange: %w", err)
	}
	aside = asideName(dataDir, why)
	if err := os.Rename(staging, aside); err != nil {
		return "", fmt.Errorf("after the exchange: %w", err)
	}
	if err := syncDir(dataDir); err != nil {
		return aside, fmt.Errorf("after the exchange: %w", err)
	}
	return aside, failpoint.Hit(stepResetAside)
}

// Settle finishes what a killed Reset left beside the member directory: a
// prepared directory that was never used is taken away, one that holds the old
// data is set aside. It changes nothing else and may be called at any time under the locks.
func Settle(dataDir string) error {
	names, err := named(dataDir, prepared)
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !ownStaging.MatchString(filepath.Base(name)) })
	for _, name := range names {
		if unused(name) {
			// It holds a metadata record that we wrote, and nothing else.
			if err := os.RemoveAll(name); err != nil {
				return err
			}
			continue
		}
		if err := os.Rename(name, asideName(dataDir, "interrupted")); err != nil {
			return err
		}
	}
	if len(names) == 0 {
		return nil
	}
	return syncDir(dataDir)
}

// ownStaging is what Reset calls the directory that it prepares; anything else that begins so is a person's.
var ownStaging = regexp.MustCompile("^" + regexp.QuoteMeta(prepared) + "[0-9a-f]{16}$")

// named are the directories in dataDir, by path, whose names begin so. (Not by a pattern: dataDir may hold any character.)
func named(dataDir, prefix string) ([]string, error) {
	d, err := os.ReadDir(dataDir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range d {
		if e.IsDir() && strings.HasPrefix(e.Name(), prefix) {
			names = append(names, filepath.Join(dataDir, e.Name()))
		}
	}
	return names, nil
}

// ReplacedDatabases are the databases, by path, in the directories that Reset put
// aside or was about to. No etcd may have them open.
func ReplacedDatabases(dataDir string) ([]string, error) {
	var dbs []string
	for _, prefix := range []string{prepared, setAside} {
		names, err := named(dataDir, prefix)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			db := filepath.Join(name, "snap", "db")
			if _, err := os.Lstat(db); !errors.Is(err, fs.ErrNotExist) {
				dbs = append(dbs, db)
			}
		}
	}
	return dbs, nil
}

// unused says whether a staging directory holds the prepared log of the ID in
// its name, or not even that, and certainly no data.
func unused(dir string) bool {
	snap, err := os.ReadDir(filepath.Join(dir, "snap"))
	if len(snap) > 0 || (err != nil && !errors.Is(err, fs.ErrNotExist)) {
		return false
	}
	wal := filepath.Join(dir, "wal")
	md, err := walsurgery.ReadMetadata(wal)
	if errors.Is(err, walsurgery.ErrNoWAL) {
		return true
	}
	if err != nil || !strings.HasSuffix(dir, fmt.Sprintf("%016x", md.MemberID)) {
		return false
	}
	log, err := walsurgery.Inspect(zap.NewNop(), wal)
	if err != nil {
		return false
	}
	defer log.Close()
	return log.Summary().Last.Index == 0
}

func asideName(dataDir, why string) string {
	base := filepath.Join(dataDir, fmt.Sprintf("%s%s-%s", setAside, why, time.Now().UTC().Format("20060102T150405Z")))
	name := base
	for i := 2; ; i++ {
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			return name
		}
		name = fmt.Sprintf("%s.%d", base, i)
	}
}

// mkdirLike makes a directory with the mode of another one; it may exist.
func mkdirLike(like, dir string) error {
	st, err := os.Stat(like)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, st.Mode().Perm()); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// ownTree gives all of dir to the owner of like: the agent may run as root beside an etcd that does not.
func ownTree(like, dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(like, &st); err != nil {
		return fmt.Errorf("owner of %s: %w", like, err)
	}
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var own unix.Stat_t
		if err := unix.Lstat(path, &own); err != nil {
			return err
		}
		if own.Uid != st.Uid || own.Gid != st.Gid {
			if err := os.Lchown(path, int(st.Uid), int(st.Gid)); err != nil {
				return err
			}
		}
		if d.IsDir() {
			return syncDir(path)
		}
		return nil
	})
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
