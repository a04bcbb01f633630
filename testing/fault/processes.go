package fault

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"twok/internal/lab"
)

// signalEtcd sends a signal to the etcd of a site. None there is an error, but for SIGCONT.
func (s *Stage) signalEtcd(site string, sig syscall.Signal) error {
	pid, err := s.Site(site).EtcdPID()
	if err != nil {
		return err
	}
	return send("etcd", site, pid, sig)
}

// signalAgent is signalEtcd of the agent.
func (s *Stage) signalAgent(site string, sig syscall.Signal) error {
	return send("agent", site, s.Site(site).AgentPID(), sig)
}

func send(what, site string, pid int, sig syscall.Signal) error {
	err := syscall.ESRCH
	if pid != 0 {
		var ok bool
		kerr := syscall.Kill(pid, sig)
		if err, ok = kerr.(syscall.Errno); !ok {
			return kerr
		}
	}
	if err == syscall.ESRCH && sig == syscall.SIGCONT {
		return nil // what was frozen may have been killed since
	}
	return fmt.Errorf("send %s to the %s of %s: %w", sig, what, site, err)
}

// killEtcd kills the etcd of a site and says whether there was one.
func (s *Stage) killEtcd(site string) (hit bool, err error) {
	pid, err := s.Site(site).EtcdPID()
	if err != nil {
		return false, err
	}
	s.Note("SIGKILL of the etcd of %s, process %d", site, pid)
	return pid != 0, s.Site(site).KillEtcd()
}

func processes() []Fault {
	return []Fault{
		{
			Name: "site-loss", About: "everything at the target is killed at once, and comes back", Claims: 1, Roles: both,
			Run: func(ctx context.Context, s *Stage) error {
				return do(ctx, s.moment, func(context.Context) error { return s.Kill(s.Target) }, s.Resumes, func(context.Context) error { return s.Up(s.Target) })
			},
		},
		{
			Name: "etcd-kill", About: "the target's etcd is killed some times at random moments; whoever runs it starts it again", Rows: []string{"F10"}, Roles: both,
			Run: func(ctx context.Context, s *Stage) error {
				hits := 0
				for range 3 {
					hit, err := s.killEtcd(s.Target)
					if hit {
						hits++
					}
					if err := errors.Join(err, s.Wait(ctx, s.Between(10*time.Millisecond, 1500*time.Millisecond))); err != nil {
						return err
					}
				}
				if hits == 0 {
					return fmt.Errorf("no etcd ran at %s: this showed nothing", s.Target)
				}
				return s.Resumes(ctx)
			},
		},
		{
			Name: "etcd-term", About: "the target's etcd is asked to end; whoever runs it starts it again", Rows: []string{"F15"}, Roles: both,
			Run: func(ctx context.Context, s *Stage) error {
				return do(ctx, s.moment, func(context.Context) error {
					s.Note("SIGTERM to the etcd of %s", s.Target)
					return s.Running(s.Target)
				}, now(s.Site(s.Target).StopEtcd), s.Resumes)
			},
		},
		{
			Name: "etcd-freeze", About: "the target's etcd is frozen for good: the other one survives, and the target's agent ends it and returns; then it is frozen and the other site is lost: its agent says etcd-down, and claims once it goes on", Rows: []string{"F13"}, Claims: 2, Roles: both,
			Run: func(ctx context.Context, s *Stage) error {
				pid := 0
				freeze := func(context.Context) (err error) {
					if pid, err = s.Site(s.Target).EtcdPID(); err != nil {
						return err
					}
					s.Note("SIGSTOP to the etcd of %s, process %d", s.Target, pid)
					return send("etcd", s.Target, pid, syscall.SIGSTOP)
				}
				return do(ctx, s.moment, freeze, func(ctx context.Context) error { return s.WritesAt(ctx, s.Other(), 50) },
					func(ctx context.Context) error {
						return s.Until(ctx, "the target's agent ends the frozen etcd", func(context.Context) error {
							if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
								return fmt.Errorf("process %d is there (%v)", pid, err)
							}
							return nil
						})
					}, s.Resumes, func(ctx context.Context) error { _, err := s.Whole(ctx); return err },
					freeze, func(context.Context) error { return s.Kill(s.Other()) },
					func(ctx context.Context) error { return s.Reason(ctx, s.Target, "etcd-down") },
					func(context.Context) error {
						s.Note("%s says etcd-down; SIGCONT", s.Target)
						return send("etcd", s.Target, pid, syscall.SIGCONT)
					}, s.Resumes, func(ctx context.Context) error { return s.Survives(ctx, s.Target) }, func(context.Context) error { return s.Up(s.Other()) })
			},
		},
		{
			Name: "etcd-hiccup", About: "the target's etcd is frozen for short, again and again", Roles: both,
			Run: func(ctx context.Context, s *Stage) error {
				hits := 0
				for range 5 {
					s.Note("SIGSTOP to the etcd of %s", s.Target)
					if err := do(ctx, func(context.Context) error {
						err := s.signalEtcd(s.Target, syscall.SIGSTOP)
						if errors.Is(err, syscall.ESRCH) {
							s.Note("there is none")
							return nil // its agent had ended it
						}
						hits++
						return err
					},
						func(ctx context.Context) error {
							return s.Wait(ctx, s.Between(50*time.Millisecond, 1200*time.Millisecond))
						},
						func(context.Context) error { return s.signalEtcd(s.Target, syscall.SIGCONT) },
						func(ctx context.Context) error { return s.Wait(ctx, s.Between(50*time.Millisecond, time.Second)) }); err != nil {
						return err
					}
				}
				if hits == 0 {
					return fmt.Errorf("no etcd ran at %s: this showed nothing", s.Target)
				}
				return s.Resumes(ctx)
			},
		},
		{
			Name: "site-freeze", About: "everything at the target is frozen while the other one survives, as a virtual machine is, and goes on", Rows: []string{"F26"}, Claims: 1, Roles: both,
			Run: func(ctx context.Context, s *Stage) error {
				signal := func(sig syscall.Signal) func(context.Context) error {
					return func(context.Context) error {
						return errors.Join(s.signalAgent(s.Target, sig), s.signalEtcd(s.Target, sig))
					}
				}
				return do(ctx, s.moment, func(context.Context) error { s.Note("SIGSTOP of everything at %s", s.Target); return nil },
					signal(syscall.SIGSTOP), func(ctx context.Context) error { return s.WritesAt(ctx, s.Other(), 50) }, signal(syscall.SIGCONT),
					func(context.Context) error { s.Note("SIGCONT"); return nil }, s.Resumes)
			},
		},
		{
			Name: "agent-kill", About: "the target's agent is killed, and the members are cut apart: the other one survives", Rows: []string{"F8"}, Claims: 1, Roles: both,
			Run: func(ctx context.Context, s *Stage) error {
				return do(ctx, s.moment, func(context.Context) error {
					s.Note("SIGKILL of the agent of %s", s.Target)
					s.Site(s.Target).KillAgent()
					return nil
				}, s.moment, now(s.CutLink), s.Resumes, func(ctx context.Context) error { return s.Survives(ctx, s.Other()) },
					func(context.Context) error { return s.Up(s.Target) }, now(s.HealLink))
			},
		},
		{
			Name: "agent-term", About: "the target's agent is asked to end, and the members are cut apart", Claims: 1, Roles: both,
			Run: func(ctx context.Context, s *Stage) error {
				return do(ctx, s.moment, func(context.Context) error {
					s.Note("SIGTERM to the agent of %s", s.Target)
					if err := s.signalAgent(s.Target, syscall.SIGTERM); err != nil {
						return err
					}
					s.Site(s.Target).StopAgent()
					return nil
				}, s.moment, now(s.CutLink), s.Resumes, func(ctx context.Context) error { return s.Survives(ctx, s.Other()) },
					func(context.Context) error { return s.Up(s.Target) }, now(s.HealLink))
			},
		},
		{
			Name: "agent-freeze", About: "the target's agent is frozen at a random moment before a cut, and goes on after the other one has survived", Claims: 1, Roles: both,
			Run: func(ctx context.Context, s *Stage) error {
				return do(ctx, s.moment, func(context.Context) error {
					s.Note("SIGSTOP to the agent of %s", s.Target)
					return s.signalAgent(s.Target, syscall.SIGSTOP)
				}, s.moment, now(s.CutLink), s.Resumes,
					func(ctx context.Context) error { return s.Survives(ctx, s.Other()) },
					func(context.Context) error { s.Note("SIGCONT"); return s.signalAgent(s.Target, syscall.SIGCONT) },
					func(ctx context.Context) error { return s.Wait(ctx, s.Between(0, time.Second)) }, now(s.HealLink))
			},
		},
		{
			Name: "both-down", About: "both sites are lost at once; the target comes back first, the other one later", Rows: []string{"F32"}, Roles: both,
			Run: func(ctx context.Context, s *Stage) error {
				return do(ctx, s.moment, s.killBoth, func(context.Context) error { return s.Up(s.Target) },
					func(ctx context.Context) error { return s.Wait(ctx, s.Between(0, 2*time.Second)) },
					func(context.Context) error { return s.Up(s.Other()) }, s.Resumes)
			},
		},
		{
			Name: "both-down-one-back", About: "both sites are lost at once, under load, and only the target comes back: it holds all that was acknowledged, and survives", Rows: []string{"F22", "F32"}, Claims: 1, Roles: both,
			Run: func(ctx context.Context, s *Stage) error {
				return do(ctx, s.moment, s.killBoth, func(context.Context) error { return s.Up(s.Target) }, s.Resumes,
					func(ctx context.Context) error { return s.Survives(ctx, s.Target) },
					func(context.Context) error { return s.Up(s.Other()) })
			},
		},
		{
			Name: "both-down-apart", About: "both sites are lost at once and boot together, cut apart: one of them survives", Rows: []string{"F1", "F32"}, Claims: 1, Roles: []string{Pair},
			Run: func(ctx context.Context, s *Stage) error {
				return do(ctx, s.moment, s.killBoth, now(s.CutLink), func(context.Context) error {
					return errors.Join(s.Up(lab.Sites[0]), s.Up(lab.Sites[1]))
				}, s.Resumes, now(s.HealLink))
			},
		},
		{
			Name: "survivor-loss", About: "the survivor is lost while alone: nobody writes until it is back", Rows: []string{"F5"}, Claims: 1, Roles: both,
			Run: func(ctx context.Context, s *Stage) error { // the target is the loser
				return do(ctx, func(context.Context) error { return s.Kill(s.Target) }, s.Resumes, s.Confirmed,
					func(context.Context) error { return s.Kill(s.Other()) }, func(context.Context) error { return s.Up(s.Target) },
					func(ctx context.Context) error {
						return s.Silence(ctx, "only the loser is there", s.Between(3*time.Second, 5*time.Second))
					},
					func(context.Context) error { return s.Up(s.Other()) }, s.Resumes)
			},
		},
		{
			Name: "survivor-restart", About: "the survivor restarts before the loser is back, first without its agent, and leads alone", Rows: []string{"F5"}, Claims: 1, Roles: both,
			Needs: Needs{Modes: []string{"signal"}},
			Run: func(ctx context.Context, s *Stage) error {
				return do(ctx, func(context.Context) error { return s.Kill(s.Target) }, s.Resumes, s.Confirmed,
					func(context.Context) error { return s.Kill(s.Other()) }, now(s.Site(s.Other()).StartEtcd), s.Resumes,
					now(s.Site(s.Other()).StartAgent), func(context.Context) error { return s.Up(s.Target) })
			},
		},
		{
			Name: "chaos", About: "some faults in a row, at random moments, before the one before is over", Rows: []string{"F19"}, Roles: []string{Pair}, Random: true,
			Run: chaos,
		},
	}
}

// killBoth ends both sites, one as soon after the other as can be.
func (s *Stage) killBoth(context.Context) error {
	if err := s.Running(lab.Sites[:]...); err != nil {
		return err
	}
	s.Note("SIGKILL of everything at both sites")
	errs := make(chan error, 2)
	for _, site := range lab.Sites {
		go func() { errs <- s.Site(site).Kill() }()
	}
	return errors.Join(<-errs, <-errs)
}

// moment waits for as long as nobody planned.
func (s *Stage) moment(ctx context.Context) error {
	return s.Wait(ctx, s.Between(0, 1500*time.Millisecond))
}

// chaos leaves nothing cut, frozen or down. What of it met a process is noted; not all of it does.
func chaos(ctx context.Context, s *Stage) error {
	signal := func(what, site string, to func(string, syscall.Signal) error, sig syscall.Signal) error {
		s.Note("%s to the %s of %s", unix.SignalName(sig), what, site)
		err := to(site, sig)
		if errors.Is(err, syscall.ESRCH) {
			s.Note("there is none")
			err = nil
		}
		return err
	}
	told := map[string]int{} // to end, by process ID
	for range 10 {
		site := lab.Sites[s.Rand.IntN(2)]
		var err error
		switch s.Rand.IntN(16) {
		case 0, 1:
			err = s.CutLink()
		case 2:
			err = s.HealLink()
		case 3:
			err = s.CutArbiter(site)
		case 4:
			err = s.HealArbiter(site)
		case 5:
			err = s.Kill(site)
		case 6:
			s.Note("SIGKILL of the agent of %s", site)
			s.Site(site).KillAgent()
		case 7:
			_, err = s.killEtcd(site)
		case 8, 9, 10:
			err = s.Up(site)
		case 11:
			told[site] = s.Site(site).AgentPID()
			err = signal("agent", site, s.signalAgent, syscall.SIGTERM)
		case 12:
			err = signal("etcd", site, s.signalEtcd, syscall.SIGTERM)
		case 13:
			err = signal("agent", site, s.signalAgent, syscall.SIGSTOP)
		case 14:
			err = signal("etcd", site, s.signalEtcd, syscall.SIGSTOP)
		case 15:
			err = errors.Join(signal("agent", site, s.signalAgent, syscall.SIGCONT), signal("etcd", site, s.signalEtcd, syscall.SIGCONT))
		}
		if err != nil {
			return err
		}
		if err := s.Wait(ctx, s.Between(100*time.Millisecond, 2*time.Second)); err != nil {
			return err
		}
	}
	// An agent that was told to end and has not yet is waited for: it would not be started as long as it runs.
	for _, site := range lab.Sites {
		if err := errors.Join(signal("agent", site, s.signalAgent, syscall.SIGCONT), signal("etcd", site, s.signalEtcd, syscall.SIGCONT)); err != nil {
			return err
		}
		if pid := s.Site(site).AgentPID(); pid != 0 && pid == told[site] {
			s.Site(site).StopAgent()
		}
	}
	return do(ctx, now(s.HealAll), func(context.Context) error {
		return errors.Join(s.Up(lab.Sites[0]), s.Up(lab.Sites[1]))
	}, s.Resumes)
}
