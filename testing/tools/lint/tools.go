//go:build tools

// Package tools pins the linter that make lint runs.
package tools

import _ "honnef.co/go/tools/cmd/staticcheck"
