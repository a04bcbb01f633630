package etcdproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v2"
	"golang.org/x/sys/unix"
)

// Flags are the settings of an etcd that matter here, with etcd's defaults for what was not said.
type Flags struct {
	ForceNewCluster bool // refused by A0's reasoning: it rewrites the membership at every start
	UnsafeNoFsync   bool // refused: A0, A2
	PreVote         bool // false is refused: A0

	Name            string
	DataDir, WALDir string // as etcd was told: its own mount namespace and working directory
	// PeerURLs are --initial-advertise-peer-urls, Cluster --initial-cluster: the peer URLs by member name.
	PeerURLs         []string
	Cluster          map[string][]string
	ListenClientURLs []string
	ListenPeerURLs   []string
	Heartbeat        time.Duration // --heartbeat-interval
	Election         time.Duration // --election-timeout

	// ConfigFile is the file in effect; etcd then ignores its other flags and ETCD_ variables.
	ConfigFile string
}

// The flags read here. An unknown flag's value is skipped where it can be told.
var boolFlags = map[string]bool{
	"force-new-cluster": true, "unsafe-no-fsync": true, "pre-vote": true,
	// Flags without a value that may stand before a word that is not their value are not
	// possible with Go's flag package: "--bool word" ends the parsing.
}

// settings are the raw values by flag name.
type settings map[string]string

// argSettings reads a command line as Go's flag package does: -f, --f, =value or the
// next word, the last one wins. It does not know all of etcd's flags: a value that
// follows an unknown flag is skipped unless it looks like a flag.
func argSettings(argv []string) settings {
	s := settings{}
	for i := 1; i < len(argv); i++ {
		a := argv[i]
		if len(a) < 2 || a[0] != '-' {
			continue
		}
		if a == "--" {
			break
		}
		name, value, has := strings.Cut(strings.TrimPrefix(a[1:], "-"), "=")
		if !has {
			switch {
			case boolFlags[name]:
				value = "true"
			case i+1 < len(argv) && (wanted(name) || !strings.HasPrefix(argv[i+1], "-")):
				i++
				value = argv[i]
			}
		}
		s[name] = value
	}
	return s
}

func wanted(name string) bool {
	switch name {
	case "name", "data-dir", "wal-dir", "initial-advertise-peer-urls", "initial-cluster", "listen-client-urls", "listen-peer-urls", "heartbeat-interval", "election-timeout", "config-file":
		return true
	}
	return boolFlags[name]
}

// envSettings reads ETCD_… variables (etcd pkg/flags, FlagToEnv). etcd takes an empty one as not set.
func envSettings(env []string) settings {
	s := settings{}
	for _, e := range env {
		k, v, _ := strings.Cut(e, "=")
		if k, ok := strings.CutPrefix(k, "ETCD_"); ok && v != "" {
			s[strings.ReplaceAll(strings.ToLower(k), "_", "-")] = v
		}
	}
	return s
}

// fileSettings reads a --config-file (YAML or JSON; etcd matches keys without case).
func fileSettings(b []byte) (settings, error) {
	m := map[string]any{}
	if err := yaml.Unmarshal(b, &m); err != nil {
		return nil, err
	}
	s := settings{}
	for k, v := range m {
		if k := strings.ToLower(k); v != nil && wanted(k) {
			s[k] = fmt.Sprint(v)
		}
	}
	return s, nil
}

// parseFlags puts the sources together as etcd does (etcdmain/config.go, parse): with a configuration
// file nothing else counts, else a flag wins over its variable.
func parseFlags(argv, env []string, open func(path string) ([]byte, error)) (Flags, error) {
	s := envSettings(env)
	for k, v := range argSettings(argv) {
		s[k] = v
	}
	file := s["config-file"]
	if file != "" {
		b, err := open(file)
		if err != nil {
			return Flags{}, fmt.Errorf("flags of etcd: read its --config-file %s: %w", file, err)
		}
		if s, err = fileSettings(b); err != nil {
			return Flags{}, fmt.Errorf("flags of etcd: --config-file %s: %w", file, err)
		}
	}
	f, err := s.flags()
	if err != nil {
		return Flags{}, fmt.Errorf("flags of etcd: %w", err)
	}
	f.ConfigFile = file
	return f, nil
}

func (s settings) flags() (Flags, error) {
	var errs []error
	boolean := func(name string, def bool) bool {
		v, ok := s[name]
		if !ok {
			return def
		}
		b, err := strconv.ParseBool(v)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %q is neither true nor false", name, v))
		}
		return b
	}
	millis := func(name string, def time.Duration) time.Duration {
		v, ok := s[name]
		if !ok {
			return def
		}
		n, err := strconv.ParseUint(v, 0, 32)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %q is not a number of milliseconds", name, v))
		}
		return time.Duration(n) * time.Millisecond
	}
	str := func(name, def string) string {
		if v := s[name]; v != "" {
			return v
		}
		return def
	}
	urls := func(name, def string) []string {
		return strings.Split(str(name, def), ",")
	}
	f := Flags{
		ForceNewCluster:  boolean("force-new-cluster", false),
		UnsafeNoFsync:    boolean("unsafe-no-fsync", false),
		PreVote:          boolean("pre-vote", true),
		Name:             str("name", "default"),
		WALDir:           str("wal-dir", ""),
		ListenClientURLs: urls("listen-client-urls", "http://localhost:2379"),
		ListenPeerURLs:   urls("listen-peer-urls", "http://localhost:2380"),
		Heartbeat:        millis("heartbeat-interval", 100*time.Millisecond),
		Election:         millis("election-timeout", time.Second),
	}
	f.DataDir = str("data-dir", f.Name+".etcd")
	f.PeerURLs = urls("initial-advertise-peer-urls", "http://localhost:2380")
	for _, m := range strings.Split(str("initial-cluster", ""), ",") {
		if name, url, ok := strings.Cut(strings.TrimSpace(m), "="); ok {
			if f.Cluster == nil {
				f.Cluster = map[string][]string{}
			}
			f.Cluster[name] = append(f.Cluster[name], url)
		}
	}
	return f, errors.Join(errs...)
}

// flagReads reads the flags of processes, each by one goroutine at a time. Reading the command line of a process that is
// stuck in the kernel, or a configuration file that is a pipe, may hang: those who ask again wait for the same reading, so that one
// goroutine is left behind, not one for each question.
type flagReads struct {
	mu  sync.Mutex
	out map[StartID]*flagRead
}

type flagRead struct {
	done chan struct{} // closed when f and err are set
	f    Flags
	err  error
}

// within is flagsOf with a deadline.
func (r *flagReads) within(ctx context.Context, id StartID) (Flags, error) {
	r.mu.Lock()
	x := r.out[id]
	if x == nil {
		x = &flagRead{done: make(chan struct{})}
		if r.out == nil {
			r.out = map[StartID]*flagRead{}
		}
		r.out[id] = x
		go func() {
			x.f, x.err = flagsOf(id)
			r.mu.Lock()
			delete(r.out, id)
			r.mu.Unlock()
			close(x.done)
		}()
	}
	r.mu.Unlock()
	select {
	case <-x.done:
		return x.f, x.err
	case <-ctx.Done():
		return Flags{}, fmt.Errorf("flags of etcd, process %d: %w", id.PID, context.Cause(ctx))
	}
}

// flagsOf reads the flags of a running process. ErrNotRunning: it has ended, or is about to.
func flagsOf(id StartID) (Flags, error) {
	read := func(name string) ([]string, error) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", id.PID, name))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return nil, fmt.Errorf("flags of etcd: process %d has ended: %w", id.PID, ErrNotRunning)
		}
		if err != nil {
			return nil, fmt.Errorf("flags of etcd: %w", noAccess(err))
		}
		if len(b) == 0 {
			return nil, nil
		}
		return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00"), nil
	}
	// The environment first: a process on its way out shows neither, and a command line, which no etcd is without, read
	// afterwards says that the environment was its own. Taken for empty, both would say: etcd's defaults.
	env, err := read("environ")
	if err != nil {
		return Flags{}, err
	}
	argv, err := read("cmdline")
	if err != nil {
		return Flags{}, err
	}
	if len(argv) == 0 {
		return Flags{}, fmt.Errorf("flags of etcd: process %d is ending: %w", id.PID, ErrNotRunning)
	}
	f, err := parseFlags(argv, env, func(path string) ([]byte, error) { return readIn(id.PID, path) })
	if err != nil {
		return Flags{}, err
	}
	// What was read may be a successor's.
	if _, now, err := stat(id.PID); err != nil || now != id {
		return Flags{}, fmt.Errorf("flags of etcd: process %d ended meanwhile: %w", id.PID, ErrNotRunning)
	}
	return f, nil
}

// readIn reads a file as the process sees it: its root (symbolic links stay inside) and working directory.
func readIn(pid int, path string) ([]byte, error) {
	base := fmt.Sprintf("/proc/%d/root", pid)
	if !filepath.IsAbs(path) {
		cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
		if err != nil {
			return nil, noAccess(err)
		}
		path = filepath.Join(cwd, path)
	}
	root, err := unix.Open(base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, noAccess(&os.PathError{Op: "open", Path: base, Err: err})
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, path, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return nil, noAccess(&os.PathError{Op: "openat2 (Linux 5.6)", Path: base + path, Err: err})
	}
	f := os.NewFile(uintptr(fd), base+path)
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 1<<20))
	return b, err
}

func noAccess(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w: %w", err, ErrNoAccess)
	}
	return err
}
