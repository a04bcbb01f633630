package s3

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"twok/arbiter"
	"twok/arbiter/arbitertest"
)

const (
	accessKey = "twoktwoktwok"
	secretKey = "a secret of the tests"
	bucket    = "arbiter"
)

// TestMain takes the AWS chain of the machine out of the tests.
func TestMain(m *testing.M) {
	for _, e := range os.Environ() {
		if name, _, _ := bytes.Cut([]byte(e), []byte("=")); bytes.HasPrefix(name, []byte("AWS_")) {
			os.Unsetenv(string(name))
		}
	}
	os.Setenv("AWS_CONFIG_FILE", os.DevNull)
	os.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	os.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	// A retry that the SDK is asked for must not be made.
	os.Setenv("AWS_MAX_ATTEMPTS", "5")
	os.Setenv("AWS_RETRY_MODE", "adaptive")
	os.Exit(m.Run())
}

var versitygw = sync.OnceValues(func() ([]string, error) { return arbitertest.Tool("versitygw") })

// gateway is a real S3 server on loopback that ends with the test.
type gateway struct {
	addr, scheme string
	key, secret  string
	cmd          *exec.Cmd
	argv         []string
	env          []string
	log          string
}

// startGateway starts versitygw on a directory of its own, with an empty bucket.
func startGateway(t *testing.T, args ...string) *gateway {
	t.Helper()
	bin, err := versitygw()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	g := &gateway{addr: arbitertest.FreePort(), scheme: "http", key: accessKey, secret: secretKey, log: filepath.Join(t.TempDir(), "log"),
		env: []string{"ROOT_ACCESS_KEY=" + accessKey, "ROOT_SECRET_KEY=" + secretKey}}
	g.argv = append(append([]string{bin[0], "--port", g.addr, "--quiet"}, args...), "posix", dir)
	for _, a := range args {
		if a == "--cert" {
			g.scheme = "https"
		}
	}
	g.start(t)
	return g
}

func (g *gateway) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(g.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	g.cmd = exec.Command(g.argv[0], g.argv[1:]...)
	g.cmd.Env = append(os.Environ(), g.env...)
	g.cmd.Stdout, g.cmd.Stderr = log, log
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd := g.cmd
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if text, err := os.ReadFile(g.log); err == nil && t.Failed() {
			t.Logf("the server says:\n%s", text[max(0, len(text)-2000):])
		}
	})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", g.addr)
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func keys(key, secret string) aws.CredentialsProvider {
	return credentials.NewStaticCredentialsProvider(key, secret, "")
}

// admin is the SDK's own client, for what an administrator or a stray tool does.
func (g *gateway) admin() *awss3.Client {
	return awss3.New(awss3.Options{
		Region: "us-east-1", UsePathStyle: true, BaseEndpoint: aws.String(g.scheme + "://" + g.addr), Credentials: keys(g.key, g.secret),
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
	})
}

func (g *gateway) makeBucket(t *testing.T) *awss3.Client {
	t.Helper()
	admin := g.admin()
	if _, err := admin.CreateBucket(t.Context(), &awss3.CreateBucketInput{Bucket: aws.String(bucket)}); err != nil {
		t.Fatal(err)
	}
	return admin
}

// config is the object with this key through addr.
func (g *gateway) config(addr, key string) Config {
	return Config{Bucket: bucket, Key: key, Endpoint: g.scheme + "://" + addr, PathStyle: true, credentials: keys(g.key, g.secret)}
}

func (g *gateway) fixture(admin *awss3.Client, key string) arbitertest.Fixture {
	return arbitertest.Fixture{
		Addr:    g.addr,
		Open:    func() (arbiter.Register, error) { return New(g.config(g.addr, key)) },
		OpenVia: func(addr string) (arbiter.Register, error) { return New(g.config(addr, key)) },
		Forbidden: func() (arbiter.Register, error) {
			cfg := g.config(g.addr, key)
			cfg.credentials = keys(g.key, "wrong")
			return New(cfg)
		},
		Put: func(value []byte) error {
			_, err := admin.PutObject(context.Background(), &awss3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: bytes.NewReader(value)})
			return err
		},
	}
}

func open(t *testing.T, cfg Config) *Register {
	t.Helper()
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
