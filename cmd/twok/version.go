package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"
)

// build is what a binary knows of itself.
type build struct {
	Version  string   `json:"version"`
	Commit   string   `json:"commit"`   // empty: not built from a checkout
	Time     string   `json:"time"`     // of the commit
	Modified bool     `json:"modified"` // built with uncommitted changes
	Go       string   `json:"go"`
	OS       string   `json:"os"`
	Arch     string   `json:"arch"`
	Etcd     []string `json:"etcd"` // release lines that this version knows
}

func thisBuild() build {
	b := build{Version: version(), Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, Etcd: []string{"3.5", "3.6", "3.7"}}
	if bi, ok := debug.ReadBuildInfo(); ok {
		for _, s := range bi.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.time":
				b.Time = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	return b
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "print what this binary is",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object {version, commit, time, modified, go, os, arch, etcd}"},
		},
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return usageError("twok version takes no argument, got %q", c.Args().First())
			}
			b := thisBuild()
			if c.Bool("json") {
				enc := json.NewEncoder(c.App.Writer)
				enc.SetIndent("", "  ")
				return enc.Encode(b)
			}
			_, err := fmt.Fprintf(c.App.Writer, "twok %s, %s, %s/%s\n", b.Version, b.Go, b.OS, b.Arch)
			return err
		},
	}
}
