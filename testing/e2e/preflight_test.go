package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

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
	args := append([]string{"agent", "--check", "--json"}, more...)
	code, out, stderr := p.run(append(args, p.Site(site).AgentArgs()[2:]...)...)
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
	for _, minor := range lab.Minors {
		for _, mode := range []lab.Mode{lab.External, lab.Supervise} {
			t.Run(minor+"/"+string(mode), func(t *testing.T) {
				p := start(t, minor, func(c *lab.Config) { c.Mode = mode })
				a, b := p.pids()
				before, err := p.Site("a").Status(p.within())
				p.must(err)
				var want []string
				for _, c := range preflight.Checks() {
					want = append(want, c.Name)
				}
				for range 2 {
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
				}
				p.written("a write after the checks")
				if x, y := p.pids(); x != a || y != b {
					t.Errorf("the etcds were %d and %d, are %d and %d", a, b, x, y)
				}
				after, err := p.Site("a").Status(p.within())
				p.must(err)
				if after.Leader != before.Leader || after.RaftTerm != before.RaftTerm {
					t.Errorf("leader %x in term %d became %x in term %d", before.Leader, before.RaftTerm, after.Leader, after.RaftTerm)
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
