package agent

import "testing"

// Rules: A1, P11.
func TestSharedHost(t *testing.T) {
	names := map[string][]string{"store": {"10.0.0.9"}, "m1": {"10.0.0.1", "fd00::1"}, "m2": {"10.0.0.2"}, "alias": {"10.0.0.2"}}
	own := []string{"https://127.0.0.1:2379", "https://127.0.0.1:2380", "https://m1:2380"}
	other := []string{"https://m2:2380", "https://10.0.0.2:2379", "not a url\x7f"}
	for _, c := range []struct {
		store      string
		own, other []string
		want       string
	}{
		{"store", own, other, ""},
		{"10.0.0.9", own, other, ""},
		{"m1", own, other, "this member"},
		{"10.0.0.1", own, other, "this member"},
		{"fd00::1", own, other, "this member"},
		{"m2", own, other, "the other member"},
		{"10.0.0.2", own, other, "the other member"},
		{"alias", own, other, "the other member"},
		{"unknown", own, other, ""},
		{"unknown", own, []string{"https://unknown:2380"}, "the other member"},
		{"127.0.0.1", own, other, "this member"}, // whatever is there: each member has its own
		{"localhost", own, other, "this member"},
		{"127.0.0.1", own[:2], []string{"http://127.0.0.1:3380"}, ""}, // all on one machine
		{"m1", own[:2], nil, ""},
	} {
		if got := sharedHost(c.store, c.own, c.other, func(h string) []string { return names[h] }); got != c.want {
			t.Errorf("%s beside %q and %q: %q, want %q", c.store, c.own, c.other, got, c.want)
		}
	}
}
