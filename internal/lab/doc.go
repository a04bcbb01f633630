// Package lab runs real etcd pairs on loopback: what the demo, the tests and
// the data-safety harness share. It is no part of the product: only cmd/twok's
// demo, tests and testing/ import it.
//
// Its parts:
//
//   - [Etcd], [Staticcheck], [Versitygw] and [S3rver] return pinned tools from a cache outside the
//     checkout and build what is missing; [Lighttpd] and [Nginx] are Debian's packages of
//     the release at hand, unpacked there.
//   - [Network] and [Link] are a TCP proxy between sites that stalls bytes.
//   - [Cluster] and [Site] start etcd, the agents and what restarts etcd, and end
//     every process they started.
//   - [Writer] writes from many clients and remembers what was acknowledged.
//   - [Audit] compares what was acknowledged with what both members hold.
//
// Invariants:
//
//  1. The proxy never drops, duplicates or reorders a byte of a connection that
//     lives. After [Network.Cut] returned, no further byte, FIN or RST crosses in
//     that direction until [Network.Heal]; those that waited then cross in order.
//  2. A tool's cache directory appears at once and complete, by a rename, or
//     not at all; several processes may ask for it at the same time.
//  3. A write counts as acknowledged only if etcd said so, with a revision. Every
//     other outcome is unknown, whatever the error said.
//  4. An audit that could not read, or could not compare, is an error: "not
//     checked" is never "nothing lost".
//  5. Every process that a cluster started, and every child of one, is dead
//     when [Cluster.Close] returns, and soon after the program that holds the
//     cluster died in any way.
package lab
