package main

import (
	"errors"
	"os"
	"strings"

	"github.com/urfave/cli/v2"
)

// typed are the flags that a person has to type: they override a refusal, answer a question, or make another
// command of it. An environment that somebody set up once must not do that.
var typed = map[string]bool{
	"check": true, "yes": true, "accept-data-loss": true, "override-live-survivor": true, "rebind": true, "dry-run": true, "help": true,
}

// environment lets each flag of a command be given as TWOK_ and its name, but for those that a person has to
// type, and those of the demo: its pair is one of its own, whatever the agents of this machine were told. A flag on the command
// line wins. No flag holds a secret: those come from files.
func environment(c *cli.Command) {
	if c.Name == demoName {
		return
	}
	for _, f := range c.Flags {
		name := f.Names()[0]
		if typed[name] {
			continue
		}
		vars := envVars(f)
		if vars != nil && len(*vars) == 0 {
			*vars = []string{envName(name)}
		}
	}
}

// forgetSettings takes the settings of a real pair's agent out of the environment, where the demo's own agents would
// find them; and the arbiter's credentials, unless an arbiter was named that they may be for.
func forgetSettings(arbiter bool) error {
	var errs []error
	for _, f := range agentCommand().Flags {
		errs = append(errs, os.Unsetenv(envName(f.Names()[0])))
	}
	if !arbiter {
		for _, name := range secretsFrom(os.Getenv).set() {
			errs = append(errs, os.Unsetenv(name))
		}
	}
	return errors.Join(errs...)
}

func envName(flag string) string {
	return "TWOK_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// envVars is where a flag keeps its variables; nil for a kind that no command has.
func envVars(f cli.Flag) *[]string {
	switch f := f.(type) {
	case *cli.StringFlag:
		return &f.EnvVars
	case *cli.StringSliceFlag:
		return &f.EnvVars
	case *cli.BoolFlag:
		return &f.EnvVars
	case *cli.IntFlag:
		return &f.EnvVars
	case *cli.Int64Flag:
		return &f.EnvVars
	case *cli.UintFlag:
		return &f.EnvVars
	case *cli.Uint64Flag:
		return &f.EnvVars
	case *cli.DurationFlag:
		return &f.EnvVars
	case *cli.PathFlag:
		return &f.EnvVars
	}
	return nil
}
