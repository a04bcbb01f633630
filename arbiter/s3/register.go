package s3

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"

	"twok/arbiter"
)

const (
	// DefaultTimeout bounds a call whose context has no earlier deadline.
	DefaultTimeout = 5 * time.Second
	// MaxValue is the largest value in bytes.
	MaxValue = 64 << 10
)

// Config of a Register.
type Config struct {
	// Bucket and Key name the object.
	Bucket, Key string
	// Region of the bucket. Empty: the AWS chain's, or us-east-1 if there is an Endpoint.
	Region string
	// Endpoint is the URL of a store that is not AWS. Empty: the AWS chain's, else AWS.
	Endpoint string
	// PathStyle puts the bucket into the path of the URL instead of the host name.
	PathStyle bool
	// Timeout of one call; 0 is DefaultTimeout.
	Timeout time.Duration

	credentials aws.CredentialsProvider // for tests; nil: the AWS chain
}

// Register is an arbiter.Register; see the package documentation.
type Register struct {
	bucket, key, shown string
	timeout            time.Duration
	client             *awss3.Client
}

var _ arbiter.Register = (*Register)(nil)

// New checks the configuration, reads the AWS chain's files, and sends nothing.
// Its error is ErrMisconfigured.
func New(cfg Config) (*Register, error) {
	r := &Register{bucket: cfg.Bucket, key: cfg.Key, timeout: cfg.Timeout, shown: "s3://" + cfg.Bucket + "/" + cfg.Key}
	fail := func(format string, args ...any) (*Register, error) {
		return nil, fmt.Errorf("the arbiter %s: %w: %w", r.shown, arbiter.ErrMisconfigured, fmt.Errorf(format, args...))
	}
	if err := cfg.check(); err != nil {
		return fail("%w", err)
	}
	if r.timeout == 0 {
		r.timeout = DefaultTimeout
	}
	chain, err := config.LoadDefaultConfig(context.Background())
	if err != nil {
		return fail("the AWS configuration: %w; check AWS_PROFILE, AWS_CONFIG_FILE and what they name", err)
	}
	if cfg.Region == "" {
		cfg.Region = chain.Region
	}
	if cfg.Region == "" && (cfg.Endpoint != "" || chain.BaseEndpoint != nil) {
		cfg.Region = "us-east-1" // what such stores call themselves
	}
	if cfg.Region == "" {
		return fail("no region: add ?region=…, or set AWS_REGION")
	}
	r.client = awss3.NewFromConfig(chain, func(o *awss3.Options) {
		o.Region, o.UsePathStyle = cfg.Region, cfg.PathStyle
		if cfg.Endpoint != "" {
			o.BaseEndpoint = aws.String(cfg.Endpoint)
		}
		if cfg.credentials != nil {
			o.Credentials = cfg.credentials
		}
		o.HTTPClient, o.HTTPSignerV4 = newHTTPClient(chain.HTTPClient), signer{}
		o.Retryer, o.RetryMaxAttempts = aws.NopRetryer{}, 0                              // R1
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired        // R6
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired        // else it logs
		o.Logger, o.ClientLogMode, o.ContinueHeaderThresholdBytes = logging.Nop{}, 0, -1 // no Expect: two answers are harder to read than one
	})
	return r, nil
}

func (cfg Config) check() error {
	switch {
	case cfg.Bucket == "":
		return errors.New("it names no bucket; use s3://BUCKET/KEY")
	case strings.Trim(cfg.Bucket, "abcdefghijklmnopqrstuvwxyz0123456789.-") != "" || len(cfg.Bucket) < 3 || len(cfg.Bucket) > 63:
		return errors.New("this is no bucket's name: 3 to 63 lower-case letters, digits, '.' and '-'")
	case strings.HasSuffix(cfg.Bucket, "--x-s3"):
		return errors.New("directory buckets are not supported; use a general purpose bucket")
	case cfg.Key == "":
		return errors.New("it names no key; use one for each pair, for example my-pair")
	case len(cfg.Key) > 900 || !utf8.ValidString(cfg.Key) || strings.ContainsFunc(cfg.Key, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return errors.New("the key must be at most 900 bytes of UTF-8 without control characters")
	case cfg.Timeout < 0:
		return fmt.Errorf("the timeout %v is negative", cfg.Timeout)
	}
	for _, segment := range strings.Split(cfg.Key, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return fmt.Errorf("the key has the segment %q, which proxies and stores change", segment)
		}
	}
	if cfg.Endpoint == "" {
		return nil
	}
	u, err := url.Parse(cfg.Endpoint)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return errors.New("the endpoint must be http://HOST[:PORT] or https://HOST[:PORT]")
	case u.User != nil:
		return errors.New("the endpoint holds a user; credentials come from the AWS chain: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE")
	case u.RawQuery != "" || u.Fragment != "":
		return errors.New("the endpoint has a query or a fragment")
	}
	return nil
}

// String is the object as a URL.
func (r *Register) String() string { return r.shown }

// Read implements arbiter.Register.
func (r *Register) Read(ctx context.Context) ([]byte, arbiter.Version, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	var last string
	for range maxReads {
		value, tag, err := r.get(ctx)
		if err != nil {
			return nil, arbiter.Absent, fmt.Errorf("read %s: %w", r.shown, err)
		}
		if value == nil {
			return nil, arbiter.Absent, nil
		}
		// R8: the same pair twice, with the tag read after the value was seen, is no torn one.
		pair := tag + " " + string(value)
		if belongs(tag, value) || pair == last {
			return value, arbiter.At(tag), nil
		}
		last = pair
	}
	return nil, arbiter.Absent, fmt.Errorf("read %s: %w: the value is overwritten all the time, and comes with the ETag of another one", r.shown, arbiter.ErrUnavailable)
}

// maxReads is how often Read asks while each value comes with another one's ETag.
const maxReads = 4

// belongs is false if the tag looks like the MD5 of the content and is not.
func belongs(tag string, value []byte) bool {
	sum, err := hex.DecodeString(strings.Trim(tag, `"`))
	if err != nil || len(sum) != md5.Size {
		return true // it tells nothing
	}
	return md5.Sum(value) == [md5.Size]byte(sum)
}

// get makes one request. A nil value without an error is absent.
func (r *Register) get(ctx context.Context) (value []byte, tag string, err error) {
	fail := func(class error, format string, args ...any) ([]byte, string, error) {
		return nil, "", fmt.Errorf("%w: %w", class, fmt.Errorf(format, args...))
	}
	ctx, c := withCall(ctx)
	out, err := r.client.GetObject(ctx, &awss3.GetObjectInput{Bucket: &r.bucket, Key: &r.key})
	if err == nil {
		defer out.Body.Close()
	}
	header := c.header()
	v := classify(c.outcome(false, false, err))
	switch {
	case (v.class == nil || v.absent) && header.Get("Age") != "":
		return fail(arbiter.ErrMisconfigured, "a cache answered (Age: %s); the store must be reached directly", header.Get("Age"))
	case v.absent:
		return nil, "", nil
	case v.class == nil && err != nil: // 200, and then no S3
		return fail(arbiter.ErrUnavailable, "%w", describe(ctx, c, v, err))
	case v.class != nil:
		return fail(v.class, "%w", describe(ctx, c, v, err))
	}
	if err := trustworthy(c); err != nil {
		return fail(arbiter.ErrMisconfigured, "%w", err)
	}
	value, err = io.ReadAll(io.LimitReader(out.Body, MaxValue+1))
	if err != nil {
		return fail(arbiter.ErrUnavailable, "the reply broke off after %d bytes: %w", len(value), err)
	}
	if len(value) > MaxValue {
		return fail(arbiter.ErrMisconfigured, "the value has more than %d bytes; it is no record", MaxValue)
	}
	return value, header.Get("ETag"), nil
}

// CompareAndSwap implements arbiter.Register.
func (r *Register) CompareAndSwap(ctx context.Context, prev arbiter.Version, next []byte) error {
	fail := func(class error, format string, args ...any) error {
		return fmt.Errorf("swap %s: %w: %w", r.shown, class, fmt.Errorf(format, args...))
	}
	if len(next) > MaxValue {
		return fail(arbiter.ErrMisconfigured, "the new value has %d bytes, at most %d", len(next), MaxValue)
	}
	in := &awss3.PutObjectInput{
		Bucket: &r.bucket, Key: &r.key, Body: bytes.NewReader(next),
		ContentLength: aws.Int64(int64(len(next))), ContentType: aws.String("application/json"),
	}
	if prev.Exists() {
		if err := arbiter.StrongETag(prev.Tag()); err != nil { // R2
			return fail(arbiter.ErrConflict, "version %.80q is not one that this store gave: %w", prev.Tag(), err)
		}
		in.IfMatch = aws.String(prev.Tag())
	} else {
		in.IfNoneMatch = aws.String("*")
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	ctx, c := withCall(ctx)
	_, err := r.client.PutObject(ctx, in)
	if v := classify(c.outcome(true, prev.Exists(), err)); v.class != nil {
		return fail(v.class, "%w", describe(ctx, c, v, err))
	}
	return nil
}

// trustworthy checks R3 on a 200 to a GET.
func trustworthy(c *call) error {
	resp := c.response()
	if resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 {
		return errors.New("the reply has no length; a cut one could not be told from a whole one")
	}
	tags := resp.Header.Values("ETag")
	if len(tags) != 1 {
		return fmt.Errorf("the reply has %d ETags; the store must send one strong ETag", len(tags))
	}
	if err := arbiter.StrongETag(tags[0]); err != nil {
		return fmt.Errorf("ETag %.80s: %w; a swap needs a strong one", tags[0], err)
	}
	return nil
}

// describe says what happened and what to do, and has the context's end in its chain.
func describe(ctx context.Context, c *call, v verdict, err error) error {
	o := c.outcome(false, false, err)
	var text string
	var api smithy.APIError
	switch {
	case o.status == 0 && o.connected:
		text = "no answer"
	case o.status == 0:
		text = "nothing was sent"
	default:
		text = fmt.Sprintf("the store answered %d %s", o.status, http.StatusText(o.status))
		if errors.As(err, &api) && api.ErrorCode() != "" {
			text += fmt.Sprintf(" (%s: %.200q)", api.ErrorCode(), api.ErrorMessage())
			err = nil
		}
	}
	if region := c.header().Get("X-Amz-Bucket-Region"); region != "" && o.status >= 300 {
		text += ", the bucket is in " + region
	}
	var id interface{ ServiceRequestID() string }
	var re *awshttp.ResponseError
	if errors.As(o.err, &re) {
		id = re
	}
	if id != nil && id.ServiceRequestID() != "" {
		text += ", request " + id.ServiceRequestID()
	}
	if v.remedy != "" {
		text += "; " + v.remedy
	}
	end := ctx.Err()
	switch {
	case err == nil && end == nil:
		return errors.New(text)
	case err == nil:
		return fmt.Errorf("%s: %w", text, end)
	case end == nil || errors.Is(err, end):
		return fmt.Errorf("%s: %w", text, err)
	}
	return fmt.Errorf("%s: %w: %w", text, end, err)
}
