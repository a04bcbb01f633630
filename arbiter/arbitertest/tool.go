package arbitertest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Tool returns what `go run ./testing/tools/build ARGS` prints: the absolute
// paths of a pinned server, which it builds once and keeps outside the checkout.
// It must be called below the module's root.
func Tool(args ...string) ([]string, error) {
	cmd := exec.Command("go", append([]string{"run", "twok/testing/tools/build"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return strings.Fields(string(bytes.TrimSpace(out))), nil
}
