// Command surgeon runs one operation of walsurgery in a process of its own, so
// that a test can kill it at a named step. Built with -tags failpoints.
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"go.etcd.io/etcd/server/v3/storage/wal"

	"twok/internal/failpoint"
	"twok/walsurgery"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "surgeon:", err)
		os.Exit(1)
	}
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
		p, err := l.Plan(ids)
		if err == nil {
			err = l.Apply(p)
		}
		return errors.Join(err, l.Close())
	case len(args) == 3 && args[0] == "rewrite":
		aside, err := walsurgery.RewriteID(nil, args[1], ids[0])
		fmt.Println(aside)
		return err
	case len(args) == 4 && args[0] == "create":
		return walsurgery.CreateEmpty(nil, args[1], walsurgery.Metadata{MemberID: ids[0], ClusterID: ids[1]})
	}
	return fmt.Errorf("usage: surgeon list | append WAL ID... | rewrite WAL ID | create WAL ID CLUSTER, not %q", args)
}
