//go:build failpoints

package failpoint

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Enabled tells whether this program was built with the tag "failpoints".
const Enabled = true

type action struct {
	verb string // kill, exit, error, pause
	arg  string // pause: file or duration
	nth  int    // 0: see doc.go
}

var (
	mu       sync.Mutex
	declared = map[string]bool{}
	loaded   bool
	actions  map[string]action
	hits     = map[string]int{}
)

// Declare registers name and returns it. It is called from a package variable,
// so that every name is known before main or the first test runs. Declaring a
// name twice panics.
func Declare(name string) string {
	mu.Lock()
	defer mu.Unlock()
	if name == "" || strings.ContainsAny(name, "=;@ ") || declared[name] {
		panic(fmt.Sprintf("failpoint: name %q is empty, malformed or declared twice", name))
	}
	declared[name] = true
	return name
}

// List returns the declared names in order.
func List() []string {
	mu.Lock()
	defer mu.Unlock()
	names := make([]string, 0, len(declared))
	for n := range declared {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Set replaces the specification taken from the environment and forgets all
// counts. The empty specification disables everything.
func Set(spec string) error {
	mu.Lock()
	defer mu.Unlock()
	a, err := parse(spec)
	if err != nil {
		return err
	}
	actions, loaded, hits = a, true, map[string]int{}
	return nil
}

// Hit marks that the step name was reached and performs the action that the
// specification gives it. It returns an error only for the action "error".
func Hit(name string) error {
	a, ok := take(name)
	if !ok {
		return nil
	}
	switch a.verb {
	case "kill":
		// SIGKILL is delivered before kill(2) to oneself returns to user mode
		// on this thread; the loop covers the others.
		for {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			time.Sleep(time.Millisecond)
		}
	case "exit":
		os.Exit(ExitCode)
	case "pause":
		pause(name, a.arg)
		return nil
	}
	return fmt.Errorf("failpoint %s: %w", name, ErrInjected)
}

// take counts the hit and returns the action that is due now.
func take(name string) (action, bool) {
	mu.Lock()
	defer mu.Unlock()
	if !declared[name] {
		panic(fmt.Sprintf("failpoint: hit of %q, which is not declared", name))
	}
	if !loaded {
		a, err := parse(os.Getenv(Env))
		if err != nil {
			panic(err.Error())
		}
		actions, loaded = a, true
	}
	hits[name]++
	a, ok := actions[name]
	if !ok || a.nth != 0 && a.nth != hits[name] {
		return action{}, false
	}
	return a, true
}

func pause(name, arg string) {
	if d, err := time.ParseDuration(arg); err == nil {
		time.Sleep(d)
		return
	}
	if err := os.WriteFile(arg+".reached", []byte(name+"\n"), 0o600); err != nil {
		panic(fmt.Sprintf("failpoint: pause at %s: %v", name, err))
	}
	for {
		if _, err := os.Stat(arg); err == nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// parse reads a specification. The caller holds mu.
func parse(spec string) (map[string]action, error) {
	out := map[string]action{}
	for part := range strings.SplitSeq(spec, ";") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		name, rest, ok := strings.Cut(part, "=")
		if !ok {
			return nil, fmt.Errorf("failpoint: %s: %q has no action", Env, part)
		}
		if !declared[name] {
			return nil, fmt.Errorf("failpoint: %s: %q is not declared in this program", Env, name)
		}
		if _, dup := out[name]; dup {
			return nil, fmt.Errorf("failpoint: %s: %q is given twice", Env, name)
		}
		var a action
		if i := strings.LastIndexByte(rest, '@'); i >= 0 {
			n, err := strconv.Atoi(rest[i+1:])
			if err != nil || n < 1 {
				return nil, fmt.Errorf("failpoint: %s: bad count in %q", Env, part)
			}
			a.nth, rest = n, rest[:i]
		}
		a.verb, a.arg, _ = strings.Cut(rest, ":")
		switch {
		case a.verb == "pause" && a.arg != "":
		case (a.verb == "kill" || a.verb == "exit" || a.verb == "error") && a.arg == "":
		default:
			return nil, fmt.Errorf("failpoint: %s: unknown action %q", Env, rest)
		}
		out[name] = a
	}
	return out, nil
}
