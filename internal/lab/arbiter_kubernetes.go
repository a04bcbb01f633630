package lab

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

// Via writes a kubeconfig to file that leads to the apiserver through what link returns for its address, with
// the token in tokenFile, and returns what a process needs in its environment. It is ArbiterVia for a URL that
// names no address.
func (k *Kubernetes) Via(file, tokenFile string, link func(target string) (string, error)) (env []string, err error) {
	addr, err := link(strings.TrimPrefix(k.base, "https://"))
	if err != nil {
		return nil, err
	}
	config, _, _ := strings.Cut(k.Env[0], "=")
	own, err := os.ReadFile(strings.TrimPrefix(k.Env[0], config+"="))
	if err != nil {
		return nil, err
	}
	text := strings.NewReplacer(k.base, "https://"+addr, k.TokenFile, tokenFile).Replace(string(own))
	return []string{config + "=" + file}, os.WriteFile(file, []byte(text), 0o600)
}

// Request is an administrator's request with a body in YAML. An answer other than 2xx is an error.
func (k *Kubernetes) Request(ctx context.Context, method, path, body string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, k.base+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+k.Token)
	req.Header.Set("Content-Type", "application/yaml")
	req.Header.Set("Accept", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: k.roots}}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %.300s", method, path, resp.Status, answer)
	}
	return answer, err
}

// Apply creates the objects of a manifest in the namespace "twok": ConfigMaps, and what a
// service account needs.
func (k *Kubernetes) Apply(ctx context.Context, manifest string) error {
	for doc := range strings.SplitSeq(manifest, "\n---\n") {
		kind := ""
		for line := range strings.Lines(doc) {
			if after, ok := strings.CutPrefix(line, "kind: "); ok {
				kind = strings.TrimSpace(after)
			}
		}
		api := "/api/v1"
		switch kind {
		case "ConfigMap", "ServiceAccount":
		case "Role", "RoleBinding":
			api = "/apis/rbac.authorization.k8s.io/v1"
		default:
			return fmt.Errorf("apply a manifest: an object of the kind %q", kind)
		}
		if _, err := k.Request(ctx, http.MethodPost, api+"/namespaces/twok/"+strings.ToLower(kind)+"s", doc); err != nil {
			return err
		}
	}
	return nil
}

// ServiceAccountToken asks the apiserver for a token of a service account in the namespace
// "twok", for an hour.
func (k *Kubernetes) ServiceAccountToken(ctx context.Context, account string) (string, error) {
	answer, err := k.Request(ctx, http.MethodPost, "/api/v1/namespaces/twok/serviceaccounts/"+account+"/token",
		"apiVersion: authentication.k8s.io/v1\nkind: TokenRequest\nspec: {expirationSeconds: 3600}\n")
	if err != nil {
		return "", err
	}
	var out struct{ Status struct{ Token string } }
	if err := json.Unmarshal(answer, &out); err != nil {
		return "", fmt.Errorf("token of %s: %w", account, err)
	}
	if out.Status.Token == "" {
		return "", fmt.Errorf("token of %s: the answer holds none", account)
	}
	return out.Status.Token, nil
}

// CA is the authority of the apiserver's certificate, in PEM.
func (k *Kubernetes) CA() ([]byte, error) {
	for i, arg := range k.argv {
		if arg == "--tls-cert-file" {
			return os.ReadFile(k.argv[i+1])
		}
	}
	return nil, fmt.Errorf("%v names no certificate", k.argv)
}
