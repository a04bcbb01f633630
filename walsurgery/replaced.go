package walsurgery

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const replacedInfix = ".before-"

// replacedLabel is what setAside puts after the infix: the member ID that the log carries, or "leftover"; a number where that existed.
var replacedLabel = regexp.MustCompile(`^([0-9a-f]{1,16}|leftover)(\.[0-9]+)?$`)

// Replaced returns the logs that RewriteID and ApplyStaged set aside beside walDir, oldest first. A directory that is merely called
// alike is not one of them: the member ID in a log's name is the one that it carries.
func Replaced(walDir string) ([]string, error) {
	walDir = filepath.Clean(walDir)
	names, err := beside(walDir, replacedInfix)
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		m := replacedLabel.FindStringSubmatch(strings.TrimPrefix(filepath.Base(name), filepath.Base(walDir)+replacedInfix))
		if m == nil {
			return true
		}
		if m[1] == "leftover" {
			return false
		}
		md, err := ReadMetadata(name)
		return err != nil || strconv.FormatUint(md.MemberID, 16) != m[1]
	})
	changed := func(name string) int64 {
		if st, err := os.Lstat(name); err == nil {
			return st.ModTime().UnixNano()
		}
		return 0
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(changed(a), changed(b)) })
	return names, nil
}

// ofLog is what can be in the directory of a log: segments, what etcd's code preallocates, and copies of a segment whose torn end was
// cut off.
var ofLog = regexp.MustCompile(`^([0-9a-f]{16}-[0-9a-f]{16}\.wal(\.broken(\.[0-9]+)?)?|[01]\.tmp)$`)

// Discard deletes a log that Replaced has named. Where there is anything in it that is no part of a log nothing is deleted: the error
// says what.
func Discard(dir string) error {
	if err := removeFiles(dir, ofLog.MatchString); err != nil {
		return fmt.Errorf("discard a replaced WAL: %w", err)
	}
	return nil
}

// removeFiles removes dir and the files in it, if it may remove them all.
func removeFiles(dir string, may func(name string) bool) error {
	d, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range d {
		if !may(e.Name()) || !e.Type().IsRegular() {
			return fmt.Errorf("%s: %q in it is not ours: move it away", dir, e.Name())
		}
	}
	// The oldest segment, which has the ID, goes first: the rest is a copy still.
	for _, e := range d {
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return os.Remove(dir)
}
