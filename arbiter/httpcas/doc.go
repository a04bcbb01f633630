// Package httpcas is the arbiter over HTTP: Register is a client of any store
// that has GET, PUT, strong ETags, If-Match and If-None-Match: *; Server is such
// a store, the embedded arbiter.
//
// # What a store must do
//
//   - GET answers 200 with a strong ETag, a length and the value, or 404 (also
//     410) if there is none. It is linearizable: no cache in between.
//   - PUT with If-Match: "tag" replaces the value if its ETag is still "tag", else
//     412 (also 409, or 404 if the value is gone) and nothing is written.
//   - PUT with If-None-Match: * creates the value if there is none, else 412 (409).
//   - A PUT that was answered 200, 201 or 204 survives a crash of the store.
//
// # How Register reads an answer
//
//	answer                                 PUT             GET
//	200                                    applied         the value
//	201, 204                               applied         misconfigured
//	other 2xx                              unknown         misconfigured
//	303                                    unknown         misconfigured
//	other 3xx (never followed)             misconfigured   misconfigured
//	401, 403                               forbidden       forbidden
//	404, 410 with If-Match                 conflict
//	404, 410 otherwise                     misconfigured   absent
//	408                                    unknown         unavailable
//	409, 412                               conflict        misconfigured
//	423, 429                               unavailable     unavailable
//	other 4xx                              misconfigured   misconfigured
//	501, 505                               misconfigured   misconfigured
//	503 with Twok-Applied: no              unavailable     unavailable
//	other 5xx                              unknown         unavailable
//	a server certificate not to be trusted misconfigured   misconfigured
//	a client certificate that was refused  forbidden       forbidden
//	no connection                          unavailable     unavailable
//	connection, no whole answer            unknown         unavailable
//
// A bare 503 on PUT is unknown because gateways also send it for a request that
// they passed on and whose answer they lost. 404 and 409 do not say whether the
// store's parent directory is missing; a store that answers 409 to a create while
// a GET says absent has that fault.
//
// # Invariants of Register
//
//   - R1 One call is one request: no retry, no redirect, no HTTP/2, a connection
//     of its own for each request, so that net/http has nothing to replay.
//   - R2 Every PUT carries exactly one precondition, and never If-Match: *.
//   - R3 A missing, empty or weak ETag, an Age header (a cache answered), or a
//     reply without a length is misconfigured, never a value.
//   - R4 Once a connection was handed to a PUT, no transport error is taken for
//     "not applied", but a TLS alert about the client's certificate: it ends a handshake.
//   - R5 Every call ends by the context's deadline or after Config.Timeout.
//
// # Invariants of Server
//
//   - S1 A value is acknowledged after the file and its directory were fsynced,
//     and is not visible to any reader before that.
//   - S2 A value is replaced by rename: a kill at any point leaves the old or the
//     new one, whole. What it leaves beside is named by Leftovers and harmless.
//   - S3 Every write has a fresh random ETag; equal bytes do not give an equal tag.
//   - S4 No PUT without a precondition, no DELETE, no value above MaxValue bytes.
//   - S5 A key is a path of plain segments; no request reaches a file outside the
//     directory or a file that is not a value.
//   - S6 One process serves a directory, by a lock on the file "lock" in it.
//   - S7 A damaged file is an error for its key, never absent and never overwritten.
//   - S8 After an fsync or rename that failed, the server refuses everything until
//     it is started again: what the disk has is not known (A2).
//   - S9 With Accounts a request of nobody known is refused before its path is looked
//     at, and every request while the accounts cannot be read.
package httpcas
