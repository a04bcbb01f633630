//go:build !failpoints

package failpoint

import "fmt"

// Enabled tells whether this program was built with the tag "failpoints".
const Enabled = false

// Declare registers name and returns it. Without the build tag it does nothing.
func Declare(name string) string { return name }

// Hit marks that the step name was reached. Without the build tag it does
// nothing and returns nil.
func Hit(name string) error { return nil }

// List returns the declared names in order. Without the build tag it is empty.
func List() []string { return nil }

// Set replaces the specification taken from the environment. Without the build
// tag it returns an error for anything but the empty specification.
func Set(spec string) error {
	if spec == "" {
		return nil
	}
	return fmt.Errorf("failpoint: set %q: this program was built without the tag \"failpoints\"", spec)
}
