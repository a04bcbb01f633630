package cluster

import (
	"strings"
	"testing"

	"twok/testing/network"
)

// A cut that dropped nothing in either direction is an error that names it; one that was met in one direction is none.
//
// Rules: none (the harness).
func TestIdle(t *testing.T) {
	ab, ba := network.Rule{From: "a", To: "b", Kind: network.All}, network.Rule{From: "b", To: "a", Kind: network.All}
	large, arb := network.Rule{From: "b", To: "a", Kind: network.Large}, network.Rule{From: "a", To: "arbiter", Kind: network.All}
	for _, c := range []struct {
		dropped map[network.Rule]uint64
		want    string
	}{
		{nil, ""},
		{map[network.Rule]uint64{ab: 3, ba: 0}, ""},
		{map[network.Rule]uint64{ab: 0, ba: 0}, "a and b (all)"},
		{map[network.Rule]uint64{ab: 3, ba: 4, large: 0}, "a and b (large)"},
		{map[network.Rule]uint64{ab: 3, arb: 0}, "a and arbiter (all)"},
	} {
		err := idle(c.dropped)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want+" dropped") {
			t.Errorf("%v: %v", c.dropped, err)
		}
	}
}
