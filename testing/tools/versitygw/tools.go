//go:build tools

// Package tools pins the S3 server that the tests run.
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"
