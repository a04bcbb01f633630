package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// commands calls f with each command that does something.
func commands(cs []*cli.Command, f func(c *cli.Command)) {
	for _, c := range cs {
		if len(c.Subcommands) == 0 {
			f(c)
		}
		commands(c.Subcommands, f)
	}
}

// Each flag of each command is also TWOK_ and its name, but for those that a person has to type and the demo's. Every kind of flag is known.
//
// Rules: none (configuration).
func TestEveryFlagHasItsVariable(t *testing.T) {
	n := 0
	commands(app().Commands, func(c *cli.Command) {
		for _, f := range c.Flags {
			name := f.Names()[0]
			vars := envVars(f)
			if vars == nil {
				t.Errorf("%s --%s is of a kind that environment does not know", c.Name, name)
				continue
			}
			want := []string{envName(name)}
			if typed[name] || c.Name == demoName {
				want = nil
			}
			if !slices.Equal(*vars, want) {
				t.Errorf("%s --%s: %q, want %q", c.Name, name, *vars, want)
			}
			n++
			// A secret has no flag, so it has no variable of that kind: only files hold it.
			if regexp.MustCompile("(password|token|secret)$").MatchString(name) {
				t.Errorf("%s --%s: a secret?", c.Name, name)
			}
		}
	})
	if n < 50 {
		t.Errorf("only %d flags were looked at", n)
	}
}

// The environment is taken, the command line wins, and what a person has to type is not taken from it.
//
// Rules: none (configuration).
func TestEnvironment(t *testing.T) {
	serve := func(want string, args ...string) {
		t.Helper()
		var out, errs bytes.Buffer
		if code := run(t.Context(), append([]string{"twok"}, args...), &out, &errs); !strings.Contains(out.String()+errs.String(), want) {
			t.Errorf("%q: exit %d: %s%s, want %q", args, code, out.String(), errs.String(), want)
		}
	}
	t.Setenv("TWOK_ARBITER", "ftp://from-the-environment/x")
	t.Setenv("TWOK_TIMEOUT", "1ms")
	serve("ftp://from-the-environment", "arbiter", "show")
	serve("ftp://from-the-line", "arbiter", "show", "--arbiter", "ftp://from-the-line/x")
	serve("ftp://from-the-argument", "arbiter", "probe", "ftp://from-the-argument/x")
	serve("takes one URL", "arbiter", "probe", "--arbiter", "ftp://from-the-line/x", "ftp://from-the-argument/x")
	t.Setenv("TWOK_TIMEOUT", "soon")
	serve(`"soon"`, "arbiter", "show")
	t.Setenv("TWOK_TIMEOUT", "")
	t.Setenv("TWOK_ACCEPT_DATA_LOSS", "true")
	t.Setenv("TWOK_MEMBER", "a")
	serve("--accept-data-loss is required", "arbiter", "claim")
	t.Setenv("TWOK_DATA_DIR", t.TempDir())
	t.Setenv("TWOK_CLAIM_AFTER", "-3s")
	serve("--claim-after is -3s", "agent")
}

// The demo uses no setting of a real pair, its record above all.
//
// Rules: none (configuration).
func TestForgetSettings(t *testing.T) {
	set := []string{"TWOK_ARBITER", "TWOK_CLIENT_CERT", "TWOK_TRACE", "TWOK_CLAIM_AFTER", envCA, envUser, envTokenFile}
	for _, arbiter := range []bool{true, false} {
		for _, name := range set {
			t.Setenv(name, "set")
		}
		t.Setenv("TWOK_CACHE", "kept")
		if err := forgetSettings(arbiter); err != nil {
			t.Fatal(err)
		}
		for _, name := range set {
			if kept := arbiter && strings.HasPrefix(name, "TWOK_ARBITER_"); (os.Getenv(name) != "") != kept {
				t.Errorf("an arbiter named: %t: %s is %q", arbiter, name, os.Getenv(name))
			}
		}
		if os.Getenv("TWOK_CACHE") != "kept" {
			t.Error("the cache of etcds was forgotten")
		}
	}
	// A production record in the environment is not the demo's: were it taken, its scheme would be refused.
	t.Setenv("TWOK_ARBITER", "ftp://of-a-real-pair/x")
	code, _, stderr := cliSession(t, "demo", "--etcd-version", "3.6", "--dir", filepath.Join("..", "twok"))
	if code != exitUsage || strings.Contains(stderr, "ftp") || !strings.Contains(stderr, "is not empty") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

// Rules: none (what the binary is).
func TestVersion(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"twok", "version", "--json"}, &out, &errs); code != 0 {
		t.Fatalf("exit %d: %s", code, errs.String())
	}
	var b build
	d := json.NewDecoder(&out)
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil || b.Version == "" || !strings.HasPrefix(b.Go, "go1.") || b.OS == "" || b.Arch == "" || !slices.Equal(b.Etcd, []string{"3.5", "3.6", "3.7"}) {
		t.Errorf("%+v, %v", b, err)
	}
	out.Reset()
	if code := run(t.Context(), []string{"twok", "version"}, &out, &errs); code != 0 || out.String() != fmt.Sprintf("twok %s, %s, %s/%s\n", b.Version, b.Go, b.OS, b.Arch) {
		t.Errorf("exit %d: %q", code, out.String())
	}
	if code := run(t.Context(), []string{"twok", "version", "x"}, &out, &errs); code != exitUsage {
		t.Errorf("exit %d", code)
	}
}

// The shipped environment file sets nothing that the agent does not know, and no secret.
//
// Rules: none (configuration).
func TestShippedEnvironment(t *testing.T) {
	known := map[string]bool{}
	for _, f := range agentCommand().Flags {
		known[envName(f.Names()[0])] = true
	}
	for _, name := range []string{envUser, envPasswordFile, envTokenFile, envCA, envCert, envKey} {
		known[name] = true
	}
	b, err := os.ReadFile(filepath.Join("..", "..", "deploy", "systemd", "agent.env"))
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#?([A-Z][A-Z0-9_]+)=`).FindAllStringSubmatch(string(b), -1) {
		set[m[1]] = true
		if !known[m[1]] && !strings.HasPrefix(m[1], "ETCD_") {
			t.Errorf("agent.env has %s, which is no flag of the agent", m[1])
		}
	}
	for _, name := range []string{"TWOK_DATA_DIR", "TWOK_ARBITER", "TWOK_HEALTH_LISTEN", "TWOK_CLIENT_CERT", "TWOK_PEER_CERT"} {
		if !set[name] {
			t.Errorf("agent.env lacks %s", name)
		}
	}
}
