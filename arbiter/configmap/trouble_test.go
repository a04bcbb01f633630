package configmap

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"twok/arbiter"
	"twok/arbiter/arbitertest"
)

// adminConfig is the register of any ConfigMap with the administrator's rights.
func (c *cluster) adminConfig(t *testing.T, namespace, name string) Config {
	t.Helper()
	return Config{Namespace: namespace, Name: name, kubeconfig: c.kubeconfig(t, c.addr, "token: "+adminToken)}
}

// fails insists on a class and on words.
func fails(t *testing.T, what string, err, class error, words ...string) {
	t.Helper()
	if arbiter.Class(err) != class || err == nil {
		t.Errorf("%s: %v, want %v", what, err, class)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %v does not say %q", what, err, w)
		}
	}
}

// begin stores a first value and returns its version.
func begin(t *testing.T, r *Register) arbiter.Version {
	t.Helper()
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("first")); err != nil {
		t.Fatal(err)
	}
	return holds(t, r, "first")
}

func holds(t *testing.T, r *Register, want string) arbiter.Version {
	t.Helper()
	value, v, err := r.Read(context.WithoutCancel(t.Context()))
	if err != nil || string(value) != want {
		t.Fatalf("read %q, %v; want %q", value, err, want)
	}
	return v
}

// denied insists that the account may not do these.
func (c *cluster) denied(t *testing.T, token string, requests ...string) {
	t.Helper()
	for _, s := range append(requests,
		"GET "+configMapPath(""), "PUT "+configMapPath("pair"), "DELETE "+configMapPath("pair"), "DELETE "+configMapPath(""),
		"GET /api/v1/namespaces/"+namespace+"/secrets", "GET /api/v1/namespaces", "GET /api/v1/namespaces/default/configmaps/pair",
		"PATCH /api/v1/namespaces/default/configmaps/pair", "PATCH /apis/rbac.authorization.k8s.io/v1/namespaces/"+namespace+"/roles/pair",
	) {
		method, path, _ := strings.Cut(s, " ")
		code, answer, err := c.try(c.addr, token, method, strings.TrimSuffix(path, "/"), "application/merge-patch+json", "{}")
		if code != 403 {
			t.Errorf("%s: %d %s %v", s, code, answer, err)
		}
	}
}

// The shipped Roles permit what they must and nothing beside it.
//
// Rules: none (configuration).
func TestLeastPrivilege(t *testing.T) {
	c := kube(t)
	t.Run(wide, func(t *testing.T) {
		c.tenant(t, wide)
		for _, name := range []string{"pair", "pair.probe.cli", "pair.probe.00000000000000a1"} {
			begin(t, open(t, Config{Namespace: namespace, Name: name}))
		}
		c.denied(t, c.token(t))
	})
	t.Run(named, func(t *testing.T) {
		c.tenant(t, named)
		for _, name := range []string{"pair", "pair.probe.cli", "pair.probe.8e9e05c52164694d", "pair.probe.91bc3c398fb3c146"} {
			begin(t, open(t, Config{Namespace: namespace, Name: name}))
		}
		c.must(t, "POST", configMapPath(""), "application/json", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"other"}}`)
		c.denied(t, c.token(t), "GET "+configMapPath("other"), "PATCH "+configMapPath("other"), "POST "+configMapPath(""))
		r := open(t, Config{Namespace: namespace, Name: "other"})
		_, _, err := r.Read(t.Context())
		fails(t, "read", err, arbiter.ErrForbidden, "cannot get", "configmap-role.yaml")
		fails(t, "swap", r.CompareAndSwap(t.Context(), arbiter.At("1@u"), nil), arbiter.ErrForbidden, "cannot patch")
		c.must(t, "DELETE", configMapPath("pair"), "", "")
		r = open(t, Config{Namespace: namespace, Name: "pair"})
		fails(t, "create", r.CompareAndSwap(t.Context(), arbiter.Absent, nil), arbiter.ErrForbidden, "cannot create", "create if it does not exist")
	})
}

// What is not twok's in the ConfigMap stays, and whoever writes there makes a new version.
//
// Rules: P1; F28.
func TestOthersPartsStay(t *testing.T) {
	c := kube(t)
	c.tenant(t, named)
	r := open(t, Config{Namespace: namespace, Name: "pair"})
	v := begin(t, r)
	c.must(t, "PATCH", configMapPath("pair"), "application/merge-patch+json",
		`{"metadata":{"labels":{"team":"blue"},"annotations":{"why":"arbiter"}},"data":{"note":"of the operator"},"binaryData":{"blob":"/w=="}}`)
	fails(t, "swap from before somebody else's note", r.CompareAndSwap(t.Context(), v, []byte("second")), arbiter.ErrConflict)
	for _, value := range []string{"second", "\xff\xfe", "third"} {
		if err := r.CompareAndSwap(t.Context(), holds(t, r, map[string]string{"second": "first", "\xff\xfe": "second", "third": "\xff\xfe"}[value]), []byte(value)); err != nil {
			t.Fatal(err)
		}
		text := c.must(t, "GET", configMapPath("pair"), "", "")
		for _, w := range []string{`"team":"blue"`, `"why":"arbiter"`, `"note":"of the operator"`, `"blob":"/w=="`} {
			if !strings.Contains(text, w) {
				t.Errorf("%q is gone: %s", w, text)
			}
		}
		if n := strings.Count(text, `"record":`); n != 1 {
			t.Errorf("%d records: %s", n, text)
		}
	}
	// The key alone is removed: that is absent, and the rest is in the way of nobody.
	c.must(t, "PATCH", configMapPath("pair"), "application/merge-patch+json", `{"data":{"record":null}}`)
	if value, v, err := r.Read(t.Context()); err != nil || v.Exists() || value != nil {
		t.Errorf("%q %v %v", value, v, err)
	}
	begin(t, r)
}

// The traps of resourceVersion are there, and Register does not fall into them.
//
// Rules: P1; F28.
func TestResourceVersion(t *testing.T) {
	c := kube(t)
	c.tenant(t, named)
	r := open(t, Config{Namespace: namespace, Name: "pair"})
	v := begin(t, r)
	body := func(resourceVersion, value string) string {
		return fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"data":{"record":%q}}`, resourceVersion, value)
	}
	for _, any := range []string{"", "0"} {
		c.must(t, "PATCH", configMapPath("pair"), "application/merge-patch+json", body(any, "overwritten with "+any))
		now := holds(t, r, "overwritten with "+any)
		fails(t, "a swap from any", r.CompareAndSwap(t.Context(), arbiter.At(any+"@"+strings.Split(v.Tag(), "@")[1]), nil), arbiter.ErrConflict)
		if after := holds(t, r, "overwritten with "+any); after != now {
			t.Errorf("%v, %v", now, after)
		}
	}
	if code, answer, err := c.try(c.addr, adminToken, "PATCH", configMapPath("pair"), "application/merge-patch+json", body("garbage", "x")); code != 500 {
		t.Errorf("a garbage version: %d %s %v", code, answer, err)
	}
	// Identical content is no new version.
	now := holds(t, r, "overwritten with 0")
	if err := r.CompareAndSwap(t.Context(), now, []byte("overwritten with 0")); err != nil {
		t.Error(err)
	}
	if after := holds(t, r, "overwritten with 0"); after != now {
		t.Errorf("%v, %v", now, after)
	}
	// The right resourceVersion of another object.
	other, uid, _ := strings.Cut(now.Tag(), "@")
	wrong := arbiter.At(other + "@" + strings.Map(func(c rune) rune {
		if c == '-' {
			return c
		}
		return '0'
	}, uid))
	fails(t, "another UID", r.CompareAndSwap(t.Context(), wrong, []byte("x")), arbiter.ErrConflict)
	holds(t, r, "overwritten with 0")
	// Deleted and made again.
	c.must(t, "DELETE", configMapPath("pair"), "", "")
	fails(t, "deleted", r.CompareAndSwap(t.Context(), now, []byte("x")), arbiter.ErrConflict)
	if _, v, err := r.Read(t.Context()); err != nil || v.Exists() {
		t.Errorf("deleted: %v %v", v, err)
	}
	admin := open(t, c.adminConfig(t, namespace, "pair"))
	begin(t, admin)
	fails(t, "made again", r.CompareAndSwap(t.Context(), now, []byte("x")), arbiter.ErrConflict)
	holds(t, r, "first")
}

// What an administrator gets wrong, on a real apiserver, and what the words say.
//
// Rules: P1; F11.
func TestConfiguredWrong(t *testing.T) {
	c := kube(t)
	token := c.tenant(t, named)
	r := open(t, Config{Namespace: namespace, Name: "pair"})
	v := begin(t, r)
	all := func(what string, r *Register, class error, words ...string) {
		t.Helper()
		_, _, err := r.Read(t.Context())
		fails(t, what+", read", err, class, words...)
		fails(t, what+", create", r.CompareAndSwap(t.Context(), arbiter.Absent, nil), class, words...)
		fails(t, what+", swap", r.CompareAndSwap(t.Context(), v, nil), class, words...)
	}
	via := func(user string) *Register {
		return open(t, Config{Namespace: namespace, Name: "pair", kubeconfig: c.kubeconfig(t, c.addr, user)})
	}
	all("no credentials", via("{}"), arbiter.ErrForbidden, "system:anonymous")
	all("a token that nobody gave", via("token: nobody"), arbiter.ErrForbidden, "401", "renew")
	other := filepath.Join(t.TempDir(), "kubeconfig")
	stranger := &cluster{dir: t.TempDir()}
	stranger.certificates(t)
	write(t, other, kubeconfig("https://"+c.addr, "certificate-authority-data: "+base64.StdEncoding.EncodeToString(stranger.caPEM), "token: "+adminToken))
	all("another authority", open(t, Config{Namespace: namespace, Name: "pair", kubeconfig: other}), arbiter.ErrMisconfigured, "certificate-authority")
	write(t, other, kubeconfig("http://"+c.addr, "", "token: "+adminToken))
	_, _, err := open(t, Config{Namespace: namespace, Name: "pair", kubeconfig: other}).Read(t.Context())
	fails(t, "no TLS", err, arbiter.ErrMisconfigured, "HTTPS")
	write(t, other, kubeconfig(c.etcdURL, "", "{}"))
	all("an etcd", open(t, Config{Namespace: namespace, Name: "pair", kubeconfig: other}), arbiter.ErrMisconfigured, "apiserver")

	none := open(t, c.adminConfig(t, "none", "pair"))
	if _, v, err := none.Read(t.Context()); err != nil || v.Exists() {
		t.Errorf("a namespace that is missing, read: %v", err)
	}
	fails(t, "a namespace that is missing", none.CompareAndSwap(t.Context(), arbiter.Absent, nil), arbiter.ErrMisconfigured, `namespaces \"none\" not found`, "create the namespace")

	// The token expires in the middle, and is renewed.
	good := c.token(t)
	write(t, token, c.expired(t, good))
	all("an expired token", r, arbiter.ErrForbidden, "401", "token file")
	write(t, token, good)
	if err := r.CompareAndSwap(t.Context(), holds(t, r, "first"), []byte("second")); err != nil {
		t.Error(err)
	}

	// A terminating, and then an immutable ConfigMap.
	c.must(t, "PATCH", configMapPath("pair"), "application/merge-patch+json", `{"metadata":{"finalizers":["twok.invalid/stay"]}}`)
	v = holds(t, r, "second")
	c.must(t, "DELETE", configMapPath("pair"), "", "")
	_, _, err = r.Read(t.Context())
	fails(t, "being deleted, read", err, arbiter.ErrMisconfigured, "finalizers")
	fails(t, "being deleted, create", r.CompareAndSwap(t.Context(), arbiter.Absent, nil), arbiter.ErrMisconfigured, "finalizers")
	fails(t, "being deleted, swap", r.CompareAndSwap(t.Context(), v, nil), arbiter.ErrConflict)
	c.must(t, "PATCH", configMapPath("pair"), "application/merge-patch+json", `{"metadata":{"finalizers":null}}`)
	if _, v, err := r.Read(t.Context()); err != nil || v.Exists() {
		t.Errorf("deleted: %v, %v", v, err)
	}
	begin(t, open(t, c.adminConfig(t, namespace, "pair")))
	c.must(t, "PATCH", configMapPath("pair"), "application/merge-patch+json", `{"immutable":true}`)
	fails(t, "immutable", r.CompareAndSwap(t.Context(), holds(t, r, "first"), []byte("second")), arbiter.ErrMisconfigured, "immutable", "another name")
	holds(t, r, "first")

	// There is no room beside what others keep in the ConfigMap.
	c.must(t, "PATCH", configMapPath("pair.probe.cli"), "application/merge-patch+json", `{"data":{"big":"`+strings.Repeat("x", 1<<20-100)+`"}}`)
	full := open(t, Config{Namespace: namespace, Name: "pair.probe.cli"})
	fails(t, "full", full.CompareAndSwap(t.Context(), arbiter.Absent, []byte(strings.Repeat("x", 1000))), arbiter.ErrMisconfigured, "Too long")
	if _, v, err := full.Read(t.Context()); err != nil || v.Exists() {
		t.Errorf("full: %v, %v", v, err)
	}

	// The service account is gone, and so are its tokens.
	c.must(t, "DELETE", "/api/v1/namespaces/"+namespace+"/serviceaccounts/pair", "", "")
	var gone error
	for range 200 { // the authenticator keeps a token for ten seconds
		if _, _, gone = r.Read(t.Context()); gone != nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	fails(t, "no service account", gone, arbiter.ErrForbidden, "401")
}

// A namespace that is going takes no ConfigMap.
//
// Rules: P1; F11.
func TestTerminatingNamespace(t *testing.T) {
	c := kube(t)
	c.must(t, "POST", "/api/v1/namespaces", yaml, "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: going\n")
	c.must(t, "DELETE", "/api/v1/namespaces/going", "", "")
	defer c.must(t, "PUT", "/api/v1/namespaces/going/finalize", "application/json",
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"going"},"spec":{"finalizers":[]}}`)
	r := open(t, c.adminConfig(t, "going", "pair"))
	var err error
	for range 100 { // the admission plugin knows it after a moment
		if err = r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("x")); err != nil && arbiter.Class(err) != arbiter.ErrConflict {
			break
		}
	}
	fails(t, "create", err, arbiter.ErrMisconfigured, "namespace is being deleted")
}

// Priority and fairness refuse a request before anybody looks at it; nothing is
// made again.
//
// Rules: P1, P7; F13.
func TestFlowControl(t *testing.T) {
	c := kube(t)
	f := c.fixture(t, c.tenant(t, named), true)
	r, faults, err := f.Disturbed()
	if err != nil {
		t.Fatal(err)
	}
	defer faults.Close()
	direct := open(t, c.adminConfig(t, namespace, "pair"))
	v := begin(t, direct)
	const api = "/apis/flowcontrol.apiserver.k8s.io/v1/"
	c.must(t, "POST", api+"prioritylevelconfigurations", yaml, `apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: nothing}
spec: {type: Limited, limited: {nominalConcurrencyShares: 0, lendablePercent: 0, borrowingLimitPercent: 0, limitResponse: {type: Reject}}}
`)
	defer c.must(t, "DELETE", api+"prioritylevelconfigurations/nothing", "", "")
	c.must(t, "POST", api+"flowschemas", yaml, `apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: nothing}
spec:
  priorityLevelConfiguration: {name: nothing}
  matchingPrecedence: 3
  rules:
  - subjects: [{kind: ServiceAccount, serviceAccount: {name: pair, namespace: `+namespace+`}}]
    resourceRules: [{apiGroups: [""], resources: [configmaps], verbs: ["*"], namespaces: ["*"]}]
`)
	defer c.must(t, "DELETE", api+"flowschemas/nothing", "", "")
	// One request at a time passes even so; others of the same account are in its way.
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	refused := make(chan error, 100)
	for range 6 {
		reader := open(t, Config{Namespace: namespace, Name: "pair"})
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, _, err := reader.Read(ctx); err != nil && ctx.Err() == nil {
					select {
					case refused <- err:
					default:
					}
				}
			}
		})
	}
	for i := 0; ; i++ {
		before, next := faults.Requests(arbitertest.Swap), fmt.Sprint("swap ", i)
		err := r.CompareAndSwap(t.Context(), v, []byte(next))
		if n := faults.Requests(arbitertest.Swap) - before; n != 1 {
			t.Fatalf("%d requests of one swap: %v", n, err)
		}
		if err != nil {
			fails(t, "swap", err, arbiter.ErrUnavailable, "429", "fairness")
			if now, _, err := direct.Read(t.Context()); err != nil || string(now) == next {
				t.Errorf("%q, %v", now, err)
			}
			break
		}
		v = holds(t, direct, next)
		if i == 2000 {
			t.Fatal("no swap was refused")
		}
	}
	select {
	case err := <-refused:
		fails(t, "read", err, arbiter.ErrUnavailable, "429", "fairness")
	case <-time.After(time.Minute):
		t.Error("no read was refused")
	}
}

// An apiserver, and then an etcd, that stands still: the swap is unknown, and
// arrives, or not, when it goes on.
//
// Rules: P1; F13, F29.
func TestFrozen(t *testing.T) {
	c := kube(t)
	c.fixture(t, c.tenant(t, named), true)
	r := open(t, Config{Namespace: namespace, Name: "pair"})
	slow := open(t, Config{Namespace: namespace, Name: "pair", Timeout: 2 * time.Second})
	want := "first"
	v := begin(t, r)
	for _, p := range []*process{&c.apiserver, &c.etcd} {
		if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		next := fmt.Sprint("after ", p.cmd.Path)
		serr := slow.CompareAndSwap(t.Context(), v, []byte(next))
		_, _, rerr := slow.Read(t.Context())
		if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if class := arbiter.Class(serr); class != arbiter.ErrUnknown && class != arbiter.ErrUnavailable || !errors.Is(serr, context.DeadlineExceeded) {
			t.Errorf("swap: %v", serr)
		}
		if arbiter.Class(rerr) != arbiter.ErrUnavailable {
			t.Errorf("read: %v", rerr)
		}
		// One of the two, and only one in the end: a swap from its version settles it.
		for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			value, now, err := r.Read(t.Context())
			if err == nil && string(value) != want && string(value) != next {
				t.Fatalf("%q", value)
			}
			if err == nil {
				mine := "settled " + next
				err = r.CompareAndSwap(t.Context(), now, []byte(mine))
				if err == nil {
					t.Logf("%s: %v; found %q", filepath.Base(p.cmd.Path), serr, value)
					want, v = mine, holds(t, r, mine)
					break
				}
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
}
