package fault

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// torn is a segment whose last write was cut short.
type torn struct {
	path  string
	whole []byte
	end   int // of the last frame that is whole
}

// repaired is an error if not all of the segment was copied aside, or, where it was cut, if anything else than the torn write was.
func (t torn) repaired(cut bool) error {
	copied, err := os.ReadFile(t.path + ".broken")
	if err != nil || !bytes.Equal(copied, t.whole) {
		return fmt.Errorf("the copy of the torn %s is not what it was (%v)", t.path, err)
	}
	if !cut {
		return nil
	}
	now, err := os.ReadFile(t.path)
	if err != nil || !bytes.Equal(now, t.whole[:t.end]) {
		return fmt.Errorf("%s ended with a torn write at byte %d, and has %d bytes now that differ from what was before it (%v)", t.path, t.end, len(now), err)
	}
	return nil
}

// tear puts the beginning of a frame behind the last one of a WAL, as a write leaves it that was cut short: of its sectors the first is there.
func tear(wal string) (t torn, err error) {
	segs, err := filepath.Glob(filepath.Join(wal, "*.wal"))
	if err != nil || len(segs) == 0 {
		return t, fmt.Errorf("no segment in %s (%v)", wal, err)
	}
	slices.Sort(segs)
	seg := segs[len(segs)-1]
	b, err := os.ReadFile(seg)
	if err != nil {
		return t, err
	}
	const head, size = 8, 4096
	end := 0
	for end+head <= len(b) {
		n := binary.LittleEndian.Uint64(b[end:])
		if n == 0 {
			break
		}
		end += head + int(n&(1<<56-1)) + int(n>>56&7)
	}
	if end == 0 || end+head+size > len(b) {
		return t, fmt.Errorf("%s: no room for a frame behind byte %d of %d", seg, end, len(b))
	}
	f, err := os.OpenFile(seg, os.O_WRONLY, 0)
	if err != nil {
		return t, err
	}
	defer f.Close()
	half := append(binary.LittleEndian.AppendUint64(nil, size), bytes.Repeat([]byte{7}, 100)...)
	copy(b[end:], half)
	_, err = f.WriteAt(half, int64(end))
	return torn{seg, b, end}, errors.Join(err, f.Sync())
}
