package agent

import (
	"strconv"
	"strings"
)

// staleReads says whether this etcd version can serve a stale read as a leader
// that was paused and woke up (F26, etcd #20418): fixed in 3.5.28 and 3.6.9.
// Versions that are not understood are not accused.
func staleReads(version string) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) != 3 {
		return false
	}
	patch, _, _ := strings.Cut(parts[2], "-")
	n, err := strconv.Atoi(patch)
	if err != nil {
		return false
	}
	switch parts[0] + "." + parts[1] {
	case "3.5":
		return n < 28
	case "3.6":
		return n < 9
	}
	return false
}
