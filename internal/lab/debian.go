package lab

import (
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
	"runtime"
	"slices"
	"strings"
)

// Lighttpd returns the path of a script that becomes lighttpd with its modules for
// WebDAV and TLS, from the packages of the Debian that this runs on. They are unpacked
// in the cache, as Etcd is built there; nothing is installed and no root is needed.
func Lighttpd(ctx context.Context, log io.Writer) (string, error) {
	return debian{
		name: "lighttpd", packages: []string{"lighttpd", "lighttpd-mod-openssl", "lighttpd-mod-webdav"},
		args: `-m "$root/usr/lib/lighttpd"`,
	}.get(ctx, log)
}

// Nginx returns the path of a script that becomes nginx, as Lighttpd does.
func Nginx(ctx context.Context, log io.Writer) (string, error) {
	return debian{name: "nginx", packages: []string{"nginx"}}.get(ctx, log)
}

// tools are programs that a machine may lack: where they are in Debian's packages, and how they tell their version.
var tools = map[string]debian{
	"nft":    {name: "nft", packages: []string{"nftables"}},
	"ip":     {name: "ip", packages: []string{"iproute2"}, path: "bin/ip", ask: "-V"},
	"strace": {name: "strace", packages: []string{"strace"}, path: "usr/bin/strace", ask: "-V"},
}

// OnPath sees to it that this process and its children find these programs (nft, ip, strace): those that the machine lacks come
// from Debian packages, as Lighttpd does, and are put at the end of PATH.
func OnPath(ctx context.Context, log io.Writer, names ...string) error {
	for _, name := range names {
		if _, err := exec.LookPath(name); err == nil {
			continue
		}
		d, ok := tools[name]
		if !ok {
			return fmt.Errorf("no Debian package is known for %s", name)
		}
		bin, err := d.get(ctx, log)
		if err != nil {
			return err
		}
		if err := os.Setenv("PATH", os.Getenv("PATH")+string(os.PathListSeparator)+filepath.Dir(bin)); err != nil {
			return err
		}
	}
	return nil
}

// debian is a program in Debian packages.
type debian struct {
	name     string
	packages []string
	args     string // that it always gets; $root is where the packages are
	path     string // in the packages; usr/sbin/NAME
	ask      string // the flag for its version; -v
}

func (d debian) file() string {
	if d.path != "" {
		return d.path
	}
	return "usr/sbin/" + d.name
}

// script runs the program out of root beside it. exec keeps the process ID.
const script = `#!/bin/sh
root=${0%%/*}/root
%sexec "$root/%s" %s "$@"
`

func (d debian) get(ctx context.Context, log io.Writer) (string, error) {
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("unpack %s from Debian packages: %w", d.name, err)
	}
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return fail(err)
	}
	// The archive keeps one version of a package for a release, so the release is the pin.
	h := sha256.New()
	fmt.Fprintf(h, "%s %q %s %s\n%s", runtime.GOARCH, d.packages, d.args, script, release)
	cache, err := cacheDir(d.name)
	if err != nil {
		return fail(err)
	}
	dir := filepath.Join(cache, hex.EncodeToString(h.Sum(nil))[:12])
	bin := filepath.Join(dir, d.name)
	complete := func() bool {
		for _, f := range []string{bin, filepath.Join(dir, "root", d.file())} {
			if fi, err := os.Stat(f); err != nil || !fi.Mode().IsRegular() || fi.Size() == 0 {
				return false
			}
		}
		return true
	}
	if complete() {
		return bin, nil
	}
	if err := install(ctx, dir, d.name, log, complete, func(tmp string) error { return d.fill(ctx, tmp, dir, log) }); err != nil {
		return fail(err)
	}
	return bin, nil
}

// fill unpacks into tmp, which becomes dir.
func (d debian) fill(ctx context.Context, tmp, dir string, log io.Writer) error {
	fmt.Fprintf(log, "unpacking Debian's %s (once; kept in %s)\n", d.name, dir)
	debs := filepath.Join(tmp, "debs")
	if err := os.Mkdir(debs, 0o755); err != nil {
		return err
	}
	err := d.download(ctx, debs, nil)
	if err != nil && ctx.Err() == nil {
		// The machine's package lists are missing or old; a user may have lists of their own.
		apt := filepath.Join(tmp, "apt")
		if err := os.MkdirAll(filepath.Join(apt, "lists", "partial"), 0o755); err != nil {
			return err
		}
		own := []string{"-o", "Dir::State::Lists=" + filepath.Join(apt, "lists"), "-o", "Dir::Cache=" + apt}
		fmt.Fprintln(log, "the package lists of this machine do not serve; getting own ones")
		if _, uerr := command(ctx, debs, append([]string{"apt-get", "-q"}, append(own, "update")...)...); uerr != nil {
			return errors.Join(err, uerr)
		}
		if err = d.download(ctx, debs, own); err == nil {
			err = os.RemoveAll(apt)
		}
	}
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return err
	}
	root := filepath.Join(tmp, "root")
	for _, f := range files {
		if _, err := command(ctx, debs, "dpkg", "-x", f, root); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(debs); err != nil {
		return err
	}
	libs := []string{}
	for _, pattern := range []string{"usr/lib/*-linux-*", "lib/*-linux-*"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, f := range found {
			libs = append(libs, `"$root/`+strings.TrimPrefix(f, root+"/")+`"`)
		}
	}
	env := ""
	if len(libs) > 0 {
		env = "export LD_LIBRARY_PATH=" + strings.Join(libs, ":") + "\n"
	}
	bin := filepath.Join(tmp, d.name)
	if err := os.WriteFile(bin, fmt.Appendf(nil, script, env, d.file(), d.args), 0o755); err != nil {
		return err
	}
	ask := d.ask
	if ask == "" {
		ask = "-v"
	}
	out, err := command(ctx, tmp, bin, ask)
	if err == nil {
		line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		fmt.Fprintln(log, line)
	}
	return err
}

// download gets the packages, and of the libraries they depend on those that this
// machine does not have, into debs.
func (d debian) download(ctx context.Context, debs string, opts []string) error {
	get := slices.Clone(d.packages)
	for i := 0; i < len(get); i++ {
		out, err := command(ctx, debs, append(append([]string{"apt-cache"}, opts...), "depends", get[i])...)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(out)) {
			dep, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: ")
			if !ok || !strings.HasPrefix(dep, "lib") || slices.Contains(get, dep) {
				continue
			}
			status, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f", "${db:Status-Status}", dep).Output()
			if err != nil || string(status) != "installed" { // an error: dpkg knows no such package
				get = append(get, dep)
			}
		}
	}
	_, err := command(ctx, debs, append(append([]string{"apt-get", "-q"}, opts...), append([]string{"download"}, get...)...)...)
	return err
}

// command runs a program in dir and returns what it prints; an error has it too.
func command(ctx context.Context, dir string, argv ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%w; a Debian or a system derived from it is needed", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out))
	}
	return out, nil
}
