package walsurgery

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// Record types (etcd wal.MetadataType …).
const (
	recMetadata = iota + 1
	recEntry
	recState
	recCRC
	recSnapshot
)

const (
	frameHeader = 8
	sector      = 512 // the unit of a torn write (etcd wal/decoder.go minSectorSize)
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errTorn ends a segment in which a frame is incomplete in the way that etcd
// takes for a torn write. It leaves this package only as ErrCorrupt or Summary.Torn.
var errTorn = errors.New("torn write")

// frame is one frame of a segment. Its slices are valid until the next call of
// frameReader.next.
type frame struct {
	raw     []byte // header, record, padding
	typ     int64
	crc     uint32
	hasData bool
	data    []byte
	dataOff int64 // offset of data in the segment
}

// frameReader reads the frames of one segment and keeps the running CRC.
type frameReader struct {
	br   *bufio.Reader
	name string
	size int64 // of the file
	off  int64 // end of the last valid frame
	crc  uint32
	last bool // the last segment of the log: a frame may be torn
	buf  []byte
}

func newFrameReader(r io.Reader, name string, size, off int64, crc uint32, last bool) *frameReader {
	return &frameReader{br: bufio.NewReaderSize(r, 256<<10), name: name, size: size, off: off, crc: crc, last: last}
}

// next returns the next frame with its CRC verified. io.EOF is the end of the
// segment (end of file or preallocated space); errTorn and ErrCorrupt as in
// etcd's decoder (wal/decoder.go decodeRecord, isTornEntry), except that it is
// corruption where another segment follows, and in the first frame of a segment.
func (r *frameReader) next() (frame, error) {
	var h [frameHeader]byte
	if n, err := io.ReadFull(r.br, h[:]); err != nil {
		if n == 0 && errors.Is(err, io.EOF) {
			return frame{}, io.EOF
		}
		return frame{}, r.cut(err, "incomplete frame header")
	}
	l := binary.LittleEndian.Uint64(h[:])
	if l == 0 {
		return frame{}, io.EOF
	}
	recLen, pad := int64(l&^(uint64(0xff)<<56)), int64(0)
	if l>>63 == 1 {
		pad = int64(l >> 56 & 7)
	}
	if recLen > r.size-r.off-frameHeader-pad {
		return frame{}, r.cut(io.ErrUnexpectedEOF, "frame of %d bytes is longer than the rest of the file", recLen)
	}
	n := frameHeader + recLen + pad
	if int64(cap(r.buf)) < n {
		r.buf = make([]byte, n, n+n/4)
	}
	f := frame{raw: r.buf[:n]}
	copy(f.raw, h[:])
	body := f.raw[frameHeader:]
	if _, err := io.ReadFull(r.br, body); err != nil {
		return frame{}, r.cut(err, "incomplete frame of %d bytes", recLen)
	}
	if err := f.parse(body[:recLen]); err != nil {
		return frame{}, r.bad(body, "record does not decode: %v", err)
	}
	f.dataOff += r.off + frameHeader
	if f.typ == recCRC {
		// etcd: a running value of 0 belongs to a new decoder and accepts any.
		if r.crc != 0 && f.crc != r.crc {
			return frame{}, corrupt("%s at %d: crc record says %08x, the log before it %08x", r.name, r.off, f.crc, r.crc)
		}
		r.crc = f.crc
	} else {
		crc := crc32.Update(r.crc, castagnoli, f.data)
		if f.crc != crc {
			return frame{}, r.bad(body, "crc is %08x, should be %08x", f.crc, crc)
		}
		r.crc = crc
	}
	r.off += n
	return f, nil
}

// cut reports a frame that the file ends in.
func (r *frameReader) cut(cause error, format string, args ...any) error {
	if !errors.Is(cause, io.EOF) && !errors.Is(cause, io.ErrUnexpectedEOF) {
		return fmt.Errorf("read %s at %d: %w", r.name, r.off, cause)
	}
	return r.tornOr(r.last, format, args...)
}

// bad reports a frame whose content is wrong: torn if it is in the last segment
// and one of its sectors is all zero.
func (r *frameReader) bad(body []byte, format string, args ...any) error {
	return r.tornOr(r.last && hasZeroSector(body, r.off+frameHeader), format, args...)
}

// tornOr makes errTorn or ErrCorrupt. A segment gets its name after its head was
// synced (wal.cut), so that no crash tears its first frame.
func (r *frameReader) tornOr(torn bool, format string, args ...any) error {
	torn = torn && r.off > 0
	what := fmt.Sprintf("%s at %d: %s", r.name, r.off, fmt.Sprintf(format, args...))
	if torn {
		return fmt.Errorf("%s: %w", what, errTorn)
	}
	return corrupt("%s", what)
}

// hasZeroSector tells whether one of the sectors that body, at offset off of its
// file, is spread over is all zero.
func hasZeroSector(body []byte, off int64) bool {
	for len(body) > 0 {
		n := min(int(sector-off%sector), len(body))
		zero := true
		for _, b := range body[:n] {
			if b != 0 {
				zero = false
				break
			}
		}
		if zero {
			return true
		}
		body, off = body[n:], off+int64(n)
	}
	return false
}

// parse decodes a walpb.Record as protobuf does: unknown fields are skipped, the
// last of a repeated field counts.
func (f *frame) parse(b []byte) error {
	for p := 0; p < len(b); {
		num, wt, n := protowire.ConsumeTag(b[p:])
		if n < 0 {
			return protowire.ParseError(n)
		}
		p += n
		switch {
		case num == 1 && wt == protowire.VarintType:
			v, n := protowire.ConsumeVarint(b[p:])
			if n < 0 {
				return protowire.ParseError(n)
			}
			f.typ, p = int64(v), p+n
		case num == 2 && wt == protowire.VarintType:
			v, n := protowire.ConsumeVarint(b[p:])
			if n < 0 {
				return protowire.ParseError(n)
			}
			f.crc, p = uint32(v), p+n
		case num == 3 && wt == protowire.BytesType:
			v, n := protowire.ConsumeBytes(b[p:])
			if n < 0 {
				return protowire.ParseError(n)
			}
			p += n
			f.data, f.hasData, f.dataOff = v, true, int64(p-len(v))
		default:
			n := protowire.ConsumeFieldValue(num, wt, b[p:])
			if n < 0 {
				return protowire.ParseError(n)
			}
			p += n
		}
	}
	return nil
}

// appendFrame encodes a frame as etcd does (wal/encoder.go): type, crc and, where
// there is one, data, in this order.
func appendFrame(dst []byte, typ int64, crc uint32, data []byte, hasData bool) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, frameHeader)...)
	dst = protowire.AppendTag(dst, 1, protowire.VarintType)
	dst = protowire.AppendVarint(dst, uint64(typ))
	dst = protowire.AppendTag(dst, 2, protowire.VarintType)
	dst = protowire.AppendVarint(dst, uint64(crc))
	if hasData {
		dst = protowire.AppendTag(dst, 3, protowire.BytesType)
		dst = protowire.AppendBytes(dst, data)
	}
	l := uint64(len(dst) - start - frameHeader)
	if pad := (8 - l%8) % 8; pad != 0 {
		dst = append(dst, make([]byte, pad)...)
		l |= (0x80 | pad) << 56
	}
	binary.LittleEndian.PutUint64(dst[start:], l)
	return dst
}
