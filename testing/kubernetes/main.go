package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"

	"twok/internal/lab"
)

// watched is what the tests depend on.
var watched = []string{"arbiter", "deploy/arbiters/configmap-role.yaml", "deploy/arbiters/configmap-role-named.yaml", "testing/tools/kube-apiserver"}

// passed is a commit that passed, and the tree hashes of watched in it.
type passed struct{ commit, trees string }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	root, err := lab.Root()
	if err != nil {
		return err
	}
	dir, err := lab.CacheDir("kubernetes-passed")
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "commit")
	last, err := load(file)
	if err != nil {
		return err
	}
	now, err := state(ctx, root)
	if err != nil {
		// Not a checkout, for example: then nothing is known to be unchanged.
		fmt.Fprintln(os.Stderr, "git does not say what changed:", err)
	}
	built, err := lab.KubeAPIServerBuilt(ctx)
	if err != nil {
		return err
	}
	if !built && now.trees != "" && now.trees == last.trees {
		fmt.Printf("NOT RUN: unchanged since %s\n", last.commit)
		return nil
	}
	if _, err := lab.KubeAPIServer(ctx, os.Stderr); err != nil {
		return err
	}
	for _, packages := range [][]string{{"./arbiter/configmap"}, {"-run", "^TestKubernetes", "./testing/e2e"}} {
		argv := append(append([]string{"test", "-count=1", "-timeout", "40m"}, packages...), args...)
		cmd := exec.CommandContext(ctx, "go", argv...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = root, os.Stdout, os.Stderr
		cmd.Env = append(os.Environ(), "TWOK_KUBERNETES=1")
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
		}
	}
	if now.trees == "" || len(args) > 0 {
		return nil // what passed is not a commit, or not all of it
	}
	return os.WriteFile(file, []byte(now.commit+"\n"+now.trees+"\n"), 0o644)
}

// load reads what was recorded; nothing, if there is nothing.
func load(file string) (passed, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return passed{}, nil
	}
	commit, trees, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
	return passed{commit, trees}, err
}

// state is the commit and its trees; without trees if the files differ from the commit.
func state(ctx context.Context, root string) (passed, error) {
	git := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir = root
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
		}
		return strings.TrimSpace(string(out)), nil
	}
	changed, err := git(append([]string{"--no-optional-locks", "status", "--porcelain", "--"}, watched...)...)
	if err != nil || changed != "" {
		return passed{}, err
	}
	commit, err := git("rev-parse", "--short", "HEAD")
	if err != nil {
		return passed{}, err
	}
	p := passed{commit: commit}
	for _, dir := range watched {
		tree, err := git("rev-parse", "HEAD:"+dir)
		if err != nil {
			return passed{}, err
		}
		p.trees += dir + " " + tree + " "
	}
	p.trees = strings.TrimSpace(p.trees)
	return p, nil
}
