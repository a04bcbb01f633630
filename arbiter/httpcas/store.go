package httpcas

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// The directory of a Server:
//
//	lock      flock of the serving process; holds its PID, for people
//	v.KEY     the value of a key, "/" written as "%2F"
//	t.KEY     an unfinished write; never read
//
// A value file is one line, then the value:
//
//	twok-arbiter-value 1 TAG LENGTH SHA256 KEY\n
const (
	fileMagic   = "twok-arbiter-value 1"
	valuePrefix = "v."
	tempPrefix  = "t."
	lockName    = "lock"
	maxKey      = 180 // bytes; leaves room for the escapes in 255
)

var (
	errNoValue  = errors.New("no value")
	errConflict = errors.New("precondition failed")
	errClosed   = errors.New("the arbiter is shutting down")
)

// applyError says that a write may have reached the disk (S8).
type applyError struct{ err error }

func (e *applyError) Error() string { return e.err.Error() }
func (e *applyError) Unwrap() error { return e.err }

// store is the keys and files below the HTTP of Server. All methods are safe
// for concurrent use.
type store struct {
	disk    disk
	stripes [64]sync.RWMutex // by key: held while a value is read or replaced
	state   atomic.Pointer[error]
}

type value struct {
	tag  string // without quotes
	data []byte
}

// checkKey is S5.
func checkKey(key string) error {
	if key == "" {
		return errors.New("the path names no key; use one like /my-pair")
	}
	if len(key) > maxKey {
		return fmt.Errorf("the key has %d bytes, at most %d", len(key), maxKey)
	}
	for _, segment := range strings.Split(key, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return fmt.Errorf("the key %q has the segment %q", key, segment)
		}
		for _, c := range []byte(segment) {
			switch {
			case '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '-', c == '_', c == '.', c == '~':
			default:
				return fmt.Errorf("the key %q has the character %q; allowed are letters, digits, '-', '_', '.', '~' and '/'", key, c)
			}
		}
	}
	return nil
}

func fileName(prefix, key string) string { return prefix + strings.ReplaceAll(key, "/", "%2F") }

func (s *store) stripe(key string) *sync.RWMutex {
	h := fnv.New32a()
	h.Write([]byte(key))
	return &s.stripes[h.Sum32()%uint32(len(s.stripes))]
}

// usable returns why the store serves nothing any more, if so.
func (s *store) usable() error {
	if e := s.state.Load(); e != nil {
		return *e
	}
	return nil
}

// get returns the value of a key; errNoValue if there is none.
func (s *store) get(key string) (value, error) {
	mu := s.stripe(key)
	mu.RLock()
	defer mu.RUnlock()
	if err := s.usable(); err != nil {
		return value{}, err
	}
	return s.load(key)
}

func (s *store) load(key string) (value, error) {
	data, err := s.disk.read(fileName(valuePrefix, key))
	if errors.Is(err, fs.ErrNotExist) {
		return value{}, errNoValue
	}
	if err != nil {
		return value{}, err
	}
	v, err := decodeFile(key, data)
	if err != nil {
		return value{}, fmt.Errorf("the file %s is damaged: %w; set it aside or repair it, nothing overwrites it", fileName(valuePrefix, key), err)
	}
	return v, nil
}

// put replaces the value if allowed says so, and returns the new one. After
// errConflict and every error but applyError nothing was and will be written.
func (s *store) put(key string, data []byte, allowed func(current value, exists bool) bool) (next value, created bool, err error) {
	mu := s.stripe(key)
	mu.Lock()
	defer mu.Unlock()
	if err := s.usable(); err != nil {
		return value{}, false, err
	}
	current, err := s.load(key)
	exists := !errors.Is(err, errNoValue)
	if err != nil && exists {
		return value{}, false, err
	}
	if !allowed(current, exists) {
		return current, false, errConflict
	}
	next = value{tag: rand.Text(), data: data}
	if err := s.replace(key, next); err != nil {
		return value{}, false, err
	}
	return next, !exists, nil
}

// replace is S1 and S2: write, fsync, rename, fsync the directory.
func (s *store) replace(key string, v value) error {
	temp := fileName(tempPrefix, key)
	f, err := s.disk.create(temp)
	if err != nil {
		return err
	}
	_, err = f.Write(encodeFile(key, v))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	err = s.disk.rename(temp, fileName(valuePrefix, key))
	if err == nil {
		err = s.disk.syncDir()
	}
	if err != nil { // S8
		broken := fmt.Errorf("a write of %s failed after it may have been applied: %w; check the disk and start the arbiter again", key, err)
		s.state.CompareAndSwap(nil, &broken)
		return &applyError{broken}
	}
	return nil
}

// close waits for what is going on; everything later gets errClosed.
func (s *store) close() {
	s.state.CompareAndSwap(nil, &errClosed)
	for i := range s.stripes {
		s.stripes[i].Lock()
		defer s.stripes[i].Unlock()
	}
}

func encodeFile(key string, v value) []byte {
	sum := sha256.Sum256(v.data)
	b := fmt.Appendf(nil, "%s %s %d %s %s\n", fileMagic, v.tag, len(v.data), hex.EncodeToString(sum[:]), key)
	return append(b, v.data...)
}

func decodeFile(key string, b []byte) (value, error) {
	header, data, ok := bytes.Cut(b, []byte("\n"))
	rest, magic := strings.CutPrefix(string(header), fileMagic+" ")
	f := strings.Split(rest, " ")
	if !ok || !magic || len(f) != 4 || f[0] == "" {
		return value{}, fmt.Errorf("it does not begin with %q and four fields", fileMagic)
	}
	sum := sha256.Sum256(data)
	switch {
	case f[3] != key:
		return value{}, fmt.Errorf("it holds the key %q", f[3])
	case f[1] != strconv.Itoa(len(data)):
		return value{}, fmt.Errorf("it should hold %s bytes and holds %d", f[1], len(data))
	case f[2] != hex.EncodeToString(sum[:]):
		return value{}, errors.New("the checksum is wrong")
	}
	return value{tag: f[0], data: data}, nil
}

// scan names what a killed process left and the values that cannot be read.
func (s *store) scan() (leftovers, damaged []string, err error) {
	names, err := s.disk.list()
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		if name == lockName {
			continue
		}
		key, isValue := strings.CutPrefix(name, valuePrefix)
		key = strings.ReplaceAll(key, "%2F", "/")
		if !isValue || checkKey(key) != nil || fileName(valuePrefix, key) != name {
			leftovers = append(leftovers, name)
			continue
		}
		if _, err := s.load(key); err != nil {
			damaged = append(damaged, err.Error())
		}
	}
	return leftovers, damaged, nil
}

// lockDir creates the directory and takes its lock (S6).
func lockDir(dir string) (*os.File, error) {
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	name := filepath.Join(dir, lockName)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			pid, _ := os.ReadFile(name) // for people only
			return nil, fmt.Errorf("%w: process %s holds %s", ErrLocked, strings.TrimSpace(string(pid)), name)
		}
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("write %s: %w", name, err)
	}
	return f, nil
}

// makeDir creates dir with its parents, each durable in the one above.
func makeDir(dir string) error {
	switch fi, err := os.Stat(dir); {
	case err == nil && !fi.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	parent := filepath.Dir(dir)
	if err := makeDir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(parent)
}
