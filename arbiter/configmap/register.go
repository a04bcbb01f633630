package configmap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"twok/arbiter"
)

const (
	// DefaultTimeout bounds a call whose context has no earlier deadline.
	DefaultTimeout = 5 * time.Second
	// DefaultKey is the ConfigMap's key that holds the value.
	DefaultKey = "record"
	// MaxValue is the largest value in bytes.
	MaxValue = 64 << 10

	// waiting is how many calls may wait for a credential plugin at a time.
	waiting = 8
)

// Config of a Register. The cluster and the credentials are not in it: they come
// from the kubeconfig or the pod's service account.
type Config struct {
	// Namespace and Name of the ConfigMap. The namespace must exist.
	Namespace, Name string
	// Key in the ConfigMap; "" is DefaultKey.
	Key string
	// Timeout of one call; 0 is DefaultTimeout.
	Timeout time.Duration

	kubeconfig string // for tests, in place of the environment's
}

// Register is an arbiter.Register; see the package documentation.
type Register struct {
	namespace, name, key string
	shown, server        string
	timeout              time.Duration
	kubeconfig           string
	slots                chan struct{}
}

var _ arbiter.Register = (*Register)(nil)

// New checks the configuration, reads the kubeconfig and what it names, and sends
// nothing. Its error is ErrMisconfigured.
func New(cfg Config) (*Register, error) {
	r := &Register{
		namespace: cfg.Namespace, name: cfg.Name, key: cfg.Key, shown: "configmap://" + cfg.Namespace + "/" + cfg.Name,
		timeout: cfg.Timeout, kubeconfig: cfg.kubeconfig, slots: make(chan struct{}, waiting),
	}
	fail := func(err error) (*Register, error) {
		return nil, fmt.Errorf("the arbiter %s: %w: %w", r.shown, arbiter.ErrMisconfigured, err)
	}
	if err := cfg.check(); err != nil {
		return fail(err)
	}
	if r.key == "" {
		r.key = DefaultKey
	}
	if r.timeout == 0 {
		r.timeout = DefaultTimeout
	}
	a, err := load(r.kubeconfig)
	if err != nil {
		return fail(err)
	}
	r.server = a.server()
	return r, nil
}

const lowerDigits = "abcdefghijklmnopqrstuvwxyz0123456789"

func (cfg Config) check() error {
	label := func(s string) bool {
		return s != "" && strings.Trim(s, lowerDigits+"-") == "" && s[0] != '-' && s[len(s)-1] != '-'
	}
	if !label(cfg.Namespace) || len(cfg.Namespace) > 63 {
		return fmt.Errorf("namespace %q: 1 to 63 lower-case letters, digits and '-'; use configmap://NAMESPACE/NAME", cfg.Namespace)
	}
	for _, part := range strings.Split(cfg.Name, ".") {
		if !label(part) || len(cfg.Name) > 253 {
			return fmt.Errorf("name %q: 1 to 253 lower-case letters, digits, '-' and '.'; use configmap://NAMESPACE/NAME", cfg.Name)
		}
	}
	if cfg.Key != "" && (len(cfg.Key) > 253 || strings.Trim(cfg.Key, lowerDigits+strings.ToUpper(lowerDigits)+"-_.") != "" ||
		cfg.Key == "." || strings.HasPrefix(cfg.Key, "..")) {
		return fmt.Errorf("key %q: at most 253 letters, digits, '-', '_' and '.'", cfg.Key)
	}
	if cfg.Timeout < 0 {
		return fmt.Errorf("the timeout %v is negative", cfg.Timeout)
	}
	return nil
}

// String is the ConfigMap as a URL.
func (r *Register) String() string { return r.shown }

// Read implements arbiter.Register.
func (r *Register) Read(ctx context.Context) ([]byte, arbiter.Version, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	o, exists, err := r.get(ctx)
	if err != nil {
		return nil, arbiter.Absent, fmt.Errorf("read %s: %w", r.shown, err)
	}
	value, ok := o.value(r.key)
	if !exists || !ok {
		return nil, arbiter.Absent, nil
	}
	if len(value) > MaxValue {
		return nil, arbiter.Absent, fmt.Errorf("read %s: %w: key %s has more than %d bytes; it is no record", r.shown, arbiter.ErrMisconfigured, r.key, MaxValue)
	}
	return value, o.version(), nil
}

// get is the ConfigMap as it is now. Its error begins with the class.
func (r *Register) get(ctx context.Context) (o object, exists bool, err error) {
	a, v := r.send(ctx, get, nil)
	if v.class != nil {
		return o, false, fmt.Errorf("%w: %w", v.class, a.describe(v))
	}
	if err := a.trust(); err != nil {
		return o, false, err
	}
	if v.absent {
		return o, false, nil
	}
	if a.bodyErr != nil {
		return o, false, fmt.Errorf("%w: the answer broke off after %d bytes: %w", arbiter.ErrUnavailable, len(a.body), a.bodyErr)
	}
	o, err = r.decode(a)
	if err != nil {
		return o, false, fmt.Errorf("%w: %w", arbiter.ErrMisconfigured, err)
	}
	if o.Metadata.DeletionTimestamp != "" {
		return o, false, fmt.Errorf("%w: the ConfigMap is being deleted since %.40s and waits for its finalizers; let it go, or use another name",
			arbiter.ErrMisconfigured, o.Metadata.DeletionTimestamp)
	}
	return o, true, nil
}

// CompareAndSwap implements arbiter.Register.
func (r *Register) CompareAndSwap(ctx context.Context, prev arbiter.Version, next []byte) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	if err := r.swap(ctx, prev, next); err != nil {
		return fmt.Errorf("swap %s: %w", r.shown, err)
	}
	return nil
}

func (r *Register) swap(ctx context.Context, prev arbiter.Version, next []byte) error {
	if len(next) > MaxValue {
		return fmt.Errorf("%w: the new value has %d bytes, at most %d", arbiter.ErrMisconfigured, len(next), MaxValue)
	}
	if prev.Exists() {
		resourceVersion, uid, ok := split(prev)
		if !ok { // R2
			return fmt.Errorf("%w: version %.80q is not one that this store gave", arbiter.ErrConflict, prev.Tag())
		}
		return r.write(ctx, patch, resourceVersion, uid, next)
	}
	o, exists, err := r.get(ctx)
	if err != nil {
		return fmt.Errorf("look whether it exists: %w", err)
	}
	if !exists {
		return r.write(ctx, post, "", "", next)
	}
	if _, ok := o.value(r.key); ok {
		return fmt.Errorf("%w: there is a value at version %s", arbiter.ErrConflict, o.version().Tag())
	}
	return r.write(ctx, patch, o.Metadata.ResourceVersion, o.Metadata.UID, next)
}

// write makes the one write of a call.
func (r *Register) write(ctx context.Context, method, resourceVersion, uid string, next []byte) error {
	var body []byte
	var err error
	if method == post {
		body, err = r.create(next)
	} else {
		body, err = mergePatch(r.key, resourceVersion, uid, next)
	}
	if err != nil {
		return fmt.Errorf("%w: encode: %w", arbiter.ErrMisconfigured, err)
	}
	a, v := r.send(ctx, method, body)
	if v.class != nil {
		return fmt.Errorf("%w: %w", v.class, a.describe(v))
	}
	if err := r.took(a, next); err != nil {
		return fmt.Errorf("%w: %s answered %d: %w", arbiter.ErrUnknown, method, a.code, err)
	}
	return nil
}

// took checks that the object in the answer holds what was sent.
func (r *Register) took(a answer, next []byte) error {
	if a.bodyErr != nil {
		return fmt.Errorf("the answer broke off after %d bytes: %w", len(a.body), a.bodyErr)
	}
	if a.cached != "" {
		return fmt.Errorf("a cache answered (Age: %s); the apiserver must be reached directly", a.cached)
	}
	o, err := r.decode(a)
	if err != nil {
		return err
	}
	if value, ok := o.value(r.key); !ok || !bytes.Equal(value, next) {
		return errors.New("the ConfigMap does not hold what was sent; is there an admission webhook that changes it?")
	}
	return nil
}
