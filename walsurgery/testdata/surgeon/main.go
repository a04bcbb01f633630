// Command surgeon runs one operation of walsurgery in a process of its own, so
// that a test can kill it or make a call of it fail. Built with -tags failpoints.
//
// It says on the standard output when the operation has succeeded, before it closes
// the log. Exit status: 0 done, 1 failed with an error as walsurgery promises it,
// 3 with another one.
//
// SURGEON_SEGMENT is the size of a segment; SURGEON_JOIN, _AFTER and _TERM: see joining; SURGEON_AS: see staged. With SURGEON_AGAIN a failed operation
// is done once more in the same process, as the agent does it; the exit status is
// that of the second time. With SURGEON_AGAIN=gc the garbage is collected between.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/storage/wal"

	"twok/internal/failpoint"
	"twok/walsurgery"
)

func main() {
	err := run(os.Args[1:])
	if again := os.Getenv("SURGEON_AGAIN"); err != nil && again != "" {
		fmt.Fprintln(os.Stderr, "surgeon: the first time:", err)
		if again == "gc" {
			runtime.GC()
			time.Sleep(20 * time.Millisecond) // finalizers run beside
			runtime.GC()
		}
		err = run(os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "surgeon:", err)
		if !promised(err) {
			os.Exit(3)
		}
		os.Exit(1)
	}
}

// joining is the append of a forced claim: SURGEON_JOIN are the owner's peer URLs, after SURGEON_AFTER removals it is added,
// in SURGEON_TERM or later.
func joining() ([]walsurgery.PlanOption, error) {
	var opts []walsurgery.PlanOption
	if t := os.Getenv("SURGEON_TERM"); t != "" {
		term, err := strconv.ParseUint(t, 10, 64)
		if err != nil {
			return nil, err
		}
		opts = append(opts, walsurgery.MinTerm(term))
	}
	if urls := os.Getenv("SURGEON_JOIN"); urls != "" {
		after, err := strconv.Atoi(os.Getenv("SURGEON_AFTER"))
		if err != nil {
			return nil, err
		}
		opts = append(opts, walsurgery.Join(strings.Split(urls, ","), after))
	}
	return opts, nil
}

// promised tells whether err is a sentinel of walsurgery or an error of the
// operating system.
func promised(err error) bool {
	for _, s := range []error{walsurgery.ErrNoWAL, walsurgery.ErrLocked, walsurgery.ErrCorrupt, walsurgery.ErrUnexpectedFormat,
		walsurgery.ErrNoSpace, walsurgery.ErrStalePlan, walsurgery.ErrCannotExchange, walsurgery.ErrExists, walsurgery.ErrClosed,
		failpoint.ErrInjected} {
		if errors.Is(err, s) {
			return true
		}
	}
	var errno syscall.Errno
	return errors.As(err, &errno)
}

// staged is append in one step, with SURGEON_AS under that ID; the log has it already after an earlier run.
func staged(dir string, remove []uint64) error {
	l, err := walsurgery.Open(nil, dir)
	if err != nil {
		return err
	}
	opts, err := joining()
	if err != nil {
		return errors.Join(err, l.Close())
	}
	if s := os.Getenv("SURGEON_AS"); s != "" {
		as, err := strconv.ParseUint(s, 16, 64)
		if err != nil {
			return errors.Join(err, l.Close())
		}
		opts = append(opts, walsurgery.As(as))
	}
	p, err := l.Plan(remove, opts...)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	aside, err := l.ApplyStaged(p)
	if err == nil {
		fmt.Println(aside)
	}
	return errors.Join(err, l.Close())
}

func run(args []string) error {
	if n := os.Getenv("SURGEON_SEGMENT"); n != "" {
		size, err := strconv.ParseInt(n, 10, 64)
		if err != nil {
			return err
		}
		wal.SegmentSizeBytes = size
	}
	var ids []uint64
	for _, s := range args[min(2, len(args)):] {
		id, err := strconv.ParseUint(s, 16, 64)
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	switch {
	case len(args) == 1 && args[0] == "list":
		if !failpoint.Enabled {
			return errors.New("built without failpoints")
		}
		for _, n := range failpoint.List() {
			fmt.Println(n)
		}
		return nil
	case len(args) >= 2 && args[0] == "append":
		l, err := walsurgery.Open(nil, args[1])
		if err != nil {
			return err
		}
		opts, err := joining()
		if err != nil {
			return errors.Join(err, l.Close())
		}
		p, err := l.Plan(ids, opts...)
		if err == nil {
			err = l.Apply(p)
		}
		if err == nil {
			fmt.Println("applied")
		}
		return errors.Join(err, l.Close())
	case len(args) >= 3 && args[0] == "staged":
		return staged(args[1], ids)
	case len(args) == 3 && args[0] == "rewrite":
		aside, err := walsurgery.RewriteID(nil, args[1], ids[0])
		if err == nil {
			fmt.Println(aside)
		}
		return err
	case len(args) == 4 && args[0] == "create":
		err := walsurgery.CreateEmpty(nil, args[1], walsurgery.Metadata{MemberID: ids[0], ClusterID: ids[1]})
		if err == nil {
			fmt.Println("created")
		}
		return err
	}
	return fmt.Errorf("usage: surgeon list | append WAL ID... | staged WAL ID... | rewrite WAL ID | create WAL ID CLUSTER, not %q", args)
}
