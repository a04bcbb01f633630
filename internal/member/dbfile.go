package member

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// DBFile is a database that nobody uses, such as one in a directory that was set
// aside. It is read page by page, without a lock, without bbolt and without a change,
// the access time included where the file system lets this user say so. Its methods may be
// called by several goroutines, but Each by one at a time.
type DBFile struct {
	path string
	f    *os.File
	t    *tree
}

// Ref is where a value is in the file.
type Ref struct{ Off, Len int64 }

// Element is one key of a bucket with its value, which is read when it is asked for.
type Element struct {
	// Key belongs to the visitor only during its call.
	Key []byte
	e   element
}

const (
	metaMagic   = 0xED0CDAED
	metaVersion = 2
	metaLen     = 64 // checksum included
)

// OpenDB opens a database file for reading. Errors: fs.ErrNotExist; ErrDatabase if neither of
// its two metadata pages is whole or the file is shorter than they say; or of the file system.
func OpenDB(path string) (*DBFile, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOATIME, 0)
	if errors.Is(err, unix.EPERM) { // only the owner may ask for O_NOATIME
		f, err = os.Open(path)
	}
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	d := &DBFile{path: path, f: f}
	if err := d.open(); err != nil {
		f.Close()
		return nil, d.damaged(err)
	}
	return d, nil
}

func (d *DBFile) damaged(err error) error {
	return fmt.Errorf("read database %s: %w: %w", d.path, ErrDatabase, err)
}

// meta is a metadata page as bbolt writes it (internal/common/meta.go): magic u32, version u32, page
// size u32, flags u32, root page u64, sequence u64, free list u64, high water mark u64, transaction u64, FNV-64a of all that.
type meta struct{ pageSize, root, pages, tx uint64 }

func parseMeta(b []byte) (meta, bool) {
	if len(b) < headerLen+metaLen {
		return meta{}, false
	}
	b = b[headerLen : headerLen+metaLen]
	u, w := binary.NativeEndian.Uint32, binary.NativeEndian.Uint64
	sum := fnv.New64a()
	sum.Write(b[:metaLen-8])
	m := meta{pageSize: uint64(u(b[8:])), root: w(b[16:]), pages: w(b[40:]), tx: w(b[48:])}
	return m, u(b) == metaMagic && u(b[4:]) == metaVersion && w(b[56:]) == sum.Sum64() && m.pageSize >= 512 && m.pageSize <= 1<<20
}

func (d *DBFile) open() error {
	st, err := d.f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return errors.New("it is not a file")
	}
	b := make([]byte, headerLen+metaLen)
	at := func(off int64) (meta, bool) {
		if _, err := d.f.ReadAt(b, off); err != nil {
			return meta{}, false
		}
		return parseMeta(b)
	}
	// The second one lies a page further on, and only the first says how long a page is (bbolt db.go, getPageSize).
	best, ok := at(0)
	sizes := []uint64{best.pageSize}
	if !ok {
		sizes = nil
		for s := uint64(1024); s <= 1<<24; s *= 2 {
			sizes = append(sizes, s)
		}
	}
	for _, s := range sizes {
		if m, good := at(int64(s)); good && m.pageSize == s && (!ok || m.tx > best.tx) {
			best, ok = m, true
		}
	}
	if !ok {
		return errors.New("neither metadata page is whole")
	}
	if best.pages > uint64(st.Size())/best.pageSize {
		return fmt.Errorf("the file has %d bytes, its %d pages need more: it was cut off", st.Size(), best.pages)
	}
	d.t = &tree{r: d.f, pageSize: int64(best.pageSize), pages: best.pages, root: best.root}
	return nil
}

// Close closes the file.
func (d *DBFile) Close() error { return d.f.Close() }

// Each visits the elements of a bucket in the order of their keys until visit says stop. A bucket that does not
// exist has none. The error is visit's, or ErrDatabase.
func (d *DBFile) Each(bucket string, visit func(Element) (stop bool, err error)) error {
	d.t.left = 8 * d.t.pages
	found := false
	root, err := d.t.page(d.t.root)
	if err == nil {
		_, err = d.t.walk(root, false, 1, func(e element) (bool, error) {
			found = e.bucket && string(e.key) == bucket
			return found, nil
		})
	}
	if err != nil {
		return d.damaged(fmt.Errorf("buckets: %w", err))
	}
	if !found {
		return nil
	}
	var own error
	err = d.t.each(bucket, false, func(e element) (bool, error) {
		var stop bool
		stop, own = visit(Element{Key: e.key, e: e})
		return stop || own != nil, nil
	})
	if own != nil {
		return own
	}
	if err != nil {
		return d.damaged(err)
	}
	return nil
}

// Value is the whole value; it belongs to the caller. Head is its beginning, up to n bytes.
func (e Element) Value() ([]byte, error)       { return e.e.value() }
func (e Element) Head(n int64) ([]byte, error) { return e.e.head(n) }

// Ref is where the value is, for Read; false in a bucket so small that it lies within another page's element.
func (e Element) Ref() (Ref, bool) {
	if e.e.g.r == nil {
		return Ref{}, false
	}
	return Ref{Off: e.e.g.off + e.e.valueOff, Len: e.e.valueSize}, true
}

// Read reads a value again.
func (d *DBFile) Read(r Ref) ([]byte, error) {
	b := make([]byte, r.Len)
	if _, err := d.f.ReadAt(b, r.Off); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, d.damaged(err)
	}
	return b, nil
}
