package freeport

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

const holder = "TWOK_FREEPORT_HOLDER"

// A port is one process's until that ends, whether or not anybody listens on it.
//
// Rules: none (the tests themselves).
func TestReserved(t *testing.T) {
	if path := os.Getenv(holder); path != "" {
		if mine, err := reserve(path); err != nil || mine {
			fmt.Printf("reserved again: %t, %v\n", mine, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	ports, err := Ports(3)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ports {
		path := filepath.Join(os.TempDir(), fmt.Sprintf("twok-ports-%d", os.Getuid()), strconv.Itoa(p))
		cmd := exec.Command(os.Args[0], "-test.run", "^TestReserved$")
		cmd.Env = append(os.Environ(), holder+"="+path)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("port %d: %v: %s", p, err, out)
		}
		if mine, err := reserve(path); err != nil || mine {
			t.Errorf("port %d is given out twice: %t, %v", p, mine, err)
		}
	}
}
