package experiment

import (
	"context"
	"errors"
	"os"

	"twok/testing/cluster"
)

// withPair starts a pair with its agents and an arbiter, etcd with its own timing, and hands it to f. mode says who runs etcd. The data
// directories go when f is done, of a failed session only where they are large; logs and traces stay.
func (s *Session) withPair(ctx context.Context, mode string, large bool, flags []string, f func(c *cluster.Cluster, leader string) error) (err error) {
	c, err := cluster.New(ctx, cluster.Options{Dir: s.Dir, Twok: s.Program(Twok), Minor: s.Version, Arbiter: "serve", Mode: mode, Real: true, AgentFlags: flags, Log: s.Log})
	if err != nil {
		return err
	}
	dirs := []string{c.Site("a").DataDir, c.Site("b").DataDir}
	defer func() {
		if err = errors.Join(err, c.Close()); err == nil || large {
			err = errors.Join(err, os.RemoveAll(dirs[0]), os.RemoveAll(dirs[1]))
		}
	}()
	if err := c.Start(ctx); err != nil {
		return err
	}
	leader, err := c.Leader(ctx)
	if err != nil {
		return err
	}
	return f(c, leader)
}
