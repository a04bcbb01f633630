package main

import (
	"context"
	"crypto/tls"
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
	"twok/internal/certfile"
)

const exitInUse = 3 // of serve: directory or address taken

func arbiterServeCommand() *cli.Command {
	return &cli.Command{
		Name:  "serve",
		Usage: "run the embedded arbiter on a third machine",
		Description: `Keeps the records of any number of pairs as files in DIR. It belongs on a machine that fails
independently of both members. SIGTERM or SIGINT ends it after the requests going on.

Without --client-ca, --users-file or --tokens-file whoever reaches the address can write:
keep it on loopback then. Certificates, authorities and accounts are read again when their
files change. An agent gives its part by TWOK_ARBITER_*: see
'twok arbiter --help'.

Exit codes:
0   stopped by a signal
1   any other error
2   wrong usage
3   another process uses the directory or the address`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "listen", Value: "127.0.0.1:7379", Usage: "`ADDRESS` to listen on; port 0 chooses one"},
			&cli.StringFlag{Name: "dir", Required: true, Usage: "`DIR` for the values, created if needed"},
			&cli.StringFlag{Name: "cert", Usage: "serve TLS with this certificate `FILE`"},
			&cli.StringFlag{Name: "key", Usage: "its key `FILE`"},
			&cli.StringFlag{Name: "client-ca", Usage: "serve only who has a certificate of these authorities (`FILE`)"},
			&cli.StringFlag{Name: "users-file", Usage: "serve only these: a `FILE` with one USER:PASSWORD a line"},
			&cli.StringFlag{Name: "tokens-file", Usage: "serve only these: a `FILE` with one bearer token a line"},
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
	secure, err := serveTLS(c)
	if err != nil {
		return withCode(err, exitUsage)
	}
	var accounts *httpcas.Accounts
	if users, tokens := c.String("users-file"), c.String("tokens-file"); users != "" || tokens != "" {
		if accounts, err = httpcas.NewAccounts(users, tokens); err != nil {
			return hint(withCode(err, exitUsage), "--users-file has one USER:PASSWORD a line, --tokens-file one token a line")
		}
	}
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
	s.Require(accounts)
	scheme := "http"
	if secure != nil {
		scheme, l = "https", tls.NewListener(l, secure)
	}
	if t, ok := l.Addr().(*net.TCPAddr); ok && !t.IP.IsLoopback() && accounts == nil && c.String("client-ca") == "" {
		fmt.Fprintln(c.App.ErrWriter, "twok: warning: whoever reaches this address can write every record: see --client-ca, --users-file and --tokens-file")
	}
	if err := announce(c, dir, scheme, l.Addr(), s); err != nil {
		return errors.Join(err, l.Close(), s.Close())
	}
	err = s.Serve(ctx, l, 10*time.Second, log.New(c.App.ErrWriter, "twok: ", 0))
	if err == nil || errors.Is(err, context.Canceled) {
		fmt.Fprintln(c.App.ErrWriter, "twok: the arbiter stopped")
		return nil
	}
	return err
}

// serveTLS is the configuration of --cert, --key and --client-ca; nil without them.
func serveTLS(c *cli.Context) (*tls.Config, error) {
	cert, key, ca := c.String("cert"), c.String("key"), c.String("client-ca")
	switch {
	case cert == "" && key == "" && ca == "":
		return nil, nil
	case cert == "" || key == "":
		return nil, errors.New("TLS needs --cert and --key")
	}
	tell := func(err error) { fmt.Fprintf(c.App.ErrWriter, "twok: warning: %v\n", err) }
	pair, err := certfile.NewPair(cert, key, tell)
	if err != nil {
		return nil, fmt.Errorf("--cert, --key: %w", err)
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: pair.ForServer}
	if ca != "" {
		a, err := certfile.NewAuthorities(ca, tell)
		if err != nil {
			return nil, fmt.Errorf("--client-ca: %w", err)
		}
		cfg.ClientCAs, cfg.ClientAuth = a.Pool(), tls.RequireAndVerifyClientCert
		base := cfg.Clone()
		cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			now := base.Clone()
			now.ClientCAs = a.Pool()
			return now, nil
		}
	}
	return cfg, nil
}

// announce tells the URL to use, once the listener accepts.
func announce(c *cli.Context, dir, scheme string, addr net.Addr, s *httpcas.Server) error {
	url := fmt.Sprintf("%s://%s/", scheme, reachable(addr))
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
	_, err := fmt.Fprintf(c.App.Writer, "serving %s\n%s\n", dir, usage(url, addr))
	return err
}

// usage tells people what to give the agents, who are on other machines.
func usage(url string, addr net.Addr) string {
	host := ""
	if t, ok := addr.(*net.TCPAddr); ok && t.IP.IsUnspecified() {
		host = "an address of this machine that both sites reach in place of 127.0.0.1, and "
	}
	return fmt.Sprintf("use --arbiter %sNAME, with %sa NAME of your choice for each pair", url, host)
}

// reachable replaces "every address" by the loopback one.
func reachable(addr net.Addr) string {
	t, ok := addr.(*net.TCPAddr)
	if !ok || !t.IP.IsUnspecified() {
		return addr.String()
	}
	return fmt.Sprintf("127.0.0.1:%d", t.Port)
}
