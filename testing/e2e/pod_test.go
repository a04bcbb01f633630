package e2e

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"twok/internal/lab"
)

// pod is what a kubelet would give an agent in a pod: the files of a service account where client-go
// looks for them, and the environment. It is a mount namespace, so this needs root or user namespaces; the
// agent is a process like any other otherwise.
type pod struct {
	files string // the directory at /var/run/secrets/kubernetes.io/serviceaccount
	twok  string // the program, in such a namespace
}

const podScript = `#!/bin/sh
exec unshare FLAGS sh -ec 'mount -t tmpfs pod "$(readlink -f /var/run)"
mkdir -p /var/run/secrets/kubernetes.io
ln -s FILES /var/run/secrets/kubernetes.io/serviceaccount
exec TWOK "$@"' sh "$@"
`

// newPod lays the files out as a kubelet does.
func newPod(t *testing.T, token string, ca []byte) *pod {
	t.Helper()
	dir := t.TempDir()
	p := &pod{files: filepath.Join(dir, "files"), twok: filepath.Join(dir, "twok")}
	flags := "-m"
	if os.Getuid() != 0 {
		flags = "-rm"
	}
	script := strings.NewReplacer("FLAGS", flags, "FILES", p.files, "TWOK", twok(t)).Replace(podScript)
	err := errors.Join(os.WriteFile(p.twok, []byte(script), 0o700), os.Mkdir(p.files, 0o700), p.put(token, ca),
		os.Symlink("..data/token", filepath.Join(p.files, "token")), os.Symlink("..data/ca.crt", filepath.Join(p.files, "ca.crt")))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// put gives the pod another token, all files at once.
func (p *pod) put(token string, ca []byte) error {
	data, err := os.MkdirTemp(p.files, "..data-")
	if err != nil {
		return err
	}
	tmp := filepath.Join(p.files, "..data_tmp")
	return errors.Join(os.WriteFile(filepath.Join(data, "token"), []byte(token), 0o600), os.WriteFile(filepath.Join(data, "ca.crt"), ca, 0o600),
		os.Symlink(filepath.Base(data), tmp), os.Rename(tmp, filepath.Join(p.files, "..data")))
}

// env is the environment of an agent that reaches the apiserver at addr; it has no kubeconfig.
func (p *pod) env(addr string) []string {
	host, port, err := net.SplitHostPort(addr)
	if p == nil || err != nil {
		return nil
	}
	return []string{"KUBECONFIG=", "HOME=/nonexistent", "KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
}

// Agents in pods of the arbiter's own cluster, with a service account and the shipped Role, and nothing else: what
// onStore does. What expires is the account's token: the account is deleted, made again, and the pods get a new token.
//
// Rules: A1, P1, P2, P4, P7, P8, P12; F37.
func TestKubernetesInCluster(t *testing.T) {
	wanted(t)
	b := back(t, "configmap")
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := lab.Root()
	must(err)
	shipped, err := os.ReadFile(filepath.Join(root, "deploy", "arbiters", "configmap-role.yaml"))
	must(err)
	must(b.k.Apply(ctx, string(shipped)))
	token, err := b.k.ServiceAccountToken(ctx, "pair")
	must(err)
	ca, err := b.k.CA()
	must(err)
	b.pod = newPod(t, token, ca)
	b.expire = func() error {
		_, err := b.k.Request(ctx, "DELETE", "/api/v1/namespaces/twok/serviceaccounts/pair", "")
		return err
	}
	b.renew = func() error {
		if err := b.k.Apply(ctx, "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: pair, namespace: twok}\n"); err != nil {
			return err
		}
		token, err := b.k.ServiceAccountToken(ctx, "pair")
		return errors.Join(err, b.pod.put(token, ca))
	}
	onStore(t, b, "3.7")
}
