package configmap

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"twok/arbiter"
)

// Scratch is in the name of every ConfigMap that Mark may write to.
const Scratch = ".probe."

// Place is where an apiserver keeps a ConfigMap in its etcd. A pair whose own
// etcd has a key that Is the place of its arbiter must not use that arbiter: the record
// would be lost with the quorum that it is needed for.
type Place struct {
	// Suffix is the end of the key, "configmaps/NAMESPACE/NAME". Before it stands the
	// apiserver's --etcd-prefix, and a slash.
	Suffix string
	// Revision is the mod revision that the last write gave the key: the apiserver
	// hands it out as the resourceVersion, whatever it encrypts.
	Revision int64
}

// Key is the whole key for an apiserver's --etcd-prefix, which is "/registry" if none was given.
func (p Place) Key(prefix string) string { return strings.TrimRight(prefix, "/") + "/" + p.Suffix }

// Is says whether a key of an etcd is this place: by its end, since the prefix is
// the apiserver's, and by its mod revision, so that the ConfigMap of the same name of
// another Kubernetes is not taken for it.
func (p Place) Is(key []byte, modRevision int64) bool {
	return p.Suffix != "" && modRevision == p.Revision && bytes.HasSuffix(key, []byte("/"+p.Suffix))
}

// Mark writes a scratch ConfigMap and says where its apiserver put it. To look for it,
// read the keys of the local etcd linearizably, Key("/registry") first.
//
// It refuses (ErrMisconfigured) a Register whose name has no Scratch in it, so that it
// never touches a record. After every error nothing is known of the place; after
// ErrConflict and ErrUnknown it may be tried again at once.
func (r *Register) Mark(ctx context.Context) (Place, error) {
	fail := func(err error) (Place, error) {
		return Place{}, fmt.Errorf("mark %s: %w", r.shown, err)
	}
	if !strings.Contains(r.name, Scratch) {
		return fail(fmt.Errorf("%w: this is no scratch ConfigMap, whose name has %q in it", arbiter.ErrMisconfigured, Scratch))
	}
	_, v, err := r.Read(ctx)
	if err != nil {
		return fail(err)
	}
	mine := []byte("twok looks for this in its own etcd: " + arbiter.NewNonce())
	if err := r.CompareAndSwap(ctx, v, mine); err != nil {
		return fail(err)
	}
	value, v, err := r.Read(ctx)
	if err != nil {
		return fail(err)
	}
	if !bytes.Equal(value, mine) {
		return fail(fmt.Errorf("%w: somebody else wrote it meanwhile", arbiter.ErrConflict))
	}
	p := Place{Suffix: "configmaps/" + r.namespace + "/" + r.name}
	resourceVersion, _, _ := split(v)
	if _, err := fmt.Sscan(resourceVersion, &p.Revision); err != nil {
		return fail(fmt.Errorf("%w: resourceVersion %s is no revision of an etcd", arbiter.ErrMisconfigured, resourceVersion))
	}
	return p, nil
}
