// Package docs keeps the documents current with the code: go test ./testing/docs
// compares, and with -update rewrites, the generated parts of docs/.
package docs
