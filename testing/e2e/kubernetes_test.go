package e2e

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"twok/arbiter/configmap"
	"twok/internal/lab"
)

// wanted skips a test where no apiserver is asked for: it takes long to build.
func wanted(t *testing.T) {
	t.Helper()
	if os.Getenv("TWOK_KUBERNETES") == "" {
		t.Skip("needs a real apiserver: make test-kubernetes")
	}
}

// kubernetes starts a real apiserver.
func kubernetes(t *testing.T, etcd string) *lab.Kubernetes {
	t.Helper()
	wanted(t)
	dir, err := os.MkdirTemp("", "twok-e2e-kubernetes-")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	k, err := lab.StartKubernetes(ctx, dir, etcd, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the apiserver's files and log are kept in %s", dir)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return k
}

// record is the record's register.
func record(t *testing.T, k *lab.Kubernetes) *configmap.Register {
	t.Helper()
	name, value, _ := strings.Cut(k.Env[0], "=")
	t.Setenv(name, value)
	r, err := configmap.New(configmap.Config{Namespace: "twok", Name: "pair"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// With the record in a ConfigMap of a real apiserver: what onStore does.
//
// Rules: A1, P1, P2, P4, P7, P8, P12; F29, F30, F37.
func TestKubernetesArbiter(t *testing.T) {
	wanted(t)
	onStore(t, back(t, "configmap"), "3.7")
}

// The same with a link that cuts half the calls at any byte.
//
// Rules: A1, P1, P3, P7, P8; F29, F30, F37.
func TestKubernetesBadLink(t *testing.T) {
	wanted(t)
	onBadLink(t, back(t, "configmap"), "3.6")
}

// The same with an apiserver that is slow, at the product's own timing; with TWOK_E2E=full.
//
// Rules: A1, P1, P7, P8; F13, F37.
func TestKubernetesSlow(t *testing.T) {
	wanted(t)
	if !full {
		t.Skip("takes some minutes: TWOK_E2E=full")
	}
	onSlowLink(t, back(t, "configmap"))
}

// The shipped Role with names, with the two members' IDs in it, and a token of its service account: what
// namedOneByOne does.
//
// Rules: A1, P11; F9, F11.
func TestKubernetesRoleByExactNames(t *testing.T) {
	wanted(t)
	b := back(t, "configmap")
	root, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	shipped, err := os.ReadFile(filepath.Join(root, "deploy", "arbiters", "configmap-role-named.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if err := b.k.Apply(ctx, "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: pair, namespace: twok}\n"); err != nil {
		t.Fatal(err)
	}
	token, err := b.k.ServiceAccountToken(ctx, "pair")
	if err != nil {
		t.Fatal(err)
	}
	b.token = file(t, t.TempDir(), "token", token)
	role := ""                             // as it is in force
	named := func(names ...string) error { // as the file says: the ConfigMaps, and their names in the Role
		_, err := b.k.Request(ctx, http.MethodPut, "/apis/rbac.authorization.k8s.io/v1/namespaces/twok/roles/pair", role)
		for _, name := range names {
			err = errors.Join(err, b.k.Apply(ctx, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "+name+", namespace: twok}\n"))
		}
		return err
	}
	namedOneByOne(t, b, func(names ...string) error {
		switch {
		case role == "": // the record; the members' IDs are not known yet
			var docs []string
			for doc := range strings.SplitSeq(string(shipped), "\n---\n") {
				switch {
				case strings.Contains("\n"+doc, "\nkind: Role\n"):
					role = doc
				case strings.Contains("\n"+doc, "\nkind: ServiceAccount\n"):
					continue
				}
				docs = append(docs, doc)
			}
			return b.k.Apply(ctx, strings.Join(docs, "\n---\n"))
		case len(names) == 3: // the record and the two first ones
			role = strings.NewReplacer("pair.probe.8e9e05c52164694d", names[1], "pair.probe.91bc3c398fb3c146", names[2]).Replace(role)
			return named(names[1:]...)
		}
		role = strings.Replace(role, `"pair.probe.cli"`, `"pair.probe.cli", "`+names[0]+`"`, 1)
		return named(names...)
	})
}

// replace is by rename, as whoever renews a token does.
func replace(path, text string) error {
	tmp := filepath.Join(filepath.Dir(path), "new")
	return errors.Join(os.WriteFile(tmp, []byte(text), 0o600), os.Rename(tmp, path))
}

// An apiserver that keeps its objects in the pair is no arbiter of that pair: the agents
// do not arm, and say why; etcd runs and takes writes.
//
// Rules: A1, P11.
func TestKubernetesOnThePair(t *testing.T) {
	wanted(t)
	p := prepare(t, "3.7")
	p.untraced = "the agents go from one register to another"
	p.must(p.Start(p.within()))
	p.whole()
	k := kubernetes(t, p.Site("a").ClientURL)
	for _, s := range lab.Sites {
		p.Site(s).AgentFlags("--arbiter", k.URL)
		p.Site(s).AgentEnv(k.Env...)
		p.Site(s).KillAgent()
		p.must(p.Site(s).StartAgent())
	}
	for _, s := range lab.Sites {
		p.reason(s, "store-untrusted")
		p.until(s+" says why", func(context.Context) error {
			if len(p.logLines(p.Site(s).AgentLog, "keeps it in the etcd that this agent guards")) == 0 {
				return errors.New("it does not")
			}
			return nil
		})
	}
	// What the apiserver itself writes to the pair went on all the time.
	if _, v, err := record(t, k).Read(t.Context()); err != nil || v.Exists() {
		t.Errorf("a record was written: %v, %v", v, err)
	}
	p.write()
	p.written("a write in the pair")
}
