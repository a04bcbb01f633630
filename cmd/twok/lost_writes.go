package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"twok/internal/lostwrites"
	"twok/internal/member"
	"twok/walsurgery"
)

// Exit codes of twok lost-writes beyond 0, 1, 2, those of twok wal inspect and of the arbiter's answers.
const (
	exitForkUnknown = 32
	exitDirInUse    = 33
	exitNotCompared = 34
)

func lostWritesCommand() *cli.Command {
	return &cli.Command{
		Name:  "lost-writes",
		Usage: "list what an overridden member had committed beyond the fork, from its directory that was set aside",
		Description: `After a forced claim the overridden survivor's directory is set aside whole (member.set-aside-…). This
command lists what is in it that the other history does not have: keys, revisions, old and new values, leases. It changes
nothing, in the directory or at the endpoints. See docs/lost-writes.md.

Where the histories part comes from one of
  --arbiter URL       the record's history
  --fork INDEX/TERM   the fork of the claim that overrode it, as of twok arbiter history
  --against DIR       the other side's data directory, its etcd stopped

With --endpoints each key's present value is read from the survivor and judged:
  lost        not written since the fork; replaying brings it back
  same        it has this value now
  superseded  the survivor's history has written it since

Exit codes: 0 listed, also when nothing is lost; 2 wrong usage; 10-24 what the arbiter said, as of twok arbiter
show; 30 no member directory or WAL there; 31 damaged; 32 the fork cannot be told, or the directory was not overridden; 33
etcd runs on it; 34 the endpoints could not be read; 1 anything else.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "data-dir", Usage: "the `DIR`ectory that was set aside, or a data directory", Required: true},
			&cli.StringFlag{Name: "arbiter", Usage: "the arbiter's `URL`", EnvVars: []string{"TWOK_ARBITER"}},
			&cli.StringFlag{Name: "fork", Usage: "`INDEX/TERM` of the other history's first own entry"},
			&cli.StringFlag{Name: "against", Usage: "the other side's data `DIR`ectory"},
			&cli.StringSliceFlag{Name: "endpoints", Usage: "client `URL`s of the survivor; may be given several times"},
			&cli.StringFlag{Name: "client-cert", Usage: "certificate for etcd's client ports"},
			&cli.StringFlag{Name: "client-key", Usage: "its key"},
			&cli.StringFlag{Name: "client-ca", Usage: "the CA of etcd's client ports"},
			&cli.StringFlag{Name: "user", Usage: "etcd user `NAME`, if users are enabled and the certificate names none"},
			&cli.StringFlag{Name: "password-file", Usage: "`FILE` with the user's password"},
			&cli.DurationFlag{Name: "timeout", Value: 5 * time.Minute, Usage: "give up after this `TIME`"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
			&cli.BoolFlag{Name: "script", Usage: "print a script of etcdctl transactions that brings the keys back, to review and run"},
			&cli.BoolFlag{Name: "overwrite-conflicts", Usage: "let the script overwrite superseded keys too"},
		},
		Action: lostWrites,
	}
}

func lostWrites(c *cli.Context) error {
	if c.NArg() > 0 {
		return usageError("twok lost-writes takes no argument, got %q", c.Args().First())
	}
	if c.Bool("json") && c.Bool("script") {
		return usageError("--json and --script exclude each other")
	}
	if c.Bool("overwrite-conflicts") && !c.Bool("script") {
		return usageError("--overwrite-conflicts goes with --script")
	}
	ctx, stop := signal.NotifyContext(c.Context, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, c.Duration("timeout"))
	defer cancel()
	sources, err := forkSources(ctx, c)
	if err != nil {
		return err
	}
	l, err := lostwrites.Open(c.String("data-dir"), sources)
	if err != nil {
		return lostWritesError(err)
	}
	defer l.Close()
	if urls := c.StringSlice("endpoints"); len(urls) > 0 {
		if err := compareWith(ctx, c, l, urls); err != nil {
			return err
		}
	}
	switch {
	case c.Bool("json"):
		return lostJSON(c.App.Writer, l)
	case c.Bool("script"):
		return l.Script(c.App.Writer, c.Bool("overwrite-conflicts"))
	}
	return lostTable(c.App.Writer, l)
}

// forkSources takes the one source that was named on the command line; TWOK_ARBITER counts where there is none.
func forkSources(ctx context.Context, c *cli.Context) (lostwrites.Sources, error) {
	var s lostwrites.Sources
	fork, against := c.String("fork"), c.String("against")
	switch {
	case fork != "" && against != "":
		return s, usageError("--fork and --against exclude each other")
	case fork != "":
		p, err := parsePosition(fork)
		s.At = &p
		return s, err
	case against != "":
		s.Against = against
		return s, nil
	case c.String("arbiter") == "":
		return s, hint(usageError("twok lost-writes needs --arbiter, --fork or --against"), "where the two histories part must come from one of them; see `twok lost-writes --help`")
	}
	reg, err := arbiterRegister(c.String("arbiter"))
	if err != nil {
		return s, err
	}
	rec, _, _, err := readRecord(ctx, reg)
	if err != nil {
		return s, err
	}
	s.Record = &rec
	return s, nil
}

func parsePosition(text string) (walsurgery.Position, error) {
	index, term, ok := strings.Cut(strings.ReplaceAll(text, "@", "/"), "/")
	i, err1 := strconv.ParseUint(index, 10, 64)
	t, err2 := strconv.ParseUint(term, 10, 64)
	if !ok || err1 != nil || err2 != nil || i == 0 || t == 0 {
		return walsurgery.Position{}, hint(usageError("--fork %q is not INDEX/TERM", text), "take it from the FORK column of `twok arbiter history`")
	}
	return walsurgery.Position{Index: i, Term: t}, nil
}

func compareWith(ctx context.Context, c *cli.Context, l *lostwrites.Listing, urls []string) error {
	cfg := clientv3.Config{Endpoints: urls, Logger: zap.NewNop(), DialTimeout: 10 * time.Second, Context: ctx}
	var err error
	if cfg.TLS, _, err = tlsConfig(c, "client", nil); err != nil {
		return err
	}
	for _, u := range urls {
		if cfg.TLS == nil && strings.HasPrefix(u, "https:") {
			cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
		}
	}
	if cfg.Username, cfg.Password, err = login(c.String("user"), c.String("password-file")); err != nil {
		return err
	}
	client, err := clientv3.New(cfg)
	if err == nil {
		err = l.Compare(ctx, client)
		client.Close()
	}
	switch {
	case errors.Is(err, lostwrites.ErrOtherCluster):
		return hint(withCode(err, exitNotCompared), "give the --endpoints of the pair that this directory belonged to")
	case err != nil:
		return hint(withCode(err, exitNotCompared), "check --endpoints, certificates and user; without --endpoints the list is made all the same")
	}
	return nil
}

func login(user, file string) (name, password string, err error) {
	if (user == "") != (file == "") {
		return "", "", usageError("--user and --password-file belong together")
	}
	if user == "" {
		return "", "", nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", "", hint(fmt.Errorf("the password of user %s: %w", user, err), "give a file that holds the password alone")
	}
	return user, strings.TrimRight(string(b), "\r\n"), nil
}

func lostWritesError(err error) error {
	switch {
	case errors.Is(err, lostwrites.ErrNoMember), errors.Is(err, walsurgery.ErrNoWAL):
		return hint(withCode(err, exitNoWAL), "give the member.set-aside-… directory beside etcd's member directory")
	case errors.Is(err, lostwrites.ErrNoDatabase), errors.Is(err, member.ErrDatabase), errors.Is(err, member.ErrInsane):
		return hint(withCode(err, exitDamaged), "keep the directory as it is; `twok wal inspect` shows what its WAL holds")
	case errors.Is(err, walsurgery.ErrCorrupt), errors.Is(err, walsurgery.ErrUnexpectedFormat):
		return hint(withCode(err, exitDamaged), "keep the directory as it is; its database may be whole: `etcdutl snapshot restore --skip-hash-check` on a copy of snap/db shows the keys")
	case errors.Is(err, lostwrites.ErrSameHistory):
		return hint(withCode(err, exitForkUnknown), "compare with `twok arbiter history`: is this the directory of the overridden member?")
	case errors.Is(err, lostwrites.ErrForkUnknown), errors.Is(err, lostwrites.ErrOtherCluster):
		return hint(withCode(err, exitForkUnknown), "give another source: --arbiter, --fork from `twok arbiter history`, or --against the other side's directory")
	case errors.Is(err, lostwrites.ErrInUse):
		return hint(withCode(err, exitDirInUse), "give the directory that was set aside")
	}
	return err
}
