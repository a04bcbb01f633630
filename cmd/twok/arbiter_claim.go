package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"
	"go.uber.org/zap"

	"twok/arbiter"
	"twok/internal/agent"
	"twok/internal/etcdapi"
	"twok/internal/failover"
	"twok/internal/force"
	"twok/walsurgery"
)

// Exit codes of `twok arbiter claim` beside those of the arbiter's answers.
const (
	exitAlive    = 40
	exitMember   = 41
	exitDeclined = 42
	exitPending  = 43
)

func arbiterClaimCommand() *cli.Command {
	return &cli.Command{
		Name:  "claim",
		Usage: "after a double failure: force a member to go on alone, although writes may be lost",
		Description: `For the case that no member may claim by the rules: the survivor died before the other member came
back, or its disk was rolled back. A person decides which member's data go on. What the other
one has beyond them is given up, and stays in its directory, set aside: twok lost-writes lists it.

The command shows what would be given up, asks for the member's name, and names the member in the record. The member's
own agent then carries the claim out: it has to run, and its data have to be readable. The data of
the overridden survivor, should it live, stop within a read of the record (6 s).

It is refused while the other member answers at one of --endpoints, or while the record was written within the last three
minutes: a survivor writes it about once a minute. The command watches the record for three minutes itself, since
no two clocks are compared. --override-live-survivor skips both: then both members may accept writes for some seconds, or
for as long as the other one does not reach the arbiter.

Exit codes:
0      the member leads, or it was ordered (--wait 0)
2      wrong usage
10-24  what the arbiter said, as of twok arbiter show
40     the other side may be alive
41     this member cannot be named: unknown, ambiguous, a learner, another cluster's
42     not confirmed
43     ordered, and not carried out yet`,
		Flags: []cli.Flag{
			arbiterFlag(),
			&cli.StringFlag{Name: "member", Required: true, Usage: "`NAME|ID` of the member that goes on"},
			&cli.BoolFlag{Name: "accept-data-loss", Usage: "required: what the other member has beyond this one's data is given up"},
			&cli.StringSliceFlag{Name: "endpoints", Usage: "client `URL`s of the members, as far as they are reachable: shows more, and refuses more", EnvVars: []string{"TWOK_ENDPOINTS"}},
			&cli.StringFlag{Name: "data-dir", Usage: "the named member's data directory, if it is on this machine: shows where its log ends", EnvVars: []string{"TWOK_DATA_DIR"}},
			&cli.StringFlag{Name: "client-cert", Usage: "certificate for etcd's client ports", EnvVars: []string{"TWOK_CLIENT_CERT"}},
			&cli.StringFlag{Name: "client-key", Usage: "its key", EnvVars: []string{"TWOK_CLIENT_KEY"}},
			&cli.StringFlag{Name: "client-ca", Usage: "the CA of etcd's client ports", EnvVars: []string{"TWOK_CLIENT_CA"}},
			&cli.BoolFlag{Name: "override-live-survivor", Usage: "even if the other side answers or wrote the record a short while ago"},
			&cli.BoolFlag{Name: "yes", Usage: "do not ask for the member's name"},
			&cli.DurationFlag{Name: "wait", Value: 2 * time.Minute, Usage: "how long to wait until the member leads; 0: not at all"},
			&cli.DurationFlag{Name: "timeout", Value: 10 * time.Second, Usage: "of each call to the arbiter"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object; goes with --yes"},
		},
		Action: arbiterClaim,
	}
}

// claimJSON is what --json prints.
type claimJSON struct {
	Member      string  `json:"member"`
	Name        string  `json:"name"`
	By          string  `json:"by"`
	Ordered     bool    `json:"ordered"`
	Already     bool    `json:"already_ordered"`
	Generation  uint64  `json:"generation"`
	Over        string  `json:"overridden"`
	OverName    string  `json:"overridden_name"`
	Reference   uint64  `json:"overridden_index"`
	End         uint64  `json:"member_index"`
	GivenUp     *uint64 `json:"entries_given_up_at_least"`
	CarriedOut  bool    `json:"carried_out"`
	Void        bool    `json:"void"`
	Leads       bool    `json:"leads"`
	LeadsAs     string  `json:"leads_as"`
	LeadsAtGen  uint64  `json:"leads_at_generation"`
	Overridable string  `json:"overrode_objection"`
}

func arbiterClaim(c *cli.Context) error {
	switch {
	case c.NArg() > 0:
		return usageError("twok arbiter claim takes no argument, got %q", c.Args().First())
	case !c.Bool("accept-data-loss"):
		return hint(usageError("a forced claim gives writes up: --accept-data-loss is required"), "nothing else is needed while a survivor lives: the other member returns by itself")
	case c.Bool("json") && !c.Bool("yes"):
		return usageError("--json asks nothing, it goes with --yes")
	case c.Duration("wait") < 0:
		return usageError("--wait is %v: it must not be negative", c.Duration("wait"))
	}
	reg, err := arbiterRegister(c.String("arbiter"))
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(c.Context, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	cs, err := considerClaim(ctx, c, reg)
	if err != nil {
		return claimError(err)
	}
	by := operator()
	out := claimJSON{Member: arbiter.FormatID(cs.Member.ID), Name: cs.Member.Name, By: by, Already: cs.Ordered,
		Over: arbiter.FormatID(cs.Record.Survivor.ID), OverName: cs.Record.Survivor.Name, End: cs.End.Index}
	out.Reference, _, _ = cs.Reference()
	if n, known := cs.GivenUp(); known {
		out.GivenUp = &n
	}
	progress := c.App.ErrWriter
	if !c.Bool("json") {
		if err := showClaim(c.App.Writer, cs, time.Now()); err != nil {
			return err
		}
	}
	order := cs.Record
	if !cs.Ordered {
		if err := mayClaim(ctx, c, reg, cs, progress, &out); err != nil {
			return claimError(err)
		}
		if !c.Bool("yes") {
			if err := askName(c, cs.Member); err != nil {
				return err
			}
		}
		one, cancel := context.WithTimeout(ctx, c.Duration("timeout"))
		defer cancel()
		if order, err = cs.Order(one, reg, by); err != nil {
			return claimError(err)
		}
	}
	out.Ordered, out.Generation = true, order.Generation
	werr := waitClaim(ctx, c, reg, order, progress, &out)
	if c.Bool("json") {
		enc := json.NewEncoder(c.App.Writer)
		enc.SetIndent("", "  ")
		return errors.Join(enc.Encode(out), werr)
	}
	return werr
}

// considerClaim looks at the record, the members, and the data directory.
func considerClaim(ctx context.Context, c *cli.Context, reg arbiter.Register) (force.Case, error) {
	var cs force.Case
	one, cancel := context.WithTimeout(ctx, c.Duration("timeout"))
	defer cancel()
	rec, _, v, err := readRecord(one, reg)
	if err != nil {
		return cs, err
	}
	t, _, err := tlsConfig(c, "client", nil)
	if err != nil {
		return cs, err
	}
	var urls []string
	for _, u := range c.StringSlice("endpoints") {
		if !strings.Contains(u, "://") {
			u = "http://" + u
		}
		if t == nil && strings.HasPrefix(u, "https:") {
			t = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		urls = append(urls, u)
	}
	var local force.Local
	if dir := c.String("data-dir"); dir != "" {
		if local, err = localData(dir); err != nil {
			return cs, withCode(hint(err, "give etcd's data directory, or leave --data-dir out"), exitMember)
		}
	}
	return force.Consider(rec, v, force.See(ctx, &etcdapi.Dialer{ClientTLS: t}, urls), local, c.String("member"))
}

// localData reads where the log ends, beside whatever runs on it.
func localData(dir string) (force.Local, error) {
	l, err := walsurgery.Inspect(zap.NewNop(), filepath.Join(dir, "member", "wal"))
	if err != nil {
		return force.Local{}, err
	}
	s := l.Summary()
	local := force.Local{Dir: dir, Member: s.MemberID, Cluster: s.ClusterID, Last: arbiter.Position{Index: s.Last.Index, Term: s.Last.Term}}
	name, id, err := agent.Identity(dir)
	if id == s.MemberID {
		local.Name = name
	}
	return local, errors.Join(err, l.Close())
}

// mayClaim is nil if nothing shows that the other side lives, or if that is overridden.
func mayClaim(ctx context.Context, c *cli.Context, reg arbiter.Register, cs force.Case, progress io.Writer, out *claimJSON) error {
	err := cs.Alive(time.Now())
	if c.Bool("override-live-survivor") {
		if err != nil {
			out.Overridable = err.Error()
			fmt.Fprintf(progress, "overridden: %s\n", oneLine(err.Error()))
		}
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(progress, "watching the record for %v: a survivor that lives writes it about once a minute\n", force.QuietFor)
	next := force.QuietFor
	return cs.Watch(ctx, reg, force.QuietFor, func(left time.Duration) {
		if left <= next-30*time.Second || left == 0 {
			next = left
			fmt.Fprintf(progress, "nobody wrote it; %v left\n", left.Round(time.Second))
		}
	})
}

// showClaim says what would be overridden.
func showClaim(out io.Writer, cs force.Case, now time.Time) error {
	r := cs.Record
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	who := func(m arbiter.Member) string {
		return strings.TrimSpace(printable(m.Name) + " " + arbiter.FormatID(m.ID))
	}
	row("record", "%s, generation %d, written %s", r.ID, r.Generation, showTime(r.WrittenAt, now))
	switch {
	case r.WholeGeneration == r.Generation:
		row("overridden", "a pair that was whole, as noted %s: %s and %s", showTime(r.WholeAt, now), arbiter.FormatID(r.WholeMembers[0]), arbiter.FormatID(r.WholeMembers[1]))
	case r.Survivor.ID == 0:
		row("overridden", "nobody: no member ever claimed")
	case failover.Ordered(r, r.Survivor.ID):
		row("overridden", "%s, which was ordered to go on %s and has not: %s", who(r.Survivor), showTime(r.ClaimedAt, now), printable(r.Reason))
	case r.Survivor.ID == cs.Member.ID:
		row("overridden", "what this member itself had: it claimed %s: %s", showTime(r.ClaimedAt, now), printable(r.Reason))
	default:
		row("overridden", "%s, which claimed %s: %s", who(r.Survivor), showTime(r.ClaimedAt, now), printable(r.Reason))
	}
	ref, at, what := cs.Reference()
	if ref == 0 {
		row("its log", "not known: it never confirmed how far it came")
	} else {
		row("its log", "at least to index %d, %s %s", ref, what, showTime(at, now))
	}
	row("to go on", "%s", who(cs.Member))
	if cs.Unseen {
		row("", "no member that answers knows this ID: is it the one in this member's own log?")
	}
	if cs.End.Index == 0 {
		row("its log", "cannot be seen from here: give --endpoints or, on its machine, --data-dir")
	} else {
		row("its log", "to index %d, %s", cs.End.Index, cs.EndIs)
	}
	switch n, known := cs.GivenUp(); {
	case !known:
		row("given up", "not known: whatever the other member acknowledged beyond this one's data")
	case n == 0:
		row("given up", "nothing that the record knows of; what came after index %d, %s, is not known to it", ref, since(at, now))
	default:
		row("given up", "at least %d entries up to index %d, as of %s, and whatever came after", n, ref, since(at, now))
	}
	for _, s := range cs.Sights {
		if s.Err != nil && s.Member == 0 {
			row("no answer", "%s: %s", s.URL, oneLine(s.Err.Error()))
		}
	}
	if cs.Ordered {
		row("state", "this was ordered %s, and is not carried out yet", since(r.ClaimedAt, now))
	}
	return w.Flush()
}

// askName asks for the member's name, or its ID if it has none.
func askName(c *cli.Context, m arbiter.Member) error {
	want := m.Name
	if want == "" {
		want = arbiter.FormatID(m.ID)
	}
	fmt.Fprintf(c.App.ErrWriter, "Type %s to let it go on and give the rest up: ", printable(want))
	in := c.App.Reader
	if in == nil {
		in = os.Stdin
	}
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && line == "" {
		fmt.Fprintln(c.App.ErrWriter)
	}
	if strings.TrimSpace(line) != want {
		return hint(withCode(fmt.Errorf("not confirmed: %q is not %q; nothing was changed", strings.TrimSpace(line), want), exitDeclined), "type the name, or give --yes")
	}
	return nil
}

// waitClaim waits until the member leads.
func waitClaim(ctx context.Context, c *cli.Context, reg arbiter.Register, order arbiter.Record, progress io.Writer, out *claimJSON) error {
	fmt.Fprintf(progress, "ordered as generation %d\n", order.Generation)
	if c.Duration("wait") <= 0 {
		return nil
	}
	pending := func(why string) error {
		return hint(withCode(fmt.Errorf("ordered as generation %d, and not carried out yet: %s", order.Generation, why), exitPending),
			"the order stays in the record: see /health and the log of the member's agent; running this command again waits again")
	}
	end := time.Now().Add(c.Duration("wait"))
	last := "the member's agent did not take it"
	for {
		one, cancel := context.WithTimeout(ctx, c.Duration("timeout"))
		p, err := force.Look(one, reg, order)
		cancel()
		switch {
		case err != nil:
			last = "the arbiter does not answer: " + err.Error()
		case p.Another:
			return hint(withCode(fmt.Errorf("the record changed since: it is at generation %d and names %s", p.Record.Generation, arbiter.FormatID(p.Record.Survivor.ID)), exitConflict),
				"look at it with `twok arbiter show` and `twok arbiter history`")
		case p.Void:
			out.Void = true
			return hint(withCode(fmt.Errorf("the pair became whole at generation %d, with both members: the order is void, nothing was given up", p.Record.Generation), exitConflict),
				"nothing else is needed; look at it with `twok arbiter show`")
		case p.Leads:
			out.CarriedOut, out.Leads, out.LeadsAs, out.LeadsAtGen = true, true, arbiter.FormatID(p.Record.Survivor.ID), p.Record.Generation
			fmt.Fprintf(progress, "%s leads, as generation %d; its own history begins at %s\n", arbiter.FormatID(p.Record.Survivor.ID), p.Record.Generation, showPosition(p.Record.Fork))
			return nil
		case p.Taken && !out.CarriedOut:
			out.CarriedOut, last = true, "it claimed, and does not lead yet"
			fmt.Fprintln(progress, "its agent claimed, and operates")
		}
		if time.Now().After(end) {
			return pending(last)
		}
		select {
		case <-ctx.Done():
			return pending("interrupted")
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// operator is who gives the order, for the history.
func operator() string {
	name := os.Getenv("SUDO_USER")
	if name == "" {
		if u, err := user.Current(); err == nil {
			name = u.Username
		} else {
			name = fmt.Sprintf("uid %d", os.Getuid())
		}
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

func claimError(err error) error {
	switch {
	case errors.Is(err, force.ErrAlive):
		return hint(withCode(err, exitAlive), "wait: if a survivor lives, the other member returns by itself; if you know that it is dead, wait three minutes, or give --override-live-survivor")
	case errors.Is(err, force.ErrMember):
		return hint(withCode(err, exitMember), "give the name or the ID of a voter: its agent's /health shows member_id; --endpoints with its client URL lets its name be found, or, since a member without a leader may not answer there, --data-dir on its machine")
	case errors.Is(err, force.ErrPaused):
		return hint(withCode(err, exitMember), failover.Paused.Remedy())
	case errors.Is(err, force.ErrChanged):
		return hint(withCode(err, exitConflict), "nothing was written; look at it with `twok arbiter show`, and run this again if it is still needed")
	case errors.Is(err, force.ErrUnknown):
		return hint(withCode(err, exitUnknown), "the order may be in the record: look with `twok arbiter show`; running this command again is safe")
	case codeOf(err) != exitError:
		return err
	}
	return arbiterError(err)
}
