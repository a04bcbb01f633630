// Package etcd is the arbiter in another etcd: Register is one key of a cluster
// that is not the guarded one, swapped by a transaction on its mod revision.
//
// # What the store must be
//
//   - An etcd of release 3.5 or later with voters of its own, an odd number of
//     them, three or more if the arbiter shall outlive one. A pair that guards itself is
//     refused by whoever compares ClusterID.
//   - Never restored from a backup under the pair's feet: a restored cluster counts
//     its revisions again from an older one (A1).
//   - A user of its own needs the permission readwrite on the key, nothing else.
//
// # How Register reads an answer
//
// Answers are told by their text: etcd gives some of them under different gRPC codes.
//
//	answer                                        transaction     range
//	success                                       applied         the value
//	comparison failed                             conflict
//	no key                                                        absent
//	no connection, or no gRPC before the request  unavailable     unavailable
//	a server certificate that does not verify     misconfigured   misconfigured
//	a client certificate that was refused         forbidden       forbidden
//	permission denied, user name is empty,        forbidden       forbidden
//	  wrong password, user name not found
//	invalid auth token, twice in a row            forbidden       forbidden
//	auth store revision is old                    unavailable     unavailable
//	no leader, learner, not capable               unavailable     unavailable
//	too many requests                             unavailable     unavailable
//	database space exceeded (NOSPACE)             unavailable     unavailable
//	corrupt cluster (CORRUPT)                     unavailable     unavailable
//	request is too large                          misconfigured   misconfigured
//	no such gRPC method                           misconfigured   misconfigured
//	request timed out, leader changed, stopped    unknown         unavailable
//	deadline exceeded, canceled                   unknown         unavailable
//	everything else after the request was sent    unknown         unavailable
//
// The refusals in the upper part are given before the request becomes a Raft
// proposal, or by every member alike when it is applied: such a transaction
// changes nothing, now or later. A value with a lease, a value above MaxValue and
// an answer of another cluster than before are misconfigured.
//
// # Invariants
//
//   - R1 One call is at most one request that an etcd may act on. client/v3's
//     retries are off and every call has a connection of its own, so that gRPC has
//     nothing to replay. Before such a request: other endpoints are tried while nothing was
//     sent or an endpoint said that it has no leader or is no voter; a login; one
//     new login and request after "invalid auth token", which etcd says before it looks at a request.
//   - R2 A transaction compares the mod revision and writes in one step. Absent is mod
//     revision 0, which no key has; a tag that no read gave, 0 among them, is a conflict and is not sent.
//   - R3 Reads are linearizable. A member without a leader answers none.
//   - R4 Once the header of a transaction was given to a connection, no error of
//     the transport is taken for "not applied".
//   - R5 Every call ends by the context's deadline or after Config.Timeout.
//   - R6 A tag names the cluster beside the mod revision. A Register that was answered by two
//     clusters is misconfigured from then on: endpoints of two clusters would be two arbiters.
//   - R7 Mod revisions never come again within one cluster, also not after the key
//     was deleted. After a restore they do: that breaks A1, and nothing here detects it.
//   - R8 The key has no lease, and a write by Register detaches one.
package etcd
