// Package s3 is the arbiter in a bucket of S3 or of a store that speaks its
// protocol: Register is one object, swapped by a conditional PUT on its ETag.
//
// Credentials come from the default chain of the AWS SDK alone: environment,
// shared files, web identity, container, instance. What the chain renews by itself is used
// at once (R9); keys in the environment and in shared files it reads in New.
//
// # What a store must do
//
//   - PutObject with If-Match replaces the object if its ETag is still that one,
//     with If-None-Match: * creates it if there is none; otherwise it answers 412
//     (409, or 404 if the object is gone) and writes nothing. AWS S3 and versitygw do.
//     Stores that ignore the headers (s3rver) answer 200: the suite and the probe find them.
//   - GetObject after an answered PutObject shows it, to everybody.
//   - The bucket is not replicated from another one, has no lifecycle rule that
//     expires the object, and nobody restores its older versions (A1).
//   - The user needs s3:GetObject and s3:PutObject on the object, and
//     s3:ListBucket on the bucket: without it S3 says "forbidden" where there is no object.
//
// # How Register reads an answer
//
// By HTTP status and, in it, by S3's code:
//
//	answer                                      PUT             GET
//	200                                         applied         the value
//	other 2xx                                   unknown         misconfigured
//	3xx (never followed)                        misconfigured   misconfigured
//	400 AuthorizationHeaderMalformed (region)   misconfigured   misconfigured
//	400 ExpiredToken, InvalidToken,             forbidden       forbidden
//	  TokenRefreshRequired
//	400 RequestTimeout                          unknown         unavailable
//	400 BadDigest, XAmzContentSHA256Mismatch,   unavailable     unavailable
//	  IncompleteBody
//	other 400                                   misconfigured   misconfigured
//	401, 403                                    forbidden       forbidden
//	403 RequestTimeTooSkewed (clock)            misconfigured   misconfigured
//	404 NoSuchKey                               conflict        absent
//	404 NoSuchKey without If-Match              misconfigured
//	404 XAdminUserNotFound (versitygw)          forbidden       forbidden
//	404 NoSuchBucket, others                    misconfigured   misconfigured
//	408                                         unknown         unavailable
//	409, 412                                    conflict        misconfigured
//	423, 429                                    unavailable     unavailable
//	other 4xx                                   misconfigured   misconfigured
//	501, 505                                    misconfigured   misconfigured
//	other 5xx, 503 SlowDown among them          unknown         unavailable
//	no credentials                              misconfigured   misconfigured
//	a server certificate that does not verify   misconfigured   misconfigured
//	no connection                               unavailable     unavailable
//	connection, no whole answer                 unknown         unavailable
//
// A 409 ConditionalRequestConflict means that nothing was written. A wrong
// secret is forbidden, as every refusal of the credentials is.
//
// # Invariants
//
//   - R1 One call is one HTTP request, but for R8: the SDK's retries are off, and a second request is refused
//     where it would be sent. No redirect, no HTTP/2, a connection of its own for
//     each request, so that net/http has nothing to replay.
//   - R2 Every PUT carries exactly one precondition, and never If-Match: *.
//   - R3 A missing, empty or weak ETag, an Age header (a cache answered) or a
//     reply without a length is misconfigured, never a value.
//   - R4 Once a connection was handed to a PUT, no transport error is taken for
//     "not applied".
//   - R5 Every call ends by the context's deadline or after Config.Timeout.
//   - R6 The body of a PUT is the value and nothing else: no aws-chunked framing,
//     no trailing checksum, which stores are known to keep as part of the object. Its SHA-256 is
//     signed.
//   - R7 An ETag is a hash of the content: A, B, A gives the first tag again. Records
//     are safe because each carries a fresh nonce.
//   - R8 A value that comes with another one's ETag is not given. During an overwrite versitygw
//     answers with the old ETag and the new bytes. Where the ETag looks like an MD5 and is not
//     the content's, the GET is made again, up to four times, until they fit or come
//     together a second time: then the store makes its ETags in another way (SSE-KMS).
//   - R9 Each request is signed with the credentials that the chain has then, also when a new
//     secret comes under the old key ID.
package s3
