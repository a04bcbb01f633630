package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"twok/internal/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := run(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string) (code int, err error) {
	if len(args) < 2 {
		return 2, fmt.Errorf("usage: store %s|configmap COMMAND [ARG...]", strings.Join(lab.StoreKinds, "|"))
	}
	dir, err := os.MkdirTemp("", "twok-store-")
	if err != nil {
		return 1, err
	}
	s, arbiter, env, err := start(ctx, args[0], dir)
	if err != nil {
		return 1, errors.Join(err, os.RemoveAll(dir))
	}
	fmt.Fprintf(os.Stderr, "the arbiter is %s\n", arbiter)
	cmd := exec.CommandContext(ctx, args[1], append(args[2:], "--arbiter", arbiter)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		code, err = max(exit.ExitCode(), 1), nil
		fmt.Fprintf(os.Stderr, "the store's data and log are kept in %s\n", dir)
		return code, errors.Join(err, s.Close())
	case err != nil:
		return 1, errors.Join(err, s.Close(), os.RemoveAll(dir))
	}
	if err := errors.Join(s.Close(), os.RemoveAll(dir)); err != nil {
		return 1, err
	}
	return 0, nil
}

// start returns the store, its URL and the environment that its users need.
func start(ctx context.Context, kind, dir string) (io.Closer, string, []string, error) {
	if kind == "configmap" {
		k, err := lab.StartKubernetes(ctx, dir, "", os.Stderr)
		if err != nil {
			return nil, "", nil, err
		}
		return k, k.URL, k.Env, nil
	}
	s, err := lab.StartStore(ctx, kind, dir, os.Stderr)
	if err != nil {
		return nil, "", nil, err
	}
	return s, s.URL, s.Env, nil
}
