package main

import (
	"encoding/json"
	"fmt"
	"os/signal"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
	"go.uber.org/zap"

	"twok/internal/agent"
	"twok/internal/preflight"
)

// agentCheck is `twok agent --check`.
func agentCheck(c *cli.Context) error {
	cfg, err := agentConfig(c, zap.NewNop())
	if err != nil {
		return err
	}
	if err := cfg.Default().Validate(); err != nil {
		return withCode(err, exitUsage)
	}
	ctx, stop := signal.NotifyContext(c.Context, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	rs, err := agent.Check(ctx, cfg)
	if err != nil {
		return err
	}
	refused := preflight.Names(rs, preflight.Refused)
	if c.Bool("json") {
		enc := json.NewEncoder(c.App.Writer)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		err = enc.Encode(struct {
			OK      bool               `json:"ok"`
			DataDir string             `json:"data_dir"`
			Arbiter string             `json:"arbiter"`
			Checks  []preflight.Result `json:"checks"`
		}{len(refused) == 0, cfg.DataDir, cfg.ArbiterName, rs})
	} else if err = preflight.Table(c.App.Writer, rs); err == nil {
		_, err = fmt.Fprintf(c.App.Writer, "\n%s\n", preflight.Verdict(rs))
	}
	if err == nil && len(refused) > 0 {
		err = hint(fmt.Errorf("this member cannot be armed: %s", strings.Join(refused, ", ")), "docs/operations.md explains each check: #check-"+refused[0])
	}
	return err
}
