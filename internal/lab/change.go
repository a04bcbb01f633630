package lab

// change is what a test gave one site in the middle of a run.
type change struct {
	etcd                  Binaries
	etcdFlags, agentFlags []string
	agentEnv              []string
	mode                  Mode // empty: the cluster's
}

// UseEtcd replaces the site's binaries from its next start on.
func (s *Site) UseEtcd(b Binaries) { s.change.etcd = b }

// EtcdFlags replaces the flags that this site's etcd gets beyond Config.EtcdFlags,
// from its next start on (in mode Supervise: of its agent).
func (s *Site) EtcdFlags(flags ...string) { s.change.etcdFlags = flags }

// AgentFlags replaces the flags that this site's agent gets beyond
// Config.AgentFlags, from its next start on.
func (s *Site) AgentFlags(flags ...string) { s.change.agentFlags = flags }

// AgentEnv replaces what this site's agent has in its environment beyond
// Config.AgentEnv ("NAME=value"), from its next start on.
func (s *Site) AgentEnv(env ...string) { s.change.agentEnv = env }

// UseMode says from now on who runs this site's etcd, in a cluster of mode External or Supervise. What runs
// goes on as it is.
func (s *Site) UseMode(m Mode) { s.change.mode = m }

func (s *Site) mode() Mode {
	if s.change.mode != "" {
		return s.change.mode
	}
	return s.c.cfg.Mode
}
