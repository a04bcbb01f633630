// Command kubernetes runs the tests of the arbiter in a ConfigMap, and of a pair that uses it, on
// a real kube-apiserver, for make test-kubernetes. Arguments go to go test.
//
// The apiserver takes long to build. The tests run when it is built already, or when
// something that they depend on (watched) changed since the commit that passed, which is kept in
// the cache of tools; otherwise the last line is "NOT RUN: unchanged since COMMIT".
package main
