package fault

import (
	"context"
	"fmt"
	"os/exec"

	"twok/testing/cluster"
)

// Needs of a fault beyond processes.
type Needs struct {
	Namespaces bool // more than the proxy can show
	Failpoints bool // a twok built with the tag failpoints
	Strace     bool
	Modes      []string // of cluster.Modes; empty: both with agents
	Arbiters   []string // of cluster.Arbiters; empty: all
	Minors     []string // of lab.Minors; empty: all
}

// Fault is an entry of the catalogue.
type Fault struct {
	Name  string
	About string
	// Rows of docs/scenarios.md that it shows.
	Rows  []string
	Roles []string // that it can be aimed at
	Needs Needs
	// Prepare changes the pair before it starts. May be nil.
	Prepare func(*cluster.Options)
	// Large makes some of the clients' values longer than a packet that passes network.Large.
	Large bool
	// Claims is how many claims have to be won, at least, as the agents' traces show it: fewer, and the fault was not in force. 0: it
	// may pass without one, and something else shows that it was.
	Claims int
	// Random: its cuts may meet nobody. Every other one fails if a cut dropped no packet.
	Random bool
	// Compacts says that a watch may miss what was compacted.
	Compacts bool
	// Breaks is the assumption that the fault breaks on purpose ("A1"), empty for every other one: what is lost then is lost by that, not
	// by twok. Run has to see it broken, else it fails.
	Breaks string
	// Holds: even so nothing may be lost.
	Holds bool
	// Slow: it takes minutes and much disk; a soak leaves it out.
	Slow bool
	// Users: it changes members as a user does. Disks: it replaces a disk by an empty one. Untraced says why the agents' traces are not validated; empty: they are.
	Users    bool
	Disks    bool
	Untraced string
	Run      func(context.Context, *Stage) error
}

// Possible says why the fault cannot be made here; nil: it can.
func (f Fault) Possible() error {
	if f.Needs.Namespaces && cluster.Proxy() {
		return fmt.Errorf("%s: %w", f.Name, cluster.ErrNoNamespaces)
	}
	if f.Needs.Strace {
		if _, err := exec.LookPath("strace"); err != nil {
			return fmt.Errorf("%s needs strace, which delays fdatasync: %w; apt-get install strace", f.Name, err)
		}
	}
	return nil
}

var both = []string{Leader, Follower}

// All is the catalogue.
func All() []Fault {
	var all []Fault
	for _, part := range [][]Fault{links(), arbiters(), liars(), processes(), disks(), settings(), rows(), steps(), second()} {
		all = append(all, part...)
	}
	return all
}

// Shown is an error if so few claims were won that the fault cannot have been in force.
func (f Fault) Shown(claims int) error {
	if claims < f.Claims {
		return fmt.Errorf("%d claims were won, and %s takes %d at least: this showed nothing", claims, f.Name, f.Claims)
	}
	return nil
}

// do runs steps until one fails.
func do(ctx context.Context, steps ...func(context.Context) error) error {
	for _, f := range steps {
		if err := f(ctx); err != nil {
			return err
		}
	}
	return nil
}

// now makes a step of what needs no context.
func now(f func() error) func(context.Context) error {
	return func(context.Context) error { return f() }
}
