package configmap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"twok/arbiter"
)

// object is what is looked at of a ConfigMap.
type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Namespace         string `json:"namespace"`
		Name              string `json:"name"`
		UID               string `json:"uid"`
		ResourceVersion   string `json:"resourceVersion"`
		DeletionTimestamp string `json:"deletionTimestamp"`
	} `json:"metadata"`
	Data       map[string]string `json:"data"`
	BinaryData map[string][]byte `json:"binaryData"`
}

// decode checks that a whole answer is this ConfigMap in a usable version.
func (r *Register) decode(a answer) (object, error) {
	var o object
	dec := json.NewDecoder(bytes.NewReader(a.body))
	if err := dec.Decode(&o); err != nil {
		return o, fmt.Errorf("the answer is no ConfigMap: %w; does the kubeconfig lead to an apiserver?", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return o, errors.New("the answer has something behind the ConfigMap; does the kubeconfig lead to an apiserver?")
	}
	m := o.Metadata
	switch {
	case o.Kind != "ConfigMap" || o.APIVersion != "v1" || m.Namespace != r.namespace || m.Name != r.name:
		return o, fmt.Errorf("the answer is %.40q %.40q %.80q in %.80q; does the kubeconfig lead to an apiserver?", o.APIVersion, o.Kind, m.Name, m.Namespace)
	case !decimal(m.ResourceVersion):
		return o, fmt.Errorf("resourceVersion %.40q is no positive number; a swap needs one", m.ResourceVersion)
	case !plain(m.UID):
		return o, fmt.Errorf("UID %.80q is none", m.UID)
	}
	return o, nil
}

// value is that of the key; ok is false if there is none.
func (o object) value(key string) (value []byte, ok bool) {
	if text, ok := o.Data[key]; ok {
		return []byte(text), true
	}
	value, ok = o.BinaryData[key]
	if ok && value == nil {
		value = []byte{}
	}
	return value, ok
}

// version names the object by its UID too.
func (o object) version() arbiter.Version {
	return arbiter.At(o.Metadata.ResourceVersion + "@" + o.Metadata.UID)
}

// split is the reverse of version. It is false for what no read gave (R2).
func split(v arbiter.Version) (resourceVersion, uid string, ok bool) {
	resourceVersion, uid, ok = strings.Cut(v.Tag(), "@")
	return resourceVersion, uid, ok && decimal(resourceVersion) && plain(uid)
}

// decimal: a positive number as the apiserver writes one. "" and "0" mean "any" to it.
func decimal(s string) bool {
	return s != "" && len(s) <= 20 && s[0] != '0' && strings.Trim(s, "0123456789") == ""
}

func plain(uid string) bool {
	return uid != "" && len(uid) <= 128 && strings.Trim(uid, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-") == ""
}

// content is the key's part of a ConfigMap (R8). A null removes it from the other map.
func content(key string, value []byte, patch bool) map[string]any {
	here, there := "data", "binaryData"
	var v any = string(value)
	if !utf8.Valid(value) {
		here, there, v = there, here, value // a []byte is base64 in JSON
	}
	m := map[string]any{here: map[string]any{key: v}}
	if patch {
		m[there] = map[string]any{key: nil}
	}
	return m
}

// mergePatch is the JSON merge patch (RFC 7396) of a swap.
func mergePatch(key, resourceVersion, uid string, value []byte) ([]byte, error) {
	m := content(key, value, true)
	m["metadata"] = map[string]string{"resourceVersion": resourceVersion, "uid": uid}
	return json.Marshal(m)
}

// create is a whole ConfigMap.
func (r *Register) create(value []byte) ([]byte, error) {
	m := content(r.key, value, false)
	m["apiVersion"], m["kind"] = "v1", "ConfigMap"
	m["metadata"] = map[string]string{"namespace": r.namespace, "name": r.name}
	return json.Marshal(m)
}
