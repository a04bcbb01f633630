// Store starts a real arbiter store on loopback, runs a command with
// "--arbiter URL" added at its end and the store's credentials in its environment, and
// ends the store after it.
//
//	go run ./testing/tools/store s3 bin/twok demo --fast
//	go run ./testing/tools/store etcd bin/twok demo --rounds 20
//	go run ./testing/tools/store configmap bin/twok demo
//
// The status is the command's. The store's data are in a temporary directory,
// which is removed if the command succeeded.
package main
