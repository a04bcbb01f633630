package etcdproc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// What a supervisor answers of its etcd: version and flags.

// Version: see Etcd.
func (s *supervisor) Version(ctx context.Context) (string, error) {
	path, err := exec.LookPath(s.cfg.Argv[0])
	var v string
	if err == nil {
		if v, err = s.vers.of(ctx, path); err == nil {
			return v, nil
		}
	}
	if id, _, ok := s.etcd(); ok {
		if v, err2 := s.vers.of(ctx, exeOf(id.PID)); err2 == nil {
			return v, nil
		}
	}
	if v := s.vers.last(); v != "" && s.wrapped() {
		return v, nil
	}
	return "", fmt.Errorf("version of etcd: %w", err)
}

// Flags: see Etcd.
func (s *supervisor) Flags(ctx context.Context) (Flags, error) {
	if id, has, ok := s.etcd(); ok && (has || !s.wrapped()) {
		f, err := s.reads.within(ctx, id)
		if err == nil && has {
			s.mu.Lock()
			s.flags = &f
			s.mu.Unlock()
		}
		if !errors.Is(err, ErrNotRunning) {
			return f, err
		}
	}
	s.mu.Lock()
	last := s.flags
	s.mu.Unlock()
	if last != nil && s.wrapped() {
		return *last, nil
	}
	return s.told()
}

// etcd is the process to ask: the one that has the data open (has), which is the child, or what the child started; without
// one the child as it is.
func (s *supervisor) etcd() (id StartID, has, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look(true)
	if s.cur != nil {
		if _, ok := s.find.verify(s.known); ok {
			return s.known.id, true, true
		}
	}
	if ps, err := s.find.scan(); err == nil && len(ps) > 0 {
		return primary(ps).id, true, true
	}
	return s.p.StartID, false, s.p.Running
}

// wrapped says whether the command is not etcd itself: then what it is told need not be all, or nothing, of what etcd is told.
func (s *supervisor) wrapped() bool {
	path, err := exec.LookPath(s.cfg.Argv[0])
	return filepath.Base(s.cfg.Argv[0]) != "etcd" || (err == nil && errors.Is(program(path), errScript))
}

// told is what the command line, the environment and the configuration file say.
func (s *supervisor) told() (Flags, error) {
	env := s.cfg.Env
	if env == nil {
		env = os.Environ()
	}
	return parseFlags(s.cfg.Argv, env, os.ReadFile)
}

// Command: see Commander.
func (s *supervisor) Command() (Flags, error) {
	if _, err := exec.LookPath(s.cfg.Argv[0]); err != nil {
		return Flags{}, fmt.Errorf("etcd's command: %w", err)
	}
	f, err := s.told()
	if err == nil && f.DataDir == f.Name+".etcd" && filepath.Base(s.cfg.Argv[0]) != "etcd" {
		f.DataDir = "" // etcd's default, which a wrapper need not leave
	}
	return f, err
}
