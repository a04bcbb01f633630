package walsurgery

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// etcd takes a frame that is longer than its file, or a zero length, for the
// end of the log, wherever it is in the last segment, and cuts off the rest. One
// flipped bit in a length, or one lost sector, thereby removes acknowledged
// entries without an error. What follows the end tells the two cases apart: a
// torn write can only leave frames that were never synced, which is one Save of
// etcd, entries and then a hard state; before further entries etcd waits for the
// sync. (wal.Save, raft.MustSync; --unsafe-no-fsync is refused, A0, A2.)

// checkBeyond looks at the last segment behind the end of the log. It returns
// ErrCorrupt if what is there was once synced, so that the end is damage.
// Meant for a log that nobody writes to.
func (s *scan) checkBeyond() error {
	seg := s.segs[len(s.segs)-1]
	rest, err := readData(seg, s.off)
	if err != nil {
		return fmt.Errorf("read WAL %s behind its end: %w", s.dir, err)
	}
	rest = append(rest, make([]byte, frameHeader)...) // the padding of the last frame
	var synced syncOrder
	for at := 0; at+frameHeader <= len(rest); {
		run := chain(rest[at:])
		if run == nil {
			at += frameHeader
			continue
		}
		for _, f := range run {
			if synced.next(f.typ) {
				return fmt.Errorf("read WAL %s: %w", s.dir, corrupt("%s: the log ends at %d, but behind it, at %d, are records that were written after a sync",
					seg.name, s.off, s.off+int64(at)))
			}
			at += len(f.raw)
		}
	}
	return nil
}

// syncOrder finds out from the order of record types whether a sync lay between.
type syncOrder struct{ entry, stateAfter, snapshot bool }

// next tells whether a record of this type can only have been written after an
// earlier one had been synced.
func (o *syncOrder) next(typ int64) bool {
	switch {
	case o.snapshot: // SaveSnapshot syncs
		return true
	case typ == recSnapshot:
		o.snapshot = true
	case typ == recEntry && o.stateAfter:
		return true
	case typ == recEntry:
		o.entry = true
	case typ == recState:
		o.stateAfter = o.entry
	}
	return false
}

// chain returns the frames at the start of b that belong together: each record's
// CRC continues the one before. One frame alone proves nothing; nil then.
func chain(b []byte) []frame {
	var run []frame
	for {
		f, ok := looseFrame(b)
		if !ok {
			break
		}
		if n := len(run); n > 0 && f.crc != crc32.Update(run[n-1].crc, castagnoli, f.data) {
			break
		}
		run = append(run, f)
		b = b[len(f.raw):]
	}
	if len(run) < 2 {
		return nil
	}
	return run
}

// looseFrame decodes what stands at the start of b if it is exactly what etcd's
// encoder would write; the CRC is not judged.
func looseFrame(b []byte) (frame, bool) {
	if len(b) < frameHeader {
		return frame{}, false
	}
	l := binary.LittleEndian.Uint64(b)
	recLen := l &^ (uint64(0xff) << 56)
	if recLen < 4 || recLen > uint64(len(b)-frameHeader) {
		return frame{}, false
	}
	f := frame{}
	if f.parse(b[frameHeader:frameHeader+recLen]) != nil || f.typ < recMetadata || f.typ > recSnapshot || f.typ == recCRC {
		return frame{}, false
	}
	head := appendFrame(make([]byte, 0, 64), f.typ, f.crc, nil, false)
	head = head[frameHeader : frameHeader+int(binary.LittleEndian.Uint64(head)&0xff)] // without padding
	if f.hasData {
		head = protowire.AppendTag(head, 3, protowire.BytesType)
		head = protowire.AppendVarint(head, uint64(len(f.data)))
	}
	pad := (8 - recLen%8) % 8
	end := frameHeader + recLen + pad
	if uint64(len(head)+len(f.data)) != recLen || !bytes.HasPrefix(b[frameHeader:], head) || end > uint64(len(b)) ||
		len(bytes.TrimLeft(b[frameHeader+recLen:end], "\x00")) > 0 || pad > 0 && l>>56 != 0x80|pad || pad == 0 && l>>56 != 0 {
		return frame{}, false
	}
	f.raw = b[:end]
	return f, true
}

// readData reads seg from off to the end of its last byte that is not zero. Holes
// and preallocated space are skipped where the file system tells.
func readData(seg segment, off int64) ([]byte, error) {
	var out []byte
	buf := make([]byte, 1<<20)
	for pos := off; pos < seg.size; {
		next, err := unix.Seek(int(seg.f.Fd()), pos, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err == nil && next > pos {
			pos = next
		}
		n, err := seg.f.ReadAt(buf[:min(int64(len(buf)), seg.size-pos)], pos)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if n == 0 {
			break
		}
		if used := len(bytes.TrimRight(buf[:n], "\x00")); used > 0 {
			if gap := pos - off - int64(len(out)); gap > 0 {
				out = append(out, make([]byte, gap)...)
			}
			out = append(out, buf[:used]...)
		}
		pos += int64(n)
	}
	return out, nil
}
