// Build fills the tool cache and prints where the tools are.
//
//	go run ./testing/tools/build etcd [3.5 3.6 3.7]
//	go run ./testing/tools/build staticcheck
//	go run ./testing/tools/build versitygw
//	go run ./testing/tools/build s3rver
//	go run ./testing/tools/build lighttpd          (Debian packages)
//	go run ./testing/tools/build nginx             (Debian packages)
//	go run ./testing/tools/build kube-apiserver    (ten minutes or more, once)
//
// Paths go to stdout, one a line; progress goes to stderr. The status is 1
// after an error and 2 for a wrong command line.
package main
