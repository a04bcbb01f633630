package lab

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Minors are the etcd release lines that twok is built and tested for.
var Minors = []string{"3.5", "3.6", "3.7"}

// ErrNoSource: the tools have to be built and the source of twok, which pins
// them, was not found.
var ErrNoSource = errors.New("the source of twok was not found")

// Binaries are the programs of one etcd release.
type Binaries struct {
	Etcd, Etcdctl, Etcdutl string // absolute paths
	Version                string // "3.6.16"
}

// Etcd returns the binaries of the release pinned for minor ("3.6") in
// testing/tools/etcd-MINOR. It builds them with the Go toolchain at hand if the
// cache does not have them (one to three minutes), and says so on log. The cache
// is TWOK_CACHE, else the user's cache directory with "twok" added. After an
// error the cache is as before.
func Etcd(ctx context.Context, minor string, log io.Writer) (Binaries, error) {
	known := false
	for _, m := range Minors {
		known = known || m == minor
	}
	if !known {
		return Binaries{}, fmt.Errorf("etcd %q: no such release is pinned; choose one of %s", minor, strings.Join(Minors, ", "))
	}
	version, dir, err := tool{
		name:     "etcd",
		module:   "etcd-" + minor,
		pins:     "go.etcd.io/etcd/server/v3",
		programs: map[string]string{"etcd": "go.etcd.io/etcd/server/v3", "etcdctl": "go.etcd.io/etcd/etcdctl/v3", "etcdutl": "go.etcd.io/etcd/etcdutl/v3"},
		check:    []string{"etcd", "--version"},
	}.get(ctx, log)
	if err != nil {
		return Binaries{}, err
	}
	return Binaries{
		Etcd:    filepath.Join(dir, "etcd"),
		Etcdctl: filepath.Join(dir, "etcdctl"),
		Etcdutl: filepath.Join(dir, "etcdutl"),
		Version: version,
	}, nil
}

// Staticcheck returns the path of the linter pinned in testing/tools/lint, as Etcd does.
func Staticcheck(ctx context.Context, log io.Writer) (string, error) {
	_, dir, err := tool{
		name:     "staticcheck",
		module:   "lint",
		pins:     "honnef.co/go/tools",
		programs: map[string]string{"staticcheck": "honnef.co/go/tools/cmd/staticcheck"},
		check:    []string{"staticcheck", "-version"},
	}.get(ctx, log)
	return filepath.Join(dir, "staticcheck"), err
}

// Versitygw returns the path of the S3 server pinned in testing/tools/versitygw, as Etcd does.
func Versitygw(ctx context.Context, log io.Writer) (string, error) {
	_, dir, err := tool{
		name:     "versitygw",
		module:   "versitygw",
		pins:     "github.com/versity/versitygw",
		programs: map[string]string{"versitygw": "github.com/versity/versitygw/cmd/versitygw"},
		ldflags:  "-s -w -X main.Version=", // it says "git" otherwise
		check:    []string{"versitygw", "--version"},
	}.get(ctx, log)
	return filepath.Join(dir, "versitygw"), err
}

// Root is the directory with twok's source: TWOK_ROOT, else the working
// directory or the nearest one above it whose go.mod says "module twok". The
// error is ErrNoSource.
func Root() (string, error) {
	if root := os.Getenv("TWOK_ROOT"); root != "" {
		if !isRoot(root) {
			return "", fmt.Errorf("%w: TWOK_ROOT=%s has no go.mod of module twok; set it to the checkout", ErrNoSource, root)
		}
		return filepath.Abs(root)
	}
	wd, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("%w: %w; set TWOK_ROOT to the checkout", ErrNoSource, err)
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		if isRoot(dir) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%w in %s or above; run this in a checkout or set TWOK_ROOT to one", ErrNoSource, wd)
		}
	}
}

func isRoot(dir string) bool {
	data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && bytes.HasPrefix(data, []byte("module twok\n"))
}

// tool is a module of testing/tools and the programs built from it.
type tool struct {
	name     string            // the directory in the cache
	module   string            // the directory in testing/tools
	pins     string            // the required module whose version is the tool's
	programs map[string]string // file name: package
	ldflags  string            // for the linker; the version is appended
	long     bool              // minutes of work: it runs under nice, and says how far it is
	check    []string          // program and flag that must run once it is built
}

// place is where the tool is or will be, and the module it comes from.
func (t tool) place(ctx context.Context) (version, dir, src string, err error) {
	root, err := Root()
	if err != nil {
		return "", "", "", fmt.Errorf("build %s: %w", t.name, err)
	}
	src = filepath.Join(root, "testing", "tools", t.module)
	version, key, err := t.key(ctx, src)
	if err != nil {
		return "", "", "", fmt.Errorf("build %s from %s: %w", t.name, src, err)
	}
	cache, err := cacheDir(t.name)
	if err != nil {
		return "", "", "", fmt.Errorf("build %s: %w", t.name, err)
	}
	return version, filepath.Join(cache, key), src, nil
}

func (t tool) get(ctx context.Context, log io.Writer) (version, dir string, err error) {
	version, dir, src, err := t.place(ctx)
	if err != nil {
		return "", "", err
	}
	if t.complete(dir) {
		return version, dir, nil
	}
	err = install(ctx, dir, t.name+" "+version, log, func() bool { return t.complete(dir) }, func(tmp string) error {
		return t.build(ctx, src, dir, tmp, version, log)
	})
	if err != nil {
		return "", "", fmt.Errorf("build %s %s: %w", t.name, version, err)
	}
	return version, dir, nil
}

// install fills dir by way of a directory beside it, once, whoever else asks.
func install(ctx context.Context, dir, what string, log io.Writer, complete func() bool, fill func(tmp string) error) error {
	unlock, err := lockFile(ctx, dir+".lock", func() { fmt.Fprintf(log, "%s: another process builds it, waiting\n", what) })
	if err != nil {
		return err
	}
	defer unlock()
	if complete() {
		return nil
	}
	// What a killed build left; the lock says that nobody works in it.
	left, err := filepath.Glob(dir + ".tmp-*")
	if err != nil {
		return err
	}
	for _, d := range left {
		if err := os.RemoveAll(d); err != nil {
			return err
		}
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".tmp-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if err := fill(tmp); err != nil {
		return err
	}
	if _, err := os.Stat(dir); err == nil {
		// Incomplete: somebody removed a file. Move it aside, it then belongs to tmp.
		if err := os.Rename(dir, filepath.Join(tmp, "incomplete")); err != nil {
			return err
		}
	}
	if err := os.Rename(tmp, dir); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(dir, "incomplete"))
}

// key is "<version>-<hash>": the hash covers all that decides what is built.
func (t tool) key(ctx context.Context, src string) (version, key string, err error) {
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(src, name))
		if err != nil {
			return "", "", err
		}
		fmt.Fprintf(h, "%s %d\n", name, len(data))
		h.Write(data)
		if name == "go.mod" {
			version = requiredVersion(data, t.pins)
		}
	}
	if version == "" {
		return "", "", fmt.Errorf("go.mod does not require %s", t.pins)
	}
	out, err := goCommand(ctx, src, "env", "GOVERSION", "GOOS", "GOARCH").Output()
	if err != nil {
		return "", "", fmt.Errorf("ask go for its version (is Go on the PATH?): %w", err)
	}
	h.Write(out)
	return version, version + "-" + hex.EncodeToString(h.Sum(nil))[:12], nil
}

func requiredVersion(gomod []byte, module string) string {
	sc := bufio.NewScanner(bytes.NewReader(gomod))
	for sc.Scan() {
		f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(sc.Text()), "require "))
		if len(f) >= 2 && f[0] == module {
			return strings.TrimPrefix(f[1], "v")
		}
	}
	return ""
}

func (t tool) complete(dir string) bool {
	for name := range t.programs {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil || !fi.Mode().IsRegular() || fi.Size() == 0 || fi.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

// build fills tmp, which becomes dir.
func (t tool) build(ctx context.Context, src, dir, tmp, version string, log io.Writer) error {
	args := []string{"build", "-mod=readonly", "-trimpath", "-buildvcs=false"}
	if t.ldflags != "" {
		args = append(args, "-ldflags="+t.ldflags+version)
	}
	for _, name := range sortedKeys(t.programs) {
		start := time.Now()
		fmt.Fprintf(log, "building %s %s (once; kept in %s)\n", name, version, dir)
		args := append(slices.Clone(args), "-o", filepath.Join(tmp, name), t.programs[name])
		var out []byte
		var err error
		cmd := goCommand(ctx, src, args...)
		if t.long {
			out, err = t.buildLong(ctx, cmd, log)
		} else {
			out, err = cmd.CombinedOutput()
		}
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out))
		}
		fmt.Fprintf(log, "built %s %s in %.0f s\n", name, version, time.Since(start).Seconds())
	}
	out, err := exec.CommandContext(ctx, filepath.Join(tmp, t.check[0]), t.check[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("run %s: %w: %s", strings.Join(t.check, " "), err, bytes.TrimSpace(out))
	}
	if !bytes.Contains(out, []byte(version)) {
		return fmt.Errorf("%s does not say that it is %s: %s", strings.Join(t.check, " "), version, bytes.TrimSpace(out))
	}
	return nil
}

// goCommand is a go command on the tool module in dir, with the toolchain at
// hand: GOTOOLCHAIN=local makes an old one say so instead of fetching another.
func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN=local", "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0", "PWD="+dir)
	return cmd
}

// cacheDir makes and returns the cache's directory for name.
func cacheDir(name string) (string, error) {
	base := os.Getenv("TWOK_CACHE")
	if base == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find the user's cache directory: %w; set TWOK_CACHE to a writable directory", err)
		}
		base = filepath.Join(user, "twok")
	}
	base, err := filepath.Abs(base)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(base, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the cache directory: %w; set TWOK_CACHE to a writable directory", err)
	}
	return dir, nil
}

// lockFile takes the exclusive flock of path, which it creates and leaves there.
func lockFile(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the cache: %w; set TWOK_CACHE to a writable directory", err)
	}
	for first := true; ; first = false {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if first {
			waiting()
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for %s: %w", path, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
