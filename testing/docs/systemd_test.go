package docs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const systemd = "../../deploy/systemd"

// unit is a unit file: section, key, values in order.
type unit map[string]map[string][]string

// readUnit reads the part of systemd's syntax that the shipped units use (systemd.syntax(7)); anything else is an error.
func readUnit(path string) (unit, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	u := unit{}
	section := ""
	text := strings.ReplaceAll(string(b), "\\\n", " ")
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#' || line[0] == ';':
		case line[0] == '[' && strings.HasSuffix(line, "]"):
			section = line[1 : len(line)-1]
			if u[section] == nil {
				u[section] = map[string][]string{}
			}
		default:
			k, v, ok := strings.Cut(line, "=")
			if !ok || section == "" || strings.TrimSpace(k) != k || k == "" {
				return nil, errors.New(path + ": neither a section nor KEY=VALUE: " + line)
			}
			u[section][k] = append(u[section][k], v)
		}
	}
	return u, nil
}

func (u unit) last(section, key string) string {
	v := u[section][key]
	if len(v) == 0 {
		return ""
	}
	return v[len(v)-1]
}

// The shipped units say what the modes need, and not what would break them.
//
// Rules: none (deployment); F4, F15, F18.
func TestUnits(t *testing.T) {
	for _, c := range []struct {
		file       string
		want       map[string]string // SECTION.KEY
		supervises bool
	}{
		{"twok-agent.service", map[string]string{
			"Service.ExecStart": "/usr/local/bin/twok agent", "Service.EnvironmentFile": "/etc/twok/agent.env", "Service.Restart": "always",
			"Unit.StartLimitIntervalSec": "0", "Service.User": "etcd", "Service.ReadWritePaths": "/var/lib/etcd", "Install.WantedBy": "multi-user.target",
		}, false},
		{"twok-etcd.service", map[string]string{
			"Service.Restart": "always", "Unit.StartLimitIntervalSec": "0", "Service.User": "etcd", "Service.KillMode": "process",
			"Service.OOMPolicy": "continue", "Unit.Conflicts": "etcd.service", "Install.WantedBy": "multi-user.target",
		}, true},
		{"etcd.service.d/twok.conf", map[string]string{"Service.Restart": "always", "Unit.StartLimitIntervalSec": "0"}, false},
	} {
		u, err := readUnit(filepath.Join(systemd, c.file))
		if err != nil {
			t.Fatal(err)
		}
		for k, want := range c.want {
			section, key, _ := strings.Cut(k, ".")
			if got := u.last(section, key); got != want {
				t.Errorf("%s: %s is %q, want %q", c.file, k, got, want)
			}
		}
		for s := range u {
			if !slices.Contains([]string{"Unit", "Service", "Install"}, s) {
				t.Errorf("%s: section %q", c.file, s)
			}
		}
		// Neither mode survives these: the other unit's stop would be ours, or etcd could not be seen.
		for _, k := range []string{"Requires", "Requisite", "BindsTo", "PartOf", "Upholds"} {
			if v := u["Unit"][k]; v != nil {
				t.Errorf("%s: %s=%q", c.file, k, v)
			}
		}
		if u["Service"]["ProtectProc"] != nil || u["Service"]["ProcSubset"] != nil || u["Service"]["PrivatePIDs"] != nil || u["Service"]["PrivateUsers"] != nil {
			t.Errorf("%s hides processes from the agent", c.file)
		}
		if exec := u.last("Service", "ExecStart"); strings.Contains(exec, " -- ") != c.supervises {
			t.Errorf("%s: ExecStart=%s", c.file, exec)
		}
	}
	bad := filepath.Join(t.TempDir(), "bad.service")
	if err := os.WriteFile(bad, []byte("[Service]\nExecStart /bin/true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if u, err := readUnit(bad); err == nil {
		t.Errorf("%v", u)
	}
}

// systemd itself takes the units, where it is installed. (TestUnits reads them everywhere.)
//
// Rules: none (deployment).
func TestUnitsBySystemd(t *testing.T) {
	verify, err := exec.LookPath("systemd-analyze")
	if errors.Is(err, exec.ErrNotFound) {
		t.Log("NOT RUN: no systemd-analyze on this machine")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	check := func(file string, change func(string) string) (string, error) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(systemd, file))
		if err != nil {
			t.Fatal(err)
		}
		// It wants the programs to be there.
		text := change(strings.NewReplacer("/usr/local/bin/twok", self, "/usr/local/bin/etcd", self).Replace(string(b)))
		path := filepath.Join(t.TempDir(), file)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), verify, "verify", "--man=no", path).CombinedOutput()
		return string(out), err
	}
	for _, file := range []string{"twok-agent.service", "twok-etcd.service"} {
		if out, err := check(file, func(s string) string { return s }); err != nil || strings.Contains(out, file) {
			t.Errorf("%s: %v: %s", file, err, out)
		}
		if out, err := check(file, func(s string) string {
			return strings.Replace(s, "KillMode=process", "KillMode=gently", 1) + "\n[Service]\nRestart=sometimes\n"
		}); !strings.Contains(out, "sometimes") {
			t.Errorf("%s: a wrong value is taken: %v: %s", file, err, out)
		}
	}
}
