package httpcas

import (
	"io"
	"os"
	"path/filepath"
)

// disk is what the store does to its directory, so that tests can fail or crash
// it at every operation. Names are relative to the directory.
type disk interface {
	create(name string) (diskFile, error) // for writing; truncates
	rename(from, to string) error         // replaces, atomically
	syncDir() error                       // makes renames durable
	read(name string) ([]byte, error)
	list() ([]string, error)
}

type diskFile interface {
	io.WriteCloser
	Sync() error
}

type osDisk struct{ dir string }

func (d osDisk) path(name string) string { return filepath.Join(d.dir, name) }

func (d osDisk) create(name string) (diskFile, error) {
	return os.OpenFile(d.path(name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
}

func (d osDisk) rename(from, to string) error { return os.Rename(d.path(from), d.path(to)) }

func (d osDisk) syncDir() error { return syncDir(d.dir) }

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

func (d osDisk) read(name string) ([]byte, error) { return os.ReadFile(d.path(name)) }

func (d osDisk) list() ([]string, error) {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}
