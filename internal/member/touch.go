package member

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Touch makes an empty database file if there is none, so that there is something to lock: etcd takes one
// for none (ErrEmpty). Directories and file get the owner of the data directory.
func Touch(dataDir string) error {
	dir := dataDir
	for _, sub := range []string{"member", "snap"} {
		dir = filepath.Join(dir, sub)
		if err := os.Mkdir(dir, 0o700); errors.Is(err, fs.ErrExist) {
			continue
		} else if err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
		d, err := os.Open(dir)
		if err == nil {
			err = errors.Join(GiveToOwner(d), d.Close())
		}
		if err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	f, err := os.OpenFile(DBPath(dataDir), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make an empty database: %w", err)
	}
	if err := errors.Join(GiveToOwner(f), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("make an empty database: %w", err)
	}
	return nil
}
