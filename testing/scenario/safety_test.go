package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"

	"twok/testing/cluster"
	"twok/testing/network"
)

// wanted says that scenarios are to be played: they need root, which make test does not.
var wanted = os.Getenv("TWOK_SAFETY") != ""

func TestMain(m *testing.M) {
	status, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

func run(m *testing.M) (status int, err error) {
	if !wanted {
		return m.Run(), nil
	}
	if cluster.Proxy() || network.Outside() {
		// The apiserver takes too long: who wants it has built it.
		clean, perr := Prepare(context.Background(), Default(), "", "", os.Stderr)
		defer func() { err = errors.Join(err, clean()) }()
		if perr != nil {
			return 1, perr
		}
	}
	if !cluster.Proxy() {
		if inside, status, err := network.Enter(); !inside {
			return status, err
		}
	}
	return m.Run(), nil
}

// TestSafety plays the cells that -run selects, FAULT/ROLE/VERSION/ARBITER/MODE; without -run the whole matrix,
// which takes half a day. TWOK_SAFETY_SEED is the seed, 1 by default.
//
// Rules: P1, P2, P3, P4, P5, P7, P8, P9, P10, P12, P13, P14, P16; F1, F2, F3, F4, F5, F6, F7, F8, F9, F10, F12, F13, F15, F18, F19, F20, F21, F22, F23, F24, F25, F26, F27, F31, F32, F33, F34, F35, F37.
func TestSafety(t *testing.T) {
	if !wanted {
		t.Skip("needs root and minutes: make test-safety, or TWOK_SAFETY=1 go test ./testing/scenario -run 'TestSafety/cut-both/pair/3.6'")
	}
	dir, err := os.MkdirTemp("", "twok-safety-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs, traces and histories are kept in %s", dir)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	cfg := Config{Dir: dir, Seed: 1, TraceLimit: 300_000, Log: os.Stderr}
	if s := os.Getenv("TWOK_SAFETY_SEED"); s != "" {
		if cfg.Seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	var nest func(t *testing.T, cells []Cell, level int)
	nest = func(t *testing.T, cells []Cell, level int) {
		if level == 5 {
			r := Play(t.Context(), cells[0], cfg)
			t.Log(r.Line())
			if r.Red() {
				t.Errorf("%s: %s", r.Verdict(), r.Error)
			}
			return
		}
		var order []string
		by := map[string][]Cell{}
		for _, c := range cells {
			part := []string{c.Fault.Name, c.Role, c.Minor, c.Arbiter, c.Mode}[level]
			if by[part] == nil {
				order = append(order, part)
			}
			by[part] = append(by[part], c)
		}
		for _, part := range order {
			t.Run(part, func(t *testing.T) { nest(t, by[part], level+1) })
		}
	}
	nest(t, Matrix(), 0)
}
