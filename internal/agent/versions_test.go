package agent

import "testing"

// Rules: F26.
func TestStaleReads(t *testing.T) {
	for version, want := range map[string]bool{
		"3.5.27": true, "3.5.28": false, "3.5.35": false, "3.6.0": true, "3.6.8": true, "3.6.9": false,
		"3.6.9-rc.1": false, "3.7.0": false, "": false, "3.6": false, "x.y.z": false,
	} {
		if got := staleReads(version); got != want {
			t.Errorf("staleReads(%q) = %v, want %v", version, got, want)
		}
	}
}
