// Command twok keeps an etcd cluster of two members writable when one of them
// goes away. See `twok --help` and README.md.
package main
