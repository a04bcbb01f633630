package fault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/internal/agent"
	"twok/internal/lab"
	"twok/testing/history"
)

// rows are what went wrong elsewhere (docs/scenarios.md) and is not among the other faults.
func rows() []Fault {
	up := func(site func(*Stage) string) func(context.Context, *Stage) error {
		return func(_ context.Context, s *Stage) error { return s.Up(site(s)) }
	}
	target := func(s *Stage) string { return s.Target }
	// lost: the target is lost, and the other one survives.
	lost := func(ctx context.Context, s *Stage) error {
		return do(ctx, func(context.Context) error { return s.Kill(s.Target) }, s.Resumes)
	}
	all := []Fault{
		{
			Name: "F2", About: "both go for the claim at the same moment: held until both have read their data, then let go", Rows: []string{"F2"}, Claims: 1, Roles: []string{Pair},
			Needs: Needs{Failpoints: true},
			Run:   bothClaim,
		},
		{
			Name: "F4", About: "both agents are asked to end at once: membership and generation stay", Rows: []string{"F4"}, Roles: []string{Pair},
			Run: func(ctx context.Context, s *Stage) error {
				before, err := s.Record(ctx)
				if err != nil {
					return err
				}
				if err := s.Running(lab.Sites[:]...); err != nil {
					return err
				}
				s.Note("SIGTERM to both agents")
				done := make(chan struct{})
				for _, site := range lab.Sites {
					go func() { s.Site(site).StopAgent(); done <- struct{}{} }()
				}
				<-done
				<-done
				if err := errors.Join(s.Up("a"), s.Up("b")); err != nil {
					return err
				}
				after, err := s.Whole(ctx)
				if err == nil && s.Options.Mode == "signal" && (after.Generation != before.Generation || after.WholeMembers != before.WholeMembers) {
					err = fmt.Errorf("generation %d and members %x became %d and %x", before.Generation, before.WholeMembers, after.Generation, after.WholeMembers)
				}
				return err
			},
		},
		{
			Name: "F7", About: "the target's agent dies when its learner is added and it does not know the ID, and again when that leftover is removed", Rows: []string{"F6", "F7"}, Claims: 1, Roles: both,
			Needs: Needs{Failpoints: true},
			Run: func(ctx context.Context, s *Stage) error {
				died := func(ctx context.Context) error {
					return s.Until(ctx, "the agent dies at its step", func(context.Context) error {
						if s.Site(s.Target).AgentAlive() {
							return errors.New("it lives")
						}
						return nil
					})
				}
				if err := lost(ctx, s); err != nil {
					return err
				}
				s.Site(s.Target).AgentEnv("TWOK_FAILPOINTS=agent/add-learner/after=kill")
				return do(ctx, func(context.Context) error { return s.Up(s.Target) }, died,
					func(context.Context) error { return s.Failpoint(s.Target, "agent/remove-learner/after=kill") }, died,
					func(context.Context) error { return s.Failpoint(s.Target, "") }, s.Resumes)
			},
		},
		{
			Name: "F8", About: "both agents are killed and started in any order while the target returns", Rows: []string{"F8", "F19"}, Claims: 1, Roles: both,
			Run: func(ctx context.Context, s *Stage) error {
				if err := lost(ctx, s); err != nil {
					return err
				}
				if err := s.Up(s.Target); err != nil {
					return err
				}
				for range 8 {
					site := lab.Sites[s.Rand.IntN(2)]
					s.Note("SIGKILL of the agent of %s", site)
					s.Site(site).KillAgent()
					if err := s.Wait(ctx, s.Between(0, 400*time.Millisecond)); err != nil {
						return err
					}
					if err := s.Site(site).StartAgent(); err != nil {
						return err
					}
					if err := s.Wait(ctx, s.Between(50*time.Millisecond, 700*time.Millisecond)); err != nil {
						return err
					}
				}
				return s.Resumes(ctx)
			},
		},
		{
			Name: "F9", About: "what the agents remember is deleted, while whole, of the survivor and of the loser", Rows: []string{"F9"}, Claims: 1, Roles: both,
			Run: func(ctx context.Context, s *Stage) error {
				forget := func(site string) error {
					s.Note("the agent of %s forgets", site)
					s.Site(site).KillAgent()
					return os.Remove(filepath.Join(s.Site(site).DataDir, agent.MemoryName))
				}
				for _, site := range lab.Sites {
					if err := errors.Join(forget(site), s.Site(site).StartAgent()); err != nil {
						return err
					}
				}
				if _, err := s.Whole(ctx); err != nil {
					return err
				}
				return do(ctx, func(ctx context.Context) error { return lost(ctx, s) }, s.Confirmed,
					func(context.Context) error {
						return errors.Join(forget(s.Other()), forget(s.Target), s.Site(s.Other()).StartAgent())
					},
					s.Resumes, func(ctx context.Context) error { return s.Survives(ctx, s.Other()) },
					func(ctx context.Context) error { return up(target)(ctx, s) })
			},
		},
		{
			Name: "F18", About: "the target comes back while the arbiter is not there yet, and waits", Rows: []string{"F18", "F37"}, Claims: 1, Roles: both,
			Run: func(ctx context.Context, s *Stage) error {
				return do(ctx, func(ctx context.Context) error { return lost(ctx, s) }, s.Confirmed,
					func(context.Context) error { return s.CutArbiter(lab.Sites[:]...) }, func(context.Context) error { return s.Up(s.Target) },
					func(ctx context.Context) error { return s.Wait(ctx, s.Between(2*time.Second, 4*time.Second)) },
					s.Resumes, now(s.HealAll))
			},
		},
		{
			Name: "F20", About: "the target's WAL is damaged while it is down: its data are set aside, whole, and it returns from an empty log", Rows: []string{"F20", "F23"}, Claims: 1, Roles: both,
			Run: func(ctx context.Context, s *Stage) error {
				if err := lost(ctx, s); err != nil {
					return err
				}
				wal := filepath.Join(s.Site(s.Target).DataDir, "member", "wal")
				before, err := spoil(wal)
				if err != nil {
					return err
				}
				s.Note("the WAL of %s is damaged", s.Target)
				s.AtEnd(func(context.Context) error {
					aside, err := filepath.Glob(filepath.Join(s.Site(s.Target).DataDir, "member.set-aside-*", "wal"))
					if err != nil || len(aside) != 1 {
						return fmt.Errorf("set aside: %q, %v", aside, err)
					}
					for name, want := range before {
						// etcd may have begun a segment, it has no reason to touch an old one.
						if got, err := os.ReadFile(filepath.Join(aside[0], name)); err != nil || !bytes.Equal(got, want) {
							return fmt.Errorf("%s that was set aside is not what it was (%v)", name, err)
						}
					}
					return nil
				})
				return up(target)(ctx, s)
			},
		},
		{
			Name: "F23", About: "the target's data are wiped while it is down: it returns with nothing, under a new ID", Rows: []string{"F23"}, Claims: 1, Roles: both, Disks: true,
			Run: func(ctx context.Context, s *Stage) error {
				if err := do(ctx, func(ctx context.Context) error { return lost(ctx, s) }, s.Confirmed); err != nil {
					return err
				}
				s.Note("the data of %s are moved away", s.Target)
				dir := s.Site(s.Target).DataDir
				if err := os.Rename(dir, dir+".moved-away"); err != nil {
					return err
				}
				return up(target)(ctx, s)
			},
		},
		{
			Name: "wiped", About: "the target's data are wiped, and it is started again at once: its etcd does not start as the voter that the pair knows, the other one survives, and it returns with nothing", Rows: []string{"F23"}, Claims: 1, Roles: both, Disks: true,
			Needs: Needs{Modes: []string{"supervise"}}, // with another parent etcd is started before its agent can say anything
			Run: func(ctx context.Context, s *Stage) error {
				was, err := s.Site(s.Target).Status(ctx)
				if err != nil {
					return err
				}
				if err := s.Kill(s.Target); err != nil {
					return err
				}
				s.Note("the data of %s are moved away", s.Target)
				dir := s.Site(s.Target).DataDir
				if err := os.Rename(dir, dir+".moved-away"); err != nil {
					return err
				}
				s.AtEnd(func(ctx context.Context) error {
					now, err := s.Site(s.Target).Status(ctx)
					if err == nil && now.Header.MemberId == was.Header.MemberId {
						err = fmt.Errorf("%s is the member %x again, whose data it lost", s.Target, was.Header.MemberId)
					}
					return err
				})
				if err := s.Up(s.Target); err != nil {
					return err
				}
				started := false
				err = s.Until(ctx, "the other one survives", func(ctx context.Context) error {
					etcd, _, err := s.Site(s.Target).Seen()
					if err == nil && etcd != lab.Down {
						started = true
						return nil
					}
					return errors.Join(err, s.Survives(ctx, s.Other()))
				})
				if started {
					err = fmt.Errorf("an etcd runs at %s, on nothing, and the pair knows it as a voter", s.Target)
				}
				return errors.Join(err, s.Resumes(ctx))
			},
		},
		{
			Name: "F24", About: "one value in the target's database is another one when it returns by its log: the comparison finds it, it stays a learner and says so until its data are put away", Rows: []string{"F24"}, Claims: 1, Roles: both, Disks: true,
			Untraced: "in the model a key space is what its log says",
			Run:      otherContent,
		},
		{
			Name: "F33", About: "somebody adds a third voter: the agents stand back, cut apart nobody writes; removed, all is well", Rows: []string{"F33"}, Roles: []string{Pair}, Users: true,
			Run: func(ctx context.Context, s *Stage) error {
				var third uint64
				s.Note("a third voter is added")
				return do(ctx, func(ctx context.Context) error {
					return s.Client(s.Leader, func(cl *clientv3.Client) error {
						return s.Until(ctx, "add a voter", func(ctx context.Context) error {
							resp, err := cl.MemberAdd(ctx, []string{"http://127.0.0.1:1"})
							if err == nil {
								third = resp.Member.ID
							}
							return err
						})
					})
				}, func(ctx context.Context) error { return s.Writes(ctx, 50) }, now(s.CutLink), func(ctx context.Context) error {
					return s.Silence(ctx, "cut apart with a third voter", s.Between(2*time.Second, 4*time.Second))
				}, now(s.HealLink), s.Resumes, func(ctx context.Context) error {
					s.Note("it is removed")
					return s.Until(ctx, "remove it", func(ctx context.Context) error {
						return s.Client(s.Leader, func(cl *clientv3.Client) error {
							_, err := cl.MemberRemove(ctx, third)
							return err
						})
					})
				}, s.Resumes)
			},
		},
	}
	return append(all, members()...)
}

// bothClaim cuts the link until both sites have asked for one generation: who is later may see the other one's in the record before.
func bothClaim(ctx context.Context, s *Stage) error {
	const tries = 5
	for range tries {
		var gates []string
		for _, site := range lab.Sites {
			gate := s.Gate()
			gates = append(gates, gate)
			if err := s.Failpoint(site, pauseAt("agent/read-data/after", gate)); err != nil {
				return err
			}
		}
		if _, err := s.Whole(ctx); err != nil {
			return err
		}
		if err := s.CutLink(); err != nil {
			return err
		}
		for _, gate := range gates {
			if err := s.Reached(ctx, gate); err != nil {
				return err
			}
		}
		s.Note("both are about to ask for the claim")
		errs := make(chan error, len(gates))
		for _, gate := range gates {
			go func() { errs <- os.WriteFile(gate, nil, 0o600) }()
		}
		if err := errors.Join(<-errs, <-errs); err != nil {
			return err
		}
		if err := do(ctx, s.Resumes, now(s.HealLink)); err != nil {
			return err
		}
		claims, err := s.Claims()
		if err != nil {
			return err
		}
		if contested(claims) {
			s.Note("both sites asked for one generation")
			return nil
		}
	}
	return fmt.Errorf("in %d cuts never both sites asked for one generation: this showed nothing", tries)
}

// contested says whether two sites asked for one generation.
func contested(claims []history.Claim) bool {
	by := map[uint64]string{}
	for _, c := range claims {
		if site, ok := by[c.Generation]; ok && site != c.Site {
			return true
		}
		by[c.Generation] = c.Site
	}
	return false
}

// spoil flips a byte in the middle of what the newest segment of a WAL holds, and returns all segments as they are then.
func spoil(wal string) (map[string][]byte, error) {
	segs, err := filepath.Glob(filepath.Join(wal, "*.wal"))
	if err != nil || len(segs) == 0 {
		return nil, fmt.Errorf("no segment in %s (%v)", wal, err)
	}
	slices.Sort(segs)
	all := map[string][]byte{}
	for i, seg := range segs {
		b, err := os.ReadFile(seg)
		if err != nil {
			return nil, err
		}
		if i == len(segs)-1 {
			end := len(bytes.TrimRight(b, "\x00"))
			// A key of a client: a flipped bit there breaks the checksum of an entry.
			at := bytes.Index(b[end/2:end], []byte("u/"))
			if at < 0 {
				return nil, fmt.Errorf("%s: no client's key in its second half", seg)
			}
			b[end/2+at] ^= 1
			if err := os.WriteFile(seg, b, 0o600); err != nil {
				return nil, err
			}
		}
		all[filepath.Base(seg)] = b
	}
	return all, nil
}
