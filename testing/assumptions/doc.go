// Package assumptions tests, on real etcd of every version, what the protocol
// takes from etcd and cannot enforce (A0): the order in which a configuration change becomes durable, when a
// restarted member opens its client port, and PreVote.
package assumptions
