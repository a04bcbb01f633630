package member

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// onFullDisk runs f in a directory of a file system without a free block, which only its thread sees.
func onFullDisk(t *testing.T, prepare, f func(dir string) error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may mount")
	}
	dir := t.TempDir()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
				return err
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return err
			}
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16k"); err != nil {
				return err
			}
			if err := prepare(dir); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, "etcd's"), make([]byte, 16<<10), 0o600); err != nil && !errors.Is(err, unix.ENOSPC) {
				return err
			}
			return f(dir)
		}()
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A full disk keeps no agent from its start: with etcd under it that would end etcd, and a survivor would not be watched over. The lock
// holds, only who has it is not said.
//
// Rules: P20; F31.
func TestAgentLockOnFullDisk(t *testing.T) {
	once := func(dir string) error {
		lock, err := AgentLock(dir)
		if err != nil {
			return err
		}
		if _, err := AgentLock(dir); !errors.Is(err, ErrHeld) {
			err = errors.Join(errors.New("a second agent was not refused"), err)
			return errors.Join(err, lock.Close())
		}
		return lock.Close()
	}
	onFullDisk(t, func(string) error { return nil }, once)
	onFullDisk(t, once, once) // an agent that ran before
}
