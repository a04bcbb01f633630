package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"twok/arbiter/httpcas"
)

const exitInUse = 3 // of serve: directory or address taken

func arbiterServeCommand() *cli.Command {
	return &cli.Command{
		Name:  "serve",
		Usage: "run the embedded arbiter on a third machine",
		Description: `Keeps the records of any number of pairs as files in DIR. It belongs on a machine that fails
independently of both members. SIGTERM or SIGINT ends it after the requests going on.

It has no authentication: whoever reaches the address can write. Keep it on loopback or
behind something that checks who calls.

Exit codes:
0   stopped by a signal
1   any other error
2   wrong usage
3   another process uses the directory or the address`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "listen", Value: "127.0.0.1:7379", Usage: "`ADDRESS` to listen on; port 0 chooses one"},
			&cli.StringFlag{Name: "dir", Required: true, Usage: "`DIR` for the values, created if needed"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object {url, listen, dir, pid, leftovers, damaged} when ready"},
		},
		Action: arbiterServe,
	}
}

func arbiterServe(c *cli.Context) error {
	if c.NArg() > 0 {
		return usageError("twok arbiter serve takes no argument, got %q", c.Args().First())
	}
	ctx, stop := signal.NotifyContext(c.Context, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	dir, err := filepath.Abs(c.String("dir"))
	if err != nil {
		return fmt.Errorf("--dir %s: %w", c.String("dir"), err)
	}
	s, err := httpcas.NewServer(dir)
	if errors.Is(err, httpcas.ErrLocked) {
		return hint(withCode(err, exitInUse), "one arbiter serves a directory; choose another --dir, or use the one that runs")
	}
	if err != nil {
		return hint(err, "check --dir: it must be a directory that this user can write")
	}
	l, err := net.Listen("tcp", c.String("listen"))
	if err != nil {
		err = errors.Join(fmt.Errorf("listen on %s: %w", c.String("listen"), err), s.Close())
		if errors.Is(err, syscall.EADDRINUSE) {
			return hint(withCode(err, exitInUse), "choose another --listen address; port 0 takes a free one")
		}
		return hint(err, "--listen is HOST:PORT with an address of this machine")
	}
	if err := announce(c, dir, l.Addr(), s); err != nil {
		return errors.Join(err, l.Close(), s.Close())
	}
	err = s.Serve(ctx, l, 10*time.Second, log.New(c.App.ErrWriter, "twok: ", 0))
	if err == nil || errors.Is(err, context.Canceled) {
		fmt.Fprintln(c.App.ErrWriter, "twok: the arbiter stopped")
		return nil
	}
	return err
}

// announce tells the URL to use, once the listener accepts.
func announce(c *cli.Context, dir string, addr net.Addr, s *httpcas.Server) error {
	url := fmt.Sprintf("http://%s/", reachable(addr))
	for _, name := range s.Leftovers() {
		fmt.Fprintf(c.App.ErrWriter, "twok: %s is not a value (left by an interrupted write, or not the arbiter's); it is not read\n", filepath.Join(dir, name))
	}
	for _, what := range s.Damaged() {
		fmt.Fprintf(c.App.ErrWriter, "twok: warning: %s\n", what)
	}
	if c.Bool("json") {
		some := func(list []string) []string { return append([]string{}, list...) } // [] instead of null
		return json.NewEncoder(c.App.Writer).Encode(struct {
			URL       string   `json:"url"`
			Listen    string   `json:"listen"`
			Dir       string   `json:"dir"`
			PID       int      `json:"pid"`
			Leftovers []string `json:"leftovers"`
			Damaged   []string `json:"damaged"`
		}{url, addr.String(), dir, os.Getpid(), some(s.Leftovers()), some(s.Damaged())})
	}
	_, err := fmt.Fprintf(c.App.Writer, "serving %s\nuse --arbiter %sNAME, with a NAME of your choice for each pair\n", dir, url)
	return err
}

// reachable replaces "every address" by the loopback one.
func reachable(addr net.Addr) string {
	t, ok := addr.(*net.TCPAddr)
	if !ok || !t.IP.IsUnspecified() {
		return addr.String()
	}
	return fmt.Sprintf("127.0.0.1:%d", t.Port)
}
