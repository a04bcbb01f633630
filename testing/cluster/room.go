package cluster

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Room says whether the file system of dir has so many bytes free, and how many there are if not.
func Room(dir string, want int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("look how much room %s has: %w", dir, err)
	}
	if have := int64(st.Bavail) * st.Bsize; have < want {
		return fmt.Errorf("%s has room for %d MB, and %d are needed", dir, have/1e6, want/1e6)
	}
	return nil
}
