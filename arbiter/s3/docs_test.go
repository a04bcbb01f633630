package s3

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"twok/arbiter"
)

// The policy of docs/arbiters/s3.md gives the user what it needs and no more; and
// without it the user may do nothing.
// Rules: P1; F11.
func TestDocumentedPolicy(t *testing.T) {
	text, err := os.ReadFile("../../docs/arbiters/s3.md")
	if err != nil {
		t.Fatal(err)
	}
	_, policy, _ := strings.Cut(string(text), "```json\n")
	policy, _, ok := strings.Cut(policy, "```")
	if !ok {
		t.Fatal("docs/arbiters/s3.md has lost its policy")
	}
	iam := filepath.Join(t.TempDir(), "iam")
	if err := os.Mkdir(iam, 0o700); err != nil {
		t.Fatal(err)
	}
	g := startGateway(t, "--iam-dir", iam)
	admin := g.makeBucket(t)
	cmd := exec.CommandContext(t.Context(), g.argv[0], "admin", "--access", g.key, "--secret", g.secret, "--endpoint-url", "http://"+g.addr,
		"create-user", "--access", "pair1", "--secret", "secret of pair1", "--role", "user")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("create the user: %v: %s", err, out)
	}
	at := func(key string) *Register {
		cfg := g.config(g.addr, key)
		cfg.credentials = keys("pair1", "secret of pair1")
		return open(t, cfg)
	}
	check := func(when string, wants map[string]error) {
		t.Helper()
		for key, want := range wants {
			r := at(key)
			_, v, err := r.Read(t.Context())
			if arbiter.Class(err) != want {
				t.Errorf("%s: %s: read: %v", when, key, err)
			}
			if err := r.CompareAndSwap(t.Context(), v, []byte("x")); arbiter.Class(err) != want {
				t.Errorf("%s: %s: swap: %v", when, key, err)
			}
		}
	}
	check("without the policy", map[string]error{"pairs/one": arbiter.ErrForbidden})
	policy = bucketPolicy(t, strings.ReplaceAll(policy, "BUCKET", bucket), "pair1")
	if _, err := admin.PutBucketPolicy(t.Context(), &awss3.PutBucketPolicyInput{Bucket: aws.String(bucket), Policy: &policy}); err != nil {
		t.Fatal(err)
	}
	check("with the policy", map[string]error{
		"pairs/one": nil, "pairs/one.probe.8e9e05c52164694d": nil, "pairs/onemore": arbiter.ErrForbidden, "pairs/two": arbiter.ErrForbidden,
	})
}

// bucketPolicy makes a user's policy one of the bucket, which is what versitygw
// has. It knows no conditions, so the one on ListBucket's prefix is left out.
func bucketPolicy(t *testing.T, policy, user string) string {
	t.Helper()
	var p struct {
		Version   string
		Statement []map[string]any
	}
	if err := json.Unmarshal([]byte(policy), &p); err != nil {
		t.Fatalf("docs/arbiters/s3.md: %v", err)
	}
	for _, s := range p.Statement {
		s["Principal"] = map[string]any{"AWS": []string{user}}
		delete(s, "Condition")
	}
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
