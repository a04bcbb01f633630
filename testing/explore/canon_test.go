package explore

import (
	"bytes"
	"fmt"
	"math/rand"
	"reflect"
	"testing"
)

// A world that is rewritten into its canonical form after every move behaves as
// one that never is: the canonical forms stay the same, and so do the violations.
//
// Rules: none (the explorer itself).
func TestCanonical(t *testing.T) {
	walks := 400
	if testing.Short() {
		walks = 60
	}
	for seed := range int64(walks) {
		if err := bisimulate(seed); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func bisimulate(seed int64) error {
	r := rand.New(rand.NewSource(seed))
	off := []Switches{0, 0, 0, Without(P1), Without(P13), Without(P14Txn, P14Conn)}[r.Intn(6)]
	o := Options{Off: off, Third: r.Intn(2) == 0, Operators: r.Intn(2) == 0, Rare: r.Intn(2) == 0}
	names := SeedNames()
	root := names[r.Intn(len(names))]
	raw, err := Seed(root, off)
	if err != nil {
		return err
	}
	raw.Max = 1 << 20
	form, flip := Canonical(raw)
	moves := o.moves()
	var did []string
	for range 80 {
		c := decode(form, off, 1<<20)
		m := moves[r.Intn(len(moves))]
		n := *raw
		abs := m
		if flip {
			abs = m.flip()
		}
		a, b := n.Apply(abs), c.Apply(m)
		if c.may(m) != (b && c.may(m)) && b {
			return fmt.Errorf("%v: %s is possible and may says no", did, m)
		}
		if a != b {
			return fmt.Errorf("%v: %s is possible in one world only (%v, %v)\n%s\n%s", did, abs, a, b, raw, c)
		}
		if !a {
			continue
		}
		did = append(did, abs.String())
		if n.Prop != c.Prop {
			return fmt.Errorf("%v: %q in one world, %q in the other", did, n.Prop, c.Prop)
		}
		if n.Broken() {
			return nil
		}
		f1, flip1 := Canonical(&n)
		f2, flip2 := Canonical(c)
		if !bytes.Equal(f1, f2) {
			return fmt.Errorf("seed %s, %q: the worlds differ in %s\n%s\n%s", root, did, difference(f1, f2), &n, c)
		}
		again, _ := Canonical(decode(f1, off, 1<<20))
		if !bytes.Equal(again, f1) {
			return fmt.Errorf("%v: a canonical form is not its own: %s\n%s", did, difference(f1, again), &n)
		}
		_ = flip1
		flip = flip != flip2
		form, raw = f2, &n
	}
	return nil
}

// difference names the first thing in which two canonical forms differ.
func difference(a, b []byte) string {
	x, y := decode(a, 0, 0), decode(b, 0, 0)
	var walk func(path string, p, q reflect.Value) string
	walk = func(path string, p, q reflect.Value) string {
		switch p.Kind() {
		case reflect.Struct:
			for i := range p.NumField() {
				if d := walk(path+"."+p.Type().Field(i).Name, p.Field(i), q.Field(i)); d != "" {
					return d
				}
			}
		case reflect.Array, reflect.Slice:
			if p.Len() != q.Len() {
				return path + " in length"
			}
			for i := range p.Len() {
				if d := walk(fmt.Sprintf("%s[%d]", path, i), p.Index(i), q.Index(i)); d != "" {
					return d
				}
			}
		case reflect.Pointer:
			if p.IsNil() != q.IsNil() {
				return path + " in being there"
			}
			if !p.IsNil() {
				return walk(path, p.Elem(), q.Elem())
			}
		default:
			if !p.Equal(q) {
				return fmt.Sprintf("%s: %v and %v", path, p, q)
			}
		}
		return ""
	}
	return walk("", reflect.ValueOf(*x), reflect.ValueOf(*y))
}
