package scenario

import (
	"slices"
	"testing"
	"time"

	"twok/internal/lab"
	"twok/testing/report"
)

// TestAbsences: an absence goes on while the state is the same, ends at the first look that shows another, and is each program's own.
//
// Rules: none (the harness).
func TestAbsences(t *testing.T) {
	var a absences
	for i, x := range []struct {
		site, program string
		state         lab.ProcState
	}{
		{"a", report.Etcd, lab.Running},
		{"a", report.Etcd, lab.Down}, // 1
		{"b", report.Etcd, lab.Frozen},
		{"a", report.Etcd, lab.Down},
		{"a", report.Agent, lab.Down},
		{"a", report.Etcd, lab.Frozen}, // 5
		{"a", report.Etcd, lab.Running},
		{"a", report.Etcd, lab.Running},
		{"a", report.Etcd, lab.Down},
	} {
		a.add(time.Duration(i), x.site, x.program, x.state)
	}
	want := []report.Absence{
		{Site: "a", Program: report.Etcd, State: "down", From: 1, To: 5, Ended: true},
		{Site: "b", Program: report.Etcd, State: "frozen", From: 2, To: 2},
		{Site: "a", Program: report.Agent, State: "down", From: 4, To: 4},
		{Site: "a", Program: report.Etcd, State: "frozen", From: 5, To: 6, Ended: true},
		{Site: "a", Program: report.Etcd, State: "down", From: 8, To: 8},
	}
	if !slices.Equal(a, want) {
		t.Errorf("%+v\nnot\n%+v", a, want)
	}
}
