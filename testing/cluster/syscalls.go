package cluster

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"twok/internal/lab"
)

// syncing are the system calls that Options.Syncs takes down.
const syncing = "sync,syncfs,fsync,fdatasync"

// straced writes a script that becomes the program under strace, which leaves what it saw in a file of its own for each start. The program
// keeps its process ID: strace is the grandchild (-D), and follows children.
func (c *Cluster) straced(program string) (string, error) {
	dir, err := filepath.Abs(filepath.Join(c.Options.Dir, "strace"))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	name := filepath.Base(program)
	script := filepath.Join(dir, name+".sh")
	text := fmt.Sprintf("#!/bin/sh\nexec strace -D -f -y -qq --seccomp-bpf -e signal=none -e trace=%s -o '%s/%s.'$$ '%s' \"$@\"\n", syncing, dir, name, program)
	return script, os.WriteFile(script, []byte(text), 0o755)
}

// strace makes the agents, and what is no child of theirs, run under strace.
func (c *Cluster) strace(cfg *lab.Config) (err error) {
	if cfg.Twok, err = c.straced(cfg.Twok); err != nil || cfg.Mode == lab.Supervise {
		return err
	}
	cfg.Etcd.Etcd, err = c.straced(cfg.Etcd.Etcd)
	return err
}

var syncCall = regexp.MustCompile(`^\d+ +(sync|syncfs|fsync|fdatasync)\((?:\d+<([^>]*)>)?`)

// Sync is a file, or a directory, that was synced.
type Sync struct {
	Agent bool // by the agent, or by a child of it; else by an etcd that is none
	Site  string
	Path  string // below the site's directory
}

// Synced is how many times each of the sites' files was synced so far, as strace saw it. A sync of a whole file system, or of a file that is
// not below the pair's directory, is an error.
func (c *Cluster) Synced() (files map[Sync]int, err error) {
	dir, err := filepath.Abs(c.Options.Dir)
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil { // as the kernel tells paths
		return nil, err
	}
	logs, err := filepath.Glob(filepath.Join(dir, "strace", "*.[0-9]*"))
	if err != nil {
		return nil, err
	}
	files = map[Sync]int{}
	for _, path := range logs {
		agent := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)) == filepath.Base(c.Options.Twok)
		if err := synced(dir, path, agent, files); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func synced(dir, path string, agent bool, files map[Sync]int) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		call := syncCall.FindStringSubmatch(lines.Text())
		if call == nil {
			continue // the end of a call that another thread's interrupted, or of a process
		}
		if call[1] == "sync" || call[1] == "syncfs" {
			return fmt.Errorf("%s: a whole file system was synced: %s", path, lines.Text())
		}
		below, ours := strings.CutPrefix(call[2], dir+"/")
		if !ours {
			return fmt.Errorf("%s: somebody else's file was synced: %s", path, lines.Text())
		}
		site, name, _ := strings.Cut(below, "/")
		files[Sync{agent, site, name}]++
	}
	return lines.Err()
}
