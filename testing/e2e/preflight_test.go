package e2e

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/arbiter/arbitertest"
	"twok/internal/lab"
	"twok/internal/preflight"
)

// checkReport is what `twok agent --check --json` prints.
type checkReport struct {
	OK     bool               `json:"ok"`
	Checks []preflight.Result `json:"checks"`
}

func (r checkReport) get(name string) preflight.Result {
	for _, c := range r.Checks {
		if c.Name == name {
			return c
		}
	}
	return preflight.Result{Name: name, Detail: "not among the checks"}
}

// checkStatus is the part of /health that is about the checks.
type checkStatus struct {
	Armed    bool
	Reason   string
	Checks   []preflight.Result
	Warnings []string
}

// check runs `twok agent --check` with the flags of the site's agent.
func (p *pair) check(site string, more ...string) (int, checkReport) {
	p.Helper()
	args := append([]string{"agent", "--check", "--json"}, withFlags(p.Site(site).AgentArgs()[2:], more)...)
	code, out, stderr := p.run(args...)
	var r checkReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		p.Fatalf("check %s: exit %d: %v: %s%s", site, code, err, out, stderr)
	}
	if names := preflight.Names(r.Checks, preflight.Refused); r.OK != (code == 0) || r.OK != (len(names) == 0) {
		p.Errorf("check %s: exit %d, ok %t, refused %q", site, code, r.OK, names)
	}
	return code, r
}

// refuses: exactly these checks refuse, and say so in these words.
func (p *pair) refuses(site string, words map[string]string, more ...string) {
	p.Helper()
	var r checkReport
	p.until(fmt.Sprintf("the check at %s refuses %v", site, words), func(context.Context) error {
		var code int
		code, r = p.check(site, more...)
		for _, name := range preflight.Names(r.Checks, preflight.Refused) {
			if _, ok := words[name]; !ok {
				return fmt.Errorf("%+v", r.get(name))
			}
		}
		for name, w := range words {
			if c := r.get(name); c.State != preflight.Refused || !strings.Contains(c.Detail, w) || c.Remedy == "" {
				return fmt.Errorf("%+v, want %q", c, w)
			}
		}
		if code != 1 {
			return fmt.Errorf("exit %d", code)
		}
		return nil
	})
}

// shows: the running agent's /health has this HTTP status, and its checks are so.
func (p *pair) shows(site string, status int, ok func(st checkStatus) bool) {
	p.Helper()
	p.until(fmt.Sprintf("/health of %s has status %d", site, status), func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Site(site).HealthURL, nil)
		p.must(err)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		var st checkStatus
		if err := json.Unmarshal(b, &st); err != nil {
			return err
		}
		if resp.StatusCode != status || !ok(st) {
			return fmt.Errorf("status %d: %s", resp.StatusCode, b)
		}
		return nil
	})
}

// A healthy pair passes, in both modes, while clients write and the agents run; and nothing notices: the same
// processes, the same leader and term, every write there.
//
// Rules: A0, A1, P5, P11.
func TestCheckHealthy(t *testing.T) {
	t.Parallel()
	for _, minor := range lab.Minors {
		for _, mode := range []lab.Mode{lab.External, lab.Supervise} {
			if !full && (minor == "3.6" || (minor == "3.5") != (mode == lab.Supervise)) {
				continue
			}
			t.Run(minor+"/"+string(mode), func(t *testing.T) {
				t.Parallel()
				// etcd's own timing: on a busy machine a fast one elects by itself now and then.
				p := start(t, minor, func(c *lab.Config) { c.Mode, c.Timing, c.ClaimAfter = mode, lab.Default, 4*time.Second })
				a, b := p.pids()
				var want []string
				for _, c := range preflight.Checks() {
					want = append(want, c.Name)
				}
				undisturbed := false
				for range 3 {
					before, err := p.Site("a").Status(p.within())
					p.must(err)
					for _, site := range lab.Sites {
						code, r := p.check(site)
						if code != 0 {
							t.Errorf("exit %d", code)
						}
						var got []string
						for _, c := range r.Checks {
							got = append(got, c.Name)
							// A busy machine's arbiter is slow against so short a claim-after.
							if c.State != preflight.OK && c.Name != "timing" {
								t.Errorf("%+v", c)
							}
						}
						if !slices.Equal(got, want) {
							t.Errorf("checks %q, want %q", got, want)
						}
					}
					after, err := p.Site("a").Status(p.within())
					p.must(err)
					if undisturbed = after.Leader == before.Leader && after.RaftTerm == before.RaftTerm; undisturbed {
						break
					}
				}
				if !undisturbed { // three times in a row is no chance
					t.Error("the leader or its term changed")
				}
				p.written("a write after the checks")
				if x, y := p.pids(); x != a || y != b {
					t.Errorf("the etcds were %d and %d, are %d and %d", a, b, x, y)
				}
				for _, site := range lab.Sites {
					p.shows(site, http.StatusOK, func(st checkStatus) bool {
						return st.Armed && len(st.Checks) == len(want) && len(st.Warnings) == 0 && len(preflight.Names(st.Checks, preflight.Refused)) == 0
					})
				}
				p.wholeAndAudited()
			})
		}
	}
}

// Before any agent runs: a healthy pair passes, nothing is written to the record or to the pair, and each thing that is
// made wrong is named: a third voter, flags, timing, a store that ignores conditions, the pair as its own arbiter, a port that is taken.
//
// Rules: A0, A1, P5, P11; F28, F33.
func TestCheckBeforeAgents(t *testing.T) {
	t.Parallel()
	p := prepare(t, "3.6", external)
	p.untraced = "no agent runs"
	p.must(p.StartArbiter(p.within()))
	for _, s := range lab.Sites {
		p.must(p.Site(s).StartEtcd())
	}
	p.must(p.WaitServing(p.within()))
	passes := func(site string) checkReport {
		t.Helper()
		var r checkReport
		p.until("the check at "+site+" passes", func(context.Context) error {
			var code int
			if code, r = p.check(site); code != 0 {
				return fmt.Errorf("%+v", r)
			}
			return nil
		})
		return r
	}
	for _, s := range lab.Sites {
		r := passes(s)
		for name, says := range map[string]string{"record": "none yet", "token": "record-missing", "health-listen": "free", "etcd-process": "signal mode"} {
			if c := r.get(name); c.State != preflight.OK || !strings.Contains(c.Detail, says) {
				t.Errorf("%+v, want %q", c, says)
			}
		}
	}
	if b, v, err := p.reg.Read(p.within()); err != nil || v.Exists() {
		t.Errorf("the check made a record: %q, %v", b, err)
	}
	if get, err := p.client("a").Get(p.within(), "/twok", clientv3.WithPrefix()); err != nil || len(get.Kvs) != 0 {
		t.Errorf("the check wrote keys: %v, %v", get, err)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	p.must(err)
	p.refuses("a", map[string]string{"health-listen": "address already in use"}, "--health-listen", l.Addr().String())
	p.must(l.Close())
	p.refuses("a", map[string]string{"timing": "election timeout 200ms"}, "--election-timeout", "100ms", "--claim-after", "300ms")
	nginx := arbitertest.StartNginx(t)
	p.refuses("a", map[string]string{"arbiter-probe": "store-untrusted", "token": "store-untrusted"}, "--arbiter", "http://"+nginx.Addr+"/pair")
	p.refuses("b", map[string]string{"arbiter-circular": "stands on the pair itself", "token": "store-untrusted"},
		"--arbiter", "etcd://"+strings.TrimPrefix(p.Site("a").ClientURL, "http://")+"/pair")
	p.refuses("a", map[string]string{"arbiter-probe": "connection refused", "token": "store-not-tried", "record": "arbiter-unavailable"},
		"--arbiter", "http://"+arbitertest.FreePort()+"/pair")
	// The other member's URLs: all else is fit, and this agent would watch an etcd that is not its own.
	p.refuses("a", map[string]string{"data-dir": "the data are of member"}, "--client-url", p.Site("b").ClientURL, "--peer-url", p.Site("b").PeerURL)
	if code, _, stderr := p.run("agent", "--check", "--data-dir", p.Site("a").DataDir, "--arbiter", p.Arbiter, "--claim-after", "1s", "--election-timeout", "1s"); code != 2 {
		t.Errorf("exit %d: %s", code, stderr)
	}

	// A third voter that never starts.
	var third *clientv3.MemberAddResponse
	p.until("a third voter is added", func(ctx context.Context) (err error) { // etcd waits for five quiet seconds
		third, err = p.client("a").MemberAdd(ctx, []string{"http://127.0.0.1:1"})
		return err
	})
	p.refuses("a", map[string]string{"voters": "third-voter", "other-member": "connection refused"})
	_, err = p.client("a").MemberRemove(p.within(), third.Member.ID)
	p.must(err)
	passes("a")

	// Flags that A0 excludes, one by one, on a real etcd.
	for _, flag := range []string{"--pre-vote=false", "--unsafe-no-fsync"} {
		p.Site("b").EtcdFlags(flag)
		p.must(p.Site("b").KillEtcd())
		p.refuses("b", map[string]string{"etcd-flags": flag, "token": "etcd-unsafe"})
		passes("a")
	}
	p.Site("b").EtcdFlags()
	p.must(p.Site("b").KillEtcd())
	passes("b")

	// The WAL elsewhere.
	wal := filepath.Join(p.Site("b").DataDir, "member", "wal")
	p.Site("b").EtcdFlags("--wal-dir", filepath.Join(p.dir, "wal-b"))
	p.Site("b").PauseRestarter()
	p.must(p.Site("b").StopEtcd())
	p.must(os.Rename(wal, filepath.Join(p.dir, "wal-b")))
	p.must(p.Site("b").StartEtcd())
	p.refuses("b", map[string]string{"wal-dir": "--wal-dir " + p.dir, "locks": "no WAL", "free-space": "not checked"})
}

// The other member goes: the survivor's agent says that it is alone, the check refuses. The survivor goes, and the other
// one is back: the check there refuses what needs a leader, and nothing else.
//
// Rules: P5, P11.
func TestCheckAlone(t *testing.T) {
	t.Parallel()
	p := start(t, "3.6", external)
	p.must(p.Site("b").Kill())
	p.role("a", "alone")
	p.refuses("a", map[string]string{"voters": "this member is alone", "other-member": "no other voter"})

	// A double failure: what refuses is what docs/operations.md tells the person who is to force a claim, and not
	// the port that the agent of this member has.
	p.must(p.Site("a").Kill())
	p.must(p.Site("b").Start())
	p.role("b", "lost")
	p.refuses("b", map[string]string{"etcd-answers": "member list", "voters": "not checked", "other-member": "no other voter",
		"arbiter-circular": "etcd does not answer", "token": "not known yet"})
	p.must(p.Site("a").Start())
	p.wholeAndAudited()
	for _, s := range lab.Sites {
		p.shows(s, http.StatusOK, func(st checkStatus) bool {
			return st.Armed && len(preflight.Names(st.Checks, preflight.Refused)) == 0
		})
	}
}

// Members of different minor versions: a warning at both, no refusal.
//
// Rules: P11, P12.
func TestCheckMixedVersions(t *testing.T) {
	t.Parallel()
	p := start(t, "3.7", external, func(c *lab.Config) { c.EtcdOf = map[string]lab.Binaries{"b": etcd(t, "3.6")} })
	for _, s := range lab.Sites {
		code, r := p.check(s)
		if c := r.get("mixed-versions"); code != 0 || c.State != preflight.Warning || !strings.Contains(c.Detail, "3.6.") || !strings.Contains(c.Detail, "3.7.") {
			t.Errorf("%s: exit %d, %+v", s, code, c)
		}
	}
	p.wholeAndAudited()
}

// withFlags adds flags to an agent's, before etcd's command.
func withFlags(args, more []string) []string {
	i := slices.Index(args, "--")
	if i < 0 {
		i = len(args)
	}
	return slices.Insert(slices.Clone(args), i, more...)
}

// The agents' client certificates expire while everything is well: both say so and that they are not armed, nobody takes
// a leader that it cannot see for one that is lost, and clients do not notice. Renewed files arm the pair again, by themselves.
//
// Rules: P11; F12.
func TestCertificateExpires(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ca.leaves()
	p := start(t, "3.6", external, func(c *lab.Config) { c.TLS = ca.tls(); c.ClaimAfter = 1500 * time.Millisecond })
	before := p.record()
	a, b := p.pids()
	for _, s := range lab.Sites {
		p.until(s+": a day is left, a warning", func(context.Context) error {
			code, r := p.check(s)
			if code != 0 || r.get("client-certificate").State != preflight.Warning || r.get("peer-certificate").State != preflight.Warning {
				return fmt.Errorf("exit %d, %+v", code, r)
			}
			return nil
		})
	}
	// The other clients keep theirs: the writer has read its file.
	ca.client("root", time.Now().Add(-time.Hour), time.Now().Add(5*time.Second))
	for _, s := range lab.Sites {
		p.shows(s, http.StatusServiceUnavailable, func(st checkStatus) bool {
			return !st.Armed && len(st.Warnings) > 0 && strings.HasPrefix(st.Warnings[0], "client-certificate: ") && strings.Contains(st.Warnings[0], "expired")
		})
	}
	// A connection that is open goes on. One that has to be made anew is refused.
	p.Site("a").KillAgent()
	p.Site("b").KillAgent()
	p.refuses("a", map[string]string{"client-certificate": "--client-cert: expired", "etcd-answers": "expired certificate", "voters": "not checked",
		"other-member": "not checked", "token": "not known", "arbiter-circular": "not checked"})
	for _, s := range lab.Sites {
		p.must(p.Site(s).StartAgent())
	}
	p.steady("the pair goes on", 5*time.Second, func(ctx context.Context) error {
		if x, y := p.pids(); x != a || y != b {
			return fmt.Errorf("the etcds were %d and %d, are %d and %d", a, b, x, y)
		}
		if rec, err := p.Record(ctx); err != nil || rec.Generation != before.Generation {
			return fmt.Errorf("the record is of generation %d, %v", rec.Generation, err)
		}
		return nil
	})
	p.written("a write while the agents see nothing")
	ca.leaves()
	p.wholeAndAudited()
	for _, s := range lab.Sites {
		p.shows(s, http.StatusOK, func(st checkStatus) bool { return st.Armed && len(st.Warnings) == 0 })
	}
}

// client makes a client's certificate for a while.
func (a *authority) client(name string, from, to time.Time) {
	a.Helper()
	a.make(name, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotBefore: from, NotAfter: to,
	})
}
