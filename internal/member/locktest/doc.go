// Package locktest runs single real etcds for the tests of the locks and of etcd's process.
// Every process it starts is ended by its ID when the test ends. Only tests import it.
package locktest
