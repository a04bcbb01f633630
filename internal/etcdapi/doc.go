// Package etcdapi is how twok talks to etcd members: their client port through
// etcd's own client, their peer port through the few HTTP paths that answer
// without a leader (/version, /members, /members/hashkv, /raft/probing).
//
//  1. Every call ends with its context.
//  2. Once dials exactly once: a request sent through it can never reach an etcd that was started after the call (P14).
//  3. PeerMembers is never proof of a configuration: a member list from the peer port
//     can be ahead of its member's Raft (A0). It tells addresses, nothing more.
package etcdapi
