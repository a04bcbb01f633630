package member

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// tree reads the buckets of a bbolt file page by page and trusts none of them: bbolt's
// own cursor follows a page that points back to an ancestor until memory is used up, which ends the
// process. bbolt opens the file and chooses the metadata page; the rest is this:
//
//	page     id u64, flags u16 (1 branch, 2 leaf), count u16, overflow u32; then count elements
//	branch   pos u32 (from the element to its key), key size u32, page u64
//	leaf     flags u32 (1: a bucket), pos u32, key size u32, value size u32; the value follows the key
//	bucket   root page u64 (0: one leaf page follows in the value), sequence u64
//
// (bbolt internal/common/page.go, bucket.go; the same from 1.3 to 1.5; native byte order.)
type tree struct {
	r        io.ReaderAt
	pageSize int64
	pages    uint64 // high water mark: pages from here on are not in use
	root     uint64
	left     uint64 // visits of pages that are still allowed
}

const (
	flagBranch, flagLeaf = 1, 2
	headerLen            = 16
	elementLen           = 16
	bucketFlag           = 1
	maxDepth             = 32      // 2^32 pages even with two children each
	maxValue             = 1 << 30 // far above etcd's largest request
)

// newTree is the tree of tx. The file has size bytes.
func newTree(tx *bbolt.Tx, r io.ReaderAt, size int64) (*tree, error) {
	t := &tree{r: r, pageSize: int64(tx.DB().Info().PageSize), root: uint64(tx.Cursor().Bucket().Root())}
	if tx.Size() > size || tx.Size() < 0 {
		return nil, fmt.Errorf("the file has %d bytes, its pages need %d: it was cut off", size, tx.Size())
	}
	t.pages = uint64(tx.Size() / t.pageSize)
	t.left = 8 * t.pages // each bucket is found by a walk of its own
	return t, nil
}

// region is a page with its overflow pages, or the page in an inline bucket's value.
type region struct {
	r     io.ReaderAt
	off   int64 // in r
	len   int64
	first []byte // its beginning, read already
	leaf  bool
	count int64
}

// at reads n bytes from off on.
func (g *region) at(off, n int64) ([]byte, error) {
	if off < 0 || n < 0 || off > g.len || n > g.len-off || n > maxValue {
		return nil, fmt.Errorf("%d bytes at %d of a page of %d", n, off, g.len)
	}
	if off+n <= int64(len(g.first)) {
		return g.first[off : off+n : off+n], nil
	}
	b := make([]byte, n)
	if _, err := g.r.ReadAt(b, g.off+off); err != nil {
		return nil, err
	}
	return b, nil
}

func (t *tree) page(id uint64) (*region, error) {
	if id < 2 || id >= t.pages {
		return nil, fmt.Errorf("page %d of %d", id, t.pages)
	}
	if t.left == 0 {
		return nil, errors.New("more pages than there are: they point in circles")
	}
	t.left--
	g := &region{r: t.r, off: int64(id) * t.pageSize, len: t.pageSize}
	first, err := g.at(0, t.pageSize)
	if err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	g.first = first
	if own := binary.NativeEndian.Uint64(first); own != id {
		return nil, fmt.Errorf("page %d calls itself %d", id, own)
	}
	overflow := uint64(binary.NativeEndian.Uint32(first[12:]))
	if overflow >= t.pages-id {
		return nil, fmt.Errorf("page %d has %d overflow pages, of %d in all", id, overflow, t.pages)
	}
	g.len *= int64(overflow) + 1
	if err := g.head(); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	return g, nil
}

// head reads flags and count.
func (g *region) head() error {
	b, err := g.at(0, headerLen)
	if err != nil {
		return err
	}
	flags := binary.NativeEndian.Uint16(b[8:])
	g.leaf, g.count = flags == flagLeaf, int64(binary.NativeEndian.Uint16(b[10:]))
	switch {
	case flags != flagLeaf && flags != flagBranch:
		return fmt.Errorf("flags %x", flags)
	case headerLen+g.count*elementLen > g.len:
		return fmt.Errorf("%d elements in %d bytes", g.count, g.len)
	case g.count == 0 && !g.leaf:
		return errors.New("a branch without a child")
	}
	return nil
}

// element is one of a leaf page.
type element struct {
	key       []byte
	bucket    bool
	valueSize int64
	g         *region
	valueOff  int64
}

// head is the value's beginning, up to n bytes of it.
func (e element) head(n int64) ([]byte, error) { return e.g.at(e.valueOff, min(n, e.valueSize)) }

// value is all of it.
func (e element) value() ([]byte, error) { return e.g.at(e.valueOff, e.valueSize) }

// leafElement checks that key and value lie in the page.
func (g *region) leafElement(i int64) (element, error) {
	off := headerLen + i*elementLen
	b, err := g.at(off, elementLen)
	if err != nil {
		return element{}, err
	}
	u := binary.NativeEndian.Uint32
	key, keyLen, valueLen := off+int64(u(b[4:])), int64(u(b[8:])), int64(u(b[12:]))
	e := element{bucket: u(b)&bucketFlag != 0, g: g, valueOff: key + keyLen, valueSize: valueLen}
	if e.valueOff+valueLen > g.len {
		return e, fmt.Errorf("element %d ends at %d of %d", i, e.valueOff+valueLen, g.len)
	}
	e.key, err = g.at(key, keyLen)
	return e, err
}

// walk visits the elements below page g, the last one first if back is set, until
// visit says stop.
func (t *tree) walk(g *region, back bool, depth int, visit func(element) (stop bool, err error)) (stop bool, err error) {
	if depth > maxDepth {
		return false, fmt.Errorf("more than %d levels: pages point in circles", maxDepth)
	}
	for n := range g.count {
		i := n
		if back {
			i = g.count - 1 - n
		}
		if g.leaf {
			var e element
			if e, err = g.leafElement(i); err == nil {
				stop, err = visit(e)
			}
		} else {
			var b []byte
			var child *region
			if b, err = g.at(headerLen+i*elementLen+8, 8); err == nil {
				child, err = t.page(binary.NativeEndian.Uint64(b))
			}
			if err == nil {
				stop, err = t.walk(child, back, depth+1, visit)
			}
		}
		if stop || err != nil {
			return stop, err
		}
	}
	return false, nil
}

// bucket is the root of a bucket; an error if there is none.
func (t *tree) bucket(name string) (*region, error) {
	root, err := t.page(t.root)
	if err != nil {
		return nil, err
	}
	var found *region
	_, err = t.walk(root, false, 1, func(e element) (bool, error) {
		if !e.bucket || string(e.key) != name {
			return false, nil
		}
		b, err := e.head(headerLen)
		if err != nil || len(b) < headerLen {
			return false, fmt.Errorf("a head of %d bytes: %w", len(b), err)
		}
		if id := binary.NativeEndian.Uint64(b); id != 0 {
			found, err = t.page(id)
			return true, err
		}
		if b, err = e.value(); err != nil {
			return false, err
		}
		found = &region{first: b[headerLen:], len: int64(len(b)) - headerLen}
		if err := found.head(); err != nil {
			return false, err
		}
		if !found.leaf {
			return false, errors.New("an inline bucket that is no leaf")
		}
		return true, nil
	})
	if err == nil && found == nil {
		err = errors.New("there is none")
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", name, err)
	}
	return found, nil
}

// each visits the elements of a bucket.
func (t *tree) each(name string, back bool, visit func(element) (stop bool, err error)) error {
	g, err := t.bucket(name)
	if err != nil {
		return err
	}
	if _, err := t.walk(g, back, 1, visit); err != nil {
		return fmt.Errorf("bucket %s: %w", name, err)
	}
	return nil
}

// lockedFile reads the locked descriptor at an offset.
type lockedFile struct{ l *Lock }

func (f lockedFile) ReadAt(b []byte, off int64) (int, error) {
	f.l.mu.Lock()
	defer f.l.mu.Unlock()
	n := 0
	for n < len(b) {
		m, err := unix.Pread(f.l.fd, b[n:], off+int64(n))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return n, fmt.Errorf("read %s: %w", f.l.path, err)
		}
		if m == 0 {
			return n, io.ErrUnexpectedEOF
		}
		n += m
	}
	return n, nil
}

func (f lockedFile) size() (int64, error) {
	f.l.mu.Lock()
	defer f.l.mu.Unlock()
	var st unix.Stat_t
	if err := unix.Fstat(f.l.fd, &st); err != nil {
		return 0, fmt.Errorf("size of %s: %w", f.l.path, err)
	}
	return st.Size, nil
}
