package lab

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLongBuild builds as the short one does, and passes on what the compiler says.
//
// Rules: none (tools).
func TestLongBuild(t *testing.T) {
	toy, _ := toyTool(t)
	toy.long = true
	var log bytes.Buffer
	_, dir, err := toy.get(t.Context(), &log)
	if err != nil || !toy.complete(dir) || !strings.Contains(log.String(), "built toy ") {
		t.Fatalf("%q, %v, %s", dir, err, &log)
	}
	main := filepath.Join(os.Getenv("TWOK_ROOT"), "testing", "tools", "toy", "toy", "cmd", "main.go")
	if err := os.WriteFile(main, []byte("package main\n\nfunc main() { println(nothing) }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	_, _, err = toy.get(t.Context(), &log)
	if err == nil || !strings.Contains(err.Error(), "undefined: nothing") || toy.complete(dir) {
		t.Errorf("a program that does not compile: %v", err)
	}
}
