package httpcas

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"testing"
)

// memDisk is a disk that remembers what is durable, fails its N-th operation
// and every later one (the machine is gone), and can be looked at after a crash.
type memDisk struct {
	live, durable map[string]*memFile // directory entries
	ops, failAt   int                 // failAt 0: never
	once          bool                // only the N-th operation fails
	keepWrite     bool                // the operation that fails took effect
}

type memFile struct{ data, synced []byte }

var errDisk = errors.New("input/output error")

func newMemDisk() *memDisk {
	return &memDisk{live: map[string]*memFile{}, durable: map[string]*memFile{}}
}

// op counts an operation; run says whether it takes effect.
func (d *memDisk) op() (run bool, err error) {
	d.ops++
	if d.failAt == 0 || d.ops < d.failAt || d.once && d.ops > d.failAt {
		return true, nil
	}
	return d.keepWrite && d.ops == d.failAt, errDisk
}

func (d *memDisk) create(name string) (diskFile, error) {
	run, err := d.op()
	if run {
		if f := d.live[name]; f != nil {
			f.data = nil
		} else {
			d.live[name] = &memFile{}
		}
	}
	if err != nil {
		return nil, err
	}
	return &memHandle{d, d.live[name]}, nil
}

func (d *memDisk) rename(from, to string) error {
	run, err := d.op()
	if run {
		d.live[to] = d.live[from]
		delete(d.live, from)
	}
	return err
}

func (d *memDisk) syncDir() error {
	run, err := d.op()
	if run {
		d.durable = maps.Clone(d.live)
	}
	return err
}

func (d *memDisk) read(name string) ([]byte, error) {
	f := d.live[name]
	if f == nil {
		return nil, fs.ErrNotExist
	}
	return bytes.Clone(f.data), nil
}

func (d *memDisk) list() ([]string, error) { return slices.Sorted(maps.Keys(d.live)), nil }

type memHandle struct {
	d *memDisk
	f *memFile
}

func (h *memHandle) Write(b []byte) (int, error) {
	run, err := h.d.op()
	if run {
		h.f.data = append(h.f.data, b...)
	} else {
		h.f.data = append(h.f.data, b[:len(b)/2]...)
	}
	return len(b), err
}

func (h *memHandle) Sync() error {
	run, err := h.d.op()
	if run {
		h.f.synced = bytes.Clone(h.f.data)
	}
	return err
}

func (h *memHandle) Close() error {
	_, err := h.d.op()
	return err
}

// crashed is what the next process may find: entries and contents each either
// as last synced or as last written, or the contents torn.
func (d *memDisk) crashed(entries, contents string) *memDisk {
	from := d.durable
	if entries == "written" {
		from = d.live
	}
	next := newMemDisk()
	for name, f := range from {
		data := f.synced
		switch {
		case contents == "written":
			data = f.data
		case contents == "torn" && !bytes.Equal(f.data, f.synced):
			data = f.data[:len(f.data)/2]
		}
		next.live[name] = &memFile{bytes.Clone(data), bytes.Clone(data)}
	}
	next.durable = maps.Clone(next.live)
	return next
}

// Every operation of a run of writes fails in turn, alone or for good, with and
// without having had its effect; then the machine crashes in six ways. The value
// found is the last acknowledged one or one whose write may have been applied,
// whole, and what a reader was shown is never taken back.
// Rules: P1.
func TestEveryOperationFails(t *testing.T) {
	const writes = 4
	total := 0
	for n := 1; ; n++ {
		reached := false
		for _, once := range []bool{true, false} {
			for _, keep := range []bool{true, false} {
				d := newMemDisk()
				d.failAt, d.once, d.keepWrite = n, once, keep
				what := fmt.Sprintf("operation %d fails (once %v, took effect %v)", n, once, keep)
				acked, maybe, shown := runWrites(t, what, d, writes)
				reached = reached || d.ops >= n
				for _, entries := range []string{"synced", "written"} {
					for _, contents := range []string{"synced", "written", "torn"} {
						checkAfterCrash(t, fmt.Sprintf("%s, entries %s, contents %s", what, entries, contents),
							d.crashed(entries, contents), acked, maybe, shown)
						total++
					}
				}
			}
		}
		if !reached {
			break
		}
	}
	t.Logf("%d crashes", total)
	if total < 6*4*5*writes {
		t.Errorf("only %d crashes: the test does not reach the end of the writes", total)
	}
}

// runWrites returns the last value acknowledged, those whose writes may have been
// applied, and the last value that a reader was shown.
func runWrites(t *testing.T, what string, d *memDisk, writes int) (acked string, maybe []string, shown string) {
	s := &store{disk: d}
	for i := 1; i <= writes; i++ {
		next := fmt.Sprintf("value %d, long enough to be torn", i)
		_, _, err := s.put("k", []byte(next), func(value, bool) bool { return true })
		var applied *applyError
		switch {
		case err == nil:
			acked, maybe = next, nil
		case errors.As(err, &applied):
			maybe = append(maybe, next)
		}
		v, err := s.get("k")
		switch {
		case err == nil:
			shown = string(v.data)
			if shown != acked {
				t.Errorf("%s: a reader was shown %q, acknowledged is %q", what, shown, acked)
			}
		case errors.Is(err, errNoValue) && acked != "":
			t.Errorf("%s: absent, acknowledged is %q", what, acked)
		}
		if s.usable() != nil && len(maybe) == 0 {
			t.Errorf("%s: the store gave up although nothing was in doubt", what)
		}
	}
	return acked, maybe, shown
}

func checkAfterCrash(t *testing.T, what string, d *memDisk, acked string, maybe []string, shown string) {
	t.Helper()
	s := &store{disk: d}
	found := ""
	switch v, err := s.get("k"); {
	case err == nil:
		found = string(v.data)
	case !errors.Is(err, errNoValue):
		t.Errorf("%s: %v", what, err)
		return
	}
	if found != acked && !slices.Contains(maybe, found) {
		t.Errorf("%s: found %q; acknowledged %q, in doubt %q", what, found, acked, maybe)
	}
	if shown != acked {
		t.Errorf("%s: found %q after a reader was shown %q", what, found, shown)
	}
	if _, _, err := s.put("k", []byte("after"), func(value, bool) bool { return true }); err != nil {
		t.Errorf("%s: write after the crash: %v", what, err)
	}
}
