package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

func main() {
	os.Exit(run(context.Background(), os.Args, os.Stdout, os.Stderr))
}

// run is main without the process: arguments in, exit code out. Each command
// takes its writers from cli.Context.App, handles its own signals and returns
// an error instead of exiting; the error is printed here and nowhere else.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	a := app()
	a.Writer, a.ErrWriter = stdout, stderr
	return report(stderr, a.RunContext(ctx, args))
}

// app is the whole command line. To add a command, add it to the list.
func app() *cli.App {
	a := &cli.App{
		Name:    "twok",
		Usage:   "keep a two-member etcd cluster writable when one member goes away",
		Version: version(),
		Description: `Each command's --help has its exit codes; 0 is success, 1 an error without a code of its own, 2 wrong usage. With
--json a command that comes to a result prints one JSON value on stdout, also if that is bad news; an error
alone is a line on stderr, and a hint what to do. Flags come before arguments. Nearly each may also come from the environment,
as TWOK_ and its name (--data-dir is TWOK_DATA_DIR); what a person has to type may not.`,
		Commands: []*cli.Command{
			agentCommand(),
			arbiterCommand(),
			demoCommand(),
			lostWritesCommand(),
			walCommand(),
			versionCommand(),
		},
		// run prints the error and chooses the exit code.
		ExitErrHandler: func(*cli.Context, error) {},
		OnUsageError:   onUsageError,
		Action:         groupAction,
		// A "help" command beside --help would be taken for an argument of commands.
		HideHelpCommand: true,
	}
	prepare(a.Commands)
	return a
}

// prepare gives every command the house rules: usage errors are errors like
// all others, a group called without a known command says so, and a missing
// flag prints no help on stdout, where a program may expect JSON.
func prepare(commands []*cli.Command) {
	for _, c := range commands {
		c.HideHelpCommand = true
		if c.OnUsageError == nil {
			c.OnUsageError = onUsageError
		}
		if len(c.Subcommands) > 0 && c.Action == nil {
			c.Action = groupAction
		}
		environment(c)
		requireFlags(c)
		positiveTimeout(c)
		prepare(c.Subcommands)
	}
}

// requireFlags takes over cli's own check of required string flags.
func requireFlags(c *cli.Command) {
	var required []string
	for _, f := range c.Flags {
		if s, ok := f.(*cli.StringFlag); ok && s.Required {
			s.Required = false
			s.Usage += " (required)"
			required = append(required, s.Name)
		}
	}
	action := c.Action
	if len(required) == 0 || action == nil {
		return
	}
	c.Action = func(ctx *cli.Context) error {
		for _, name := range required {
			if ctx.String(name) == "" {
				what := fmt.Sprintf("see `%s --help`", c.HelpName)
				if ctx.NArg() == 1 && strings.Contains(ctx.Args().First(), "://") {
					what = fmt.Sprintf("a URL goes behind its flag: --%s %s", name, ctx.Args().First())
				}
				return hint(usageError("%s needs --%s", c.HelpName, name), what)
			}
		}
		return action(ctx)
	}
}

// positiveTimeout refuses a --timeout that is over before anything was asked: it would look like a store that is away.
func positiveTimeout(c *cli.Command) {
	has := slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return f.Names()[0] == "timeout" })
	action := c.Action
	if !has || action == nil {
		return
	}
	c.Action = func(ctx *cli.Context) error {
		if d := ctx.Duration("timeout"); d <= 0 {
			return usageError("--timeout is %v: it must be positive", d)
		}
		return action(ctx)
	}
}

func onUsageError(c *cli.Context, err error, _ bool) error {
	return hint(withCode(err, exitUsage), fmt.Sprintf("see `%s --help`", c.Command.HelpName))
}

// groupAction runs for a command that only has commands below it.
func groupAction(c *cli.Context) error {
	name := c.Command.HelpName
	if name == "" {
		name = c.App.Name
	}
	if c.NArg() == 0 {
		if c.Command.Name == c.App.Name || c.Command.Name == "" {
			return cli.ShowAppHelp(c)
		}
		return cli.ShowSubcommandHelp(c)
	}
	return hint(withCode(fmt.Errorf("%s has no command %q", name, c.Args().First()), exitUsage),
		fmt.Sprintf("see `%s --help`", name))
}

func version() string {
	if bi, ok := debug.ReadBuildInfo(); ok && bi.Main.Version != "" {
		return bi.Main.Version
	}
	return "(devel)"
}
