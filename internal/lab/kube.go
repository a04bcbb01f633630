package lab

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// KubeAPIServer returns the path of the Kubernetes API server pinned in
// testing/tools/kube-apiserver, as Etcd does. The build compiles two thousand packages: ten minutes
// of two idle processors and 3 GB of Go's own caches. It runs under nice.
func KubeAPIServer(ctx context.Context, log io.Writer) (string, error) {
	_, dir, err := kubeAPIServer.get(ctx, log)
	return filepath.Join(dir, "kube-apiserver"), err
}

var kubeAPIServer = tool{
	name:     "kube-apiserver",
	module:   "kube-apiserver",
	pins:     "k8s.io/kubernetes",
	programs: map[string]string{"kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver"},
	ldflags:  "-s -w -X k8s.io/component-base/version.gitVersion=v", // it says v0.0.0 otherwise
	long:     true,
	check:    []string{"kube-apiserver", "--version"},
}

// KubeAPIServerBuilt says whether KubeAPIServer has nothing to build.
func KubeAPIServerBuilt(ctx context.Context) (bool, error) {
	_, dir, _, err := kubeAPIServer.place(ctx)
	return err == nil && kubeAPIServer.complete(dir), err
}

// CacheDir makes and returns a directory of the cache: that of TWOK_CACHE, else
// the user's cache directory with "twok" added.
func CacheDir(name string) (string, error) { return cacheDir(name) }

// buildLong runs a build of many packages under nice, two at a time, and says
// twice a minute how many are done. out is what the build says beside their names.
func (t tool) buildLong(ctx context.Context, cmd *exec.Cmd, log io.Writer) (out []byte, err error) {
	args := append([]string{"-n", "19", "go", "build", "-v", "-p=2"}, cmd.Args[2:]...)
	nice := exec.CommandContext(ctx, "nice", args...)
	nice.Dir, nice.Env = cmd.Dir, cmd.Env
	r, w := io.Pipe()
	nice.Stdout, nice.Stderr = w, w
	if err := nice.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(nice.Args, " "), err)
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		sc := bufio.NewScanner(r)
		for sc.Scan() {
			lines <- sc.Text()
		}
		r.CloseWithError(sc.Err())
	}()
	done := make(chan error, 1)
	go func() {
		err := nice.Wait()
		w.Close()
		done <- err
	}()
	begin, packages := time.Now(), 0
	tick := time.NewTicker(30 * time.Second)
	defer tick.Stop()
	for {
		select {
		case line, ok := <-lines:
			switch {
			case !ok:
				return out, <-done
			case strings.ContainsAny(line, " \t"):
				out = append(append(out, line...), '\n')
			default:
				packages++
			}
		case <-tick.C:
			fmt.Fprintf(log, "building %s: %d packages in %.0f s\n", t.name, packages, time.Since(begin).Seconds())
		}
	}
}
