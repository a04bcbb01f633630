package arbitertest

import (
	"bytes"
	"errors"
	"strings"

	"twok/arbiter"
)

func caseAbsent(k *kit) {
	f := k.fixture()
	a, b := k.client(f), k.client(f)
	k.absent("fresh register", a)
	k.absent("read a second time", a)
	k.absent("second client", b)
}

func caseCreate(k *kit) {
	f := k.fixture()
	a, b := k.client(f), k.client(f)
	first := record(1)
	k.swapped("create", a, arbiter.Absent, first)
	v := k.holds("after the create", a, first)
	k.classed("a second create", swap(a, arbiter.Absent, record(1)), arbiter.ErrConflict)
	k.classed("a create by another client", swap(b, arbiter.Absent, record(1)), arbiter.ErrConflict)
	if v2 := k.holds("after refused creates", b, first); v2 != v {
		k.failf("the version changed from %+v to %+v although nothing was written", v, v2)
	}
}

func caseStale(k *kit) {
	f := k.fixture()
	a, b := k.client(f), k.client(f)
	var versions []arbiter.Version
	prev := arbiter.Absent
	for g := uint64(1); g <= 5; g++ {
		r := a
		if g%2 == 0 {
			r = b
		}
		value := record(g)
		k.swapped("swap", r, prev, value)
		prev = k.holds("after a swap", r, value)
		for _, old := range append([]arbiter.Version{arbiter.Absent}, versions...) {
			if old == prev {
				k.failf("two values with fresh nonces have the version %+v", old)
			}
			for _, r := range []arbiter.Register{a, b} {
				k.classed("swap from an old version", swap(r, old, record(99)), arbiter.ErrConflict)
				if now := k.holds("after a refused swap", r, value); now != prev {
					k.failf("the version changed from %+v to %+v although nothing was written", prev, now)
				}
			}
		}
		versions = append(versions, prev)
	}
}

// caseNoSuchVersion: tags that no read gave, among them those that a protocol
// may take for "any".
func caseNoSuchVersion(k *kit) {
	for _, tag := range []string{"", "*", `"*"`, `""`, "0", "no-such-tag", `"no-such-tag"`, "W/\"x\"", "a\r\nIf-Match: *", `"x", *`} {
		f := k.fixture()
		r := k.client(f)
		if err := swap(r, arbiter.At(tag), record(1)); err == nil {
			k.failf("swap from version %q on an absent register: no error", tag)
		}
		k.absent("after a swap from a version that never was", r)
		value := record(1)
		k.swapped("create", r, arbiter.Absent, value)
		if err := swap(r, arbiter.At(tag), record(2)); err == nil {
			k.failf("swap from version %q, which no read gave: no error", tag)
		}
		k.holds("after a swap from a version that never was", r, value)
	}
}

// caseABA: a value that differs from an earlier one in nothing but its nonce
// must not make the earlier version valid again, whatever tags are made of.
func caseABA(k *kit) {
	f := k.fixture()
	slow, fast := k.client(f), k.client(f)
	k.swapped("create A", fast, arbiter.Absent, record(1))
	_, old, err := read(slow)
	k.must(err)
	b, again := record(2), record(1)
	_, v, err := read(fast)
	k.must(err)
	k.swapped("A to B", fast, v, b)
	k.swapped("B to A", fast, k.holds("B", fast, b), again)
	k.classed("swap from the first A", swap(slow, old, record(3)), arbiter.ErrConflict)
	k.holds("after the refused swap", slow, again)
}

func caseBytes(k *kit) {
	f := k.fixture()
	a, b := k.client(f), k.client(f)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	prev := arbiter.Absent
	for _, value := range [][]byte{
		[]byte("{}"), []byte("line\n"), []byte("line\r\n\r\n"), []byte(" leading and trailing \t"),
		[]byte("\u00e4\u20ac\U0001f600"), []byte("0\r\n\r\n"), record(7),
		[]byte(strings.Repeat("x", arbiter.MaxSize-1) + "\n"), all,
	} {
		if bytes.Equal(value, all) && f.Cannot[CanHoldGarbage] != "" {
			continue
		}
		next := bytes.Clone(value)
		k.swapped("swap", a, prev, next)
		if !bytes.Equal(next, value) {
			k.failf("the swap changed the caller's bytes")
		}
		clear(next) // the register must not keep the caller's slice
		k.holds("same client", a, value)
		prev = k.holds("second client", b, value)
		got, _, err := read(b)
		k.must(err)
		clear(got)
		k.holds("after the reader's bytes changed", b, value)
	}
}

func caseEmpty(k *kit) {
	f := k.fixture()
	k.must(f.can(CanHoldEmpty, true))
	a, b := k.client(f), k.client(f)
	k.must(f.Put([]byte{}))
	v := k.holds("an empty value", a, []byte{})
	if _, err := arbiter.Decode(nil); !errors.Is(err, arbiter.ErrEmpty) {
		k.failf("decode of nothing: %v", err)
	}
	k.classed("create over an empty value", swap(b, arbiter.Absent, record(1)), arbiter.ErrConflict)
	k.holds("after the refused create", b, []byte{})
	value := record(1)
	k.swapped("swap from the empty value", b, v, value)
	k.holds("after that", a, value)
}

func caseGarbage(k *kit) {
	f := k.fixture()
	k.must(f.can(CanHoldGarbage, true))
	a, b := k.client(f), k.client(f)
	for _, c := range []struct {
		value string
		want  error
	}{
		{" \n", arbiter.ErrWhitespace}, {"\n", arbiter.ErrWhitespace}, {"none", arbiter.ErrGarbage},
		{"\x00\xff\x00", arbiter.ErrGarbage}, {`{"holderIdentity":"m1"}`, arbiter.ErrForeign},
		{"<html>404 not found</html>\n", arbiter.ErrGarbage}, {"404", arbiter.ErrForeign},
	} {
		k.must(f.Put([]byte(c.value)))
		v := k.holds("garbage", a, []byte(c.value))
		if _, err := arbiter.Decode([]byte(c.value)); !errors.Is(err, c.want) {
			k.failf("decode %q: %v, want %v", c.value, err, c.want)
		}
		k.classed("create over garbage", swap(b, arbiter.Absent, record(1)), arbiter.ErrConflict)
		k.holds("after the refused create", b, []byte(c.value))
		k.swapped("swap from garbage", b, v, record(1))
	}
}

func caseForbidden(k *kit) {
	f := k.fixture()
	k.must(f.can(CanForbid, f.Forbidden != nil))
	stranger, err := f.Forbidden()
	k.must(err)
	check := func(when string) {
		value, v, err := read(stranger)
		k.classed("forbidden read, "+when, err, arbiter.ErrForbidden)
		if value != nil || v.Exists() {
			k.failf("forbidden read, %s: a value beside the error", when)
		}
	}
	check("absent register")
	k.classed("forbidden create", swap(stranger, arbiter.Absent, record(9)), arbiter.ErrForbidden)
	a := k.client(f)
	k.absent("after a forbidden create", a)
	value := record(1)
	k.swapped("create", a, arbiter.Absent, value)
	check("existing value")
	v := k.holds("existing value", a, value)
	k.classed("forbidden swap", swap(stranger, v, record(9)), arbiter.ErrForbidden)
	k.holds("after a forbidden swap", a, value)
}

func caseReadYourWrite(k *kit) {
	f := k.fixture()
	a, b := k.client(f), k.client(f)
	prev := arbiter.Absent
	for g := uint64(1); g <= 50; g++ {
		value := record(g)
		k.swapped("swap", a, prev, value)
		prev = k.holds("second client, at once", b, value)
		k.holds("the writer, at once", a, value)
		a, b = b, a
	}
	k.holds("a client opened later", k.client(f), record0(k, a))
}

func record0(k *kit, r arbiter.Register) []byte {
	value, _, err := read(r)
	k.must(err)
	return value
}
