package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/internal/agent"
	"twok/internal/lab"
	"twok/internal/member"
)

// etcdLife is what must not change while twok is put on and taken off.
type etcdLife struct {
	pid     int
	started string // the process's start, in the kernel's ticks
	id      uint64 // member ID
	leader  uint64
	term    uint64
	changes float64 // etcd_server_leader_changes_seen_total
}

func (p *pair) life(site string) etcdLife {
	p.Helper()
	s := p.Site(site)
	l := etcdLife{pid: p.etcdPID(site)}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", l.pid))
	p.must(err)
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	if len(f) < 20 {
		p.Fatalf("/proc/%d/stat: %q", l.pid, stat)
	}
	l.started = f[19] // field 22
	st, err := s.Status(p.within())
	p.must(err)
	l.id, l.leader, l.term = st.Header.MemberId, st.Leader, st.RaftTerm
	l.changes = p.metric(s.ClientURL, "etcd_server_leader_changes_seen_total")
	return l
}

func (p *pair) metric(url, name string) float64 {
	p.Helper()
	req, err := http.NewRequestWithContext(p.within(), http.MethodGet, url+"/metrics", nil)
	p.must(err)
	resp, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: p.tls, DisableKeepAlives: true}}).Do(req)
	p.must(err)
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if v, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			f, err := strconv.ParseFloat(v, 64)
			p.must(err)
			return f
		}
	}
	p.Fatalf("%s has no %s", url, name)
	return 0
}

func (p *pair) lives() [2]etcdLife { return [2]etcdLife{p.life("a"), p.life("b")} }

// undisturbed: both etcds are the same processes, with the same leader in the same term, and every write was answered.
func (p *pair) undisturbed(what string, before [2]etcdLife) {
	p.Helper()
	p.written(what + ": a write")
	if now := p.lives(); now != before {
		p.Errorf("%s: the etcds were %+v, are %+v", what, before, now)
	}
	if n := p.w.Unknown(); n != 0 {
		p.Errorf("%s: %d writes failed", what, n)
	}
}

// load writes all the time; a write that takes longer than any election failed.
func (p *pair) load(endpoints ...string) { p.Helper(); p.writeWithin(time.Minute, endpoints...) }

// writeWithin replaces the clients by others, with keys of their own.
func (p *pair) writeWithin(deadline time.Duration, endpoints ...string) {
	p.Helper()
	if p.w != nil {
		p.w.Stop()
	}
	p.loads++
	w, err := lab.StartWriter(lab.WriterConfig{
		Endpoints: endpoints, Clients: 8, Deadline: deadline, Pause: 5 * time.Millisecond,
		Prefix: fmt.Sprintf("/load%d/", p.loads), TLS: p.tls,
	})
	p.must(err)
	p.w = w
	p.written("the first write")
}

// calm is for tests in which no election may happen: with an election timeout of 200 ms a busy machine is enough for one.
func calm(c *lab.Config) { c.Timing, c.ClaimAfter = lab.Default, 3*time.Second }

// bare is a pair of etcds that nobody watches over, under load.
func bare(t *testing.T, minor string, opts ...func(*lab.Config)) *pair {
	t.Helper()
	p := prepare(t, minor, append([]func(*lab.Config){external, calm}, opts...)...)
	p.must(p.StartArbiter(p.within()))
	for _, name := range lab.Sites {
		p.must(p.Site(name).StartEtcd())
	}
	p.must(p.WaitServing(p.within()))
	p.leader()
	p.load(p.Site("a").ClientURL, p.Site("b").ClientURL)
	return p
}

func (p *pair) on() {
	p.Helper()
	for _, name := range lab.Sites {
		p.must(p.Site(name).StartAgent())
	}
}

func (p *pair) off() {
	p.Helper()
	for _, name := range lab.Sites {
		p.Site(name).StopAgent()
		if p.Site(name).AgentAlive() {
			p.Fatalf("the agent of %s lives", name)
		}
	}
}

// twokKeys are the keys that twok has in the pair.
func (p *pair) twokKeys() (keys []string) {
	p.Helper()
	get, err := p.client(p.leader()).Get(p.within(), "/twok/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	p.must(err)
	for _, kv := range get.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// beside are the names beside etcd's own directory.
func (p *pair) beside(site string) (names []string) {
	p.Helper()
	ds, err := os.ReadDir(p.Site(site).DataDir)
	p.must(err)
	for _, d := range ds {
		if d.Name() != "member" {
			names = append(names, d.Name())
		}
	}
	return names
}

// TestOnAndOff: twok is put on a healthy pair under load, taken off, put on again: no etcd is stopped, no leader changes,
// no write fails, and nothing stays but the token's key, the record and two files beside each member's data. Then a cut fails over.
//
// Rules: P3, P14; F4, F37.
func TestOnAndOff(t *testing.T) {
	t.Parallel()
	for _, minor := range lab.Minors {
		if !full && minor != "3.6" {
			continue
		}
		t.Run(minor, func(t *testing.T) {
			t.Parallel()
			p := bare(t, minor)
			if keys := p.twokKeys(); len(keys) != 0 || len(p.beside("a"))+len(p.beside("b")) != 0 {
				t.Fatalf("before twok: keys %q, files %q %q", keys, p.beside("a"), p.beside("b"))
			}
			before := p.lives()
			p.on()
			first := p.whole()
			p.undisturbed("on", before)
			p.off()
			p.undisturbed("off", before)
			if keys := p.twokKeys(); !slices.Equal(keys, []string{member.TokenKey}) {
				t.Errorf("off: the keys %q", keys)
			}
			for _, name := range lab.Sites {
				if names := p.beside(name); !slices.Equal(names, []string{member.AgentLockName, agent.MemoryName}) {
					t.Errorf("off: beside the data of %s: %q", name, names)
				}
				if _, err := p.Site(name).Health(p.within()); err == nil {
					t.Errorf("off: the health endpoint of %s answers", name)
				}
			}
			rec := p.record()
			p.steady("nothing touches the record", 3*time.Second, func(context.Context) error {
				if now := p.record(); now != rec {
					return fmt.Errorf("it was %+v, is %+v", rec, now)
				}
				return nil
			})
			p.undisturbed("off for a while", before)
			p.on()
			if again := p.whole(); again.ID != first.ID || again.Generation != first.Generation || again.Survivor != first.Survivor {
				t.Errorf("on again: the record was %+v, is %+v", first, again)
			}
			p.undisturbed("on again", before)
			p.w.Stop()
			p.Log(p.audit())
			p.write()
			p.failover(lab.CutLink)
		})
	}
}

// TestOffWhileAlone: both agents are taken off while one member is alone as the survivor. It goes on alone, also when the link is
// whole again: nobody adds the other one. Put on again, the pair becomes whole, and the survivor's etcd was never stopped.
//
// Rules: P10, P12; F4, F5.
func TestOffWhileAlone(t *testing.T) {
	t.Parallel()
	for _, minor := range lab.Minors {
		if !full {
			continue
		}
		t.Run(minor, func(t *testing.T) {
			t.Parallel()
			p := bare(t, minor)
			p.on()
			p.whole()
			p.writeWithin(400*time.Millisecond, p.Site("a").ClientURL, p.Site("b").ClientURL)
			p.CutLink()
			p.written("a write by the survivor")
			p.until("the confirmation", p.confirmed)
			alone := p.record()
			survivor := p.Site(alone.Survivor.Name)
			p.role(survivor.Name, "alone")
			p.load(survivor.ClientURL)
			was := p.life(survivor.Name)
			same := func(what string) {
				t.Helper()
				p.written(what + ": a write")
				if now := p.life(survivor.Name); now != was {
					t.Errorf("%s: the survivor's etcd was %+v, is %+v", what, was, now)
				}
				if n := p.w.Unknown(); n != 0 {
					t.Errorf("%s: %d writes failed", what, n)
				}
			}
			p.off()
			same("off")
			p.HealLink()
			p.steady("it stays alone", 3*time.Second, func(ctx context.Context) error {
				l, err := p.client(survivor.Name).MemberList(ctx)
				if err == nil && len(l.Members) != 1 {
					err = fmt.Errorf("%d members", len(l.Members))
				}
				return err
			})
			same("off, the link whole")
			if rec := p.record(); rec.Generation != alone.Generation || rec.Survivor != alone.Survivor {
				t.Errorf("off: the record was %+v, is %+v", alone, rec)
			}
			p.on()
			if rec := p.whole(); rec.Generation != alone.Generation || rec.Survivor != alone.Survivor {
				t.Errorf("on again: the record was %+v, is %+v", alone, rec)
			}
			if now := p.life(survivor.Name); now.pid != was.pid || now.started != was.started || now.leader != was.leader {
				t.Errorf("on again: the survivor's etcd was %+v, is %+v", was, now)
			}
			if n := p.w.Unknown(); n != 0 {
				t.Errorf("on again: %d writes failed", n)
			}
			p.w.Stop()
			p.Log(p.audit())
			p.write()
			p.failover(lab.CutKillLeader)
		})
	}
}

// TestOneAgentOff: one agent is taken off, or killed. No etcd notices, and the other agent stays armed: it takes over if the
// member without an agent is lost.
//
// Rules: P14; F4.
func TestOneAgentOff(t *testing.T) {
	t.Parallel()
	for _, minor := range lab.Minors {
		if !full && minor != "3.7" {
			continue
		}
		t.Run(minor, func(t *testing.T) {
			t.Parallel()
			p := bare(t, minor)
			before := p.lives()
			p.on()
			p.whole()
			var gone *lab.Site
			for i, off := range []func(*lab.Site){(*lab.Site).StopAgent, (*lab.Site).KillAgent} {
				gone = p.Site(p.leader())
				if i == 0 {
					gone = p.Site(lab.Other(gone.Name))
				}
				stays := lab.Other(gone.Name)
				off(gone)
				p.health(stays, "armed", func(h lab.Health) bool { return h.Armed })
				p.undisturbed("an agent off", before)
				if i == 0 {
					p.must(gone.StartAgent())
					p.health(gone.Name, "armed again", func(h lab.Health) bool { return h.Armed })
				}
			}
			p.must(gone.Kill())
			p.written("the member with an agent leads alone")
			p.must(gone.Start())
			p.wholeAndAudited()
		})
	}
}
