package etcd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"twok/arbiter"
)

// The commands of docs/arbiters/etcd.md give the user what it needs and no more.
// Rules: P1; F11.
func TestDocumentedRole(t *testing.T) {
	text, err := os.ReadFile("../../docs/arbiters/etcd.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(text), "```sh\n")
	block, _, ok := strings.Cut(block, "```")
	if !ok {
		t.Fatal("docs/arbiters/etcd.md has lost its commands")
	}
	bin, err := binaries["3.7"]()
	if err != nil {
		t.Fatal(err)
	}
	c := startCluster(t, "3.7", 1)
	m := c.members[0]
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", block)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(bin[1])+":"+os.Getenv("PATH"), "ETCDCTL_ENDPOINTS="+m.url(), "PASSWORD=secret")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", block, err, out)
	}
	enableAuth(t, c)
	at := func(key string) *Register {
		return open(t, Config{Endpoints: c.endpoints(), Key: key, Login: loginAs("twok-one", "secret")})
	}
	for key, want := range map[string]error{
		"pairs/one/record": nil, "pairs/one/record.probe.8e9e05c52164694d": nil,
		"pairs/one": arbiter.ErrForbidden, "pairs/onemore/record": arbiter.ErrForbidden, "none": arbiter.ErrForbidden,
	} {
		r := at(key)
		_, v, err := r.Read(t.Context())
		if arbiter.Class(err) != want {
			t.Errorf("%s: read: %v", key, err)
		}
		if err := r.CompareAndSwap(t.Context(), v, []byte("x")); arbiter.Class(err) != want {
			t.Errorf("%s: swap: %v", key, err)
		}
	}
}
