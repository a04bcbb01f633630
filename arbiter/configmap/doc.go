// Package configmap is the arbiter in Kubernetes: Register is one key of one
// ConfigMap, swapped by a patch that names the resourceVersion.
//
// The cluster and the credentials come from a kubeconfig (KUBECONFIG, else
// ~/.kube/config) or, where there is none, from the service account of the pod.
// Of client-go only the kubeconfig and the credentials are used (rest, clientcmd,
// transport); the requests are net/http's. To a server without TLS no credentials are sent.
//
// # What the store must be
//
//   - An apiserver whose etcd is not the guarded pair; see Place.
//   - Never restored from a backup under the pair's feet (A1).
//   - The user needs get and patch on the ConfigMap by name, and create, which
//     cannot be limited by name, if the ConfigMap does not exist yet. One without the
//     key is as good as none: who makes it beforehand needs no create.
//   - Nobody applies a manifest over the key, makes the ConfigMap immutable or deletes it.
//
// # How Register reads an answer
//
// By HTTP status and, in it, by the Status object of the apiserver. A create is a
// GET and then a POST, or a PATCH if the ConfigMap is there without the key.
//
//	answer                                   PATCH           POST            GET
//	200                                      applied         unknown         the value
//	200 with another object than was sent    unknown         unknown
//	201                                      unknown         applied         misconfigured
//	other 2xx                                unknown         unknown         misconfigured
//	3xx (never followed)                     misconfigured   misconfigured   misconfigured
//	401                                      forbidden       forbidden       forbidden
//	403                                      forbidden       forbidden       forbidden
//	403, the namespace is terminating        misconfigured   misconfigured   misconfigured
//	404, this ConfigMap                      conflict        misconfigured   absent
//	404, others, the namespace among them    misconfigured   misconfigured   misconfigured
//	408                                      unknown         unknown         unavailable
//	409 Conflict, AlreadyExists              conflict        conflict        misconfigured
//	409 about another object (a quota)       unavailable     unavailable     misconfigured
//	422, immutable or not valid              misconfigured   misconfigured   misconfigured
//	422, another UID                         conflict        misconfigured   misconfigured
//	429                                      unavailable     unavailable     unavailable
//	other 4xx, 410 and 413 among them        misconfigured   misconfigured   misconfigured
//	501, 505                                 misconfigured   misconfigured   misconfigured
//	other 5xx                                unknown         unknown         unavailable
//	no usable kubeconfig                     misconfigured   misconfigured   misconfigured
//	the credential plugin failed             unavailable     unavailable     unavailable
//	a server certificate not to be trusted   misconfigured   misconfigured   misconfigured
//	no connection                            unavailable     unavailable     unavailable
//	connection, no whole answer              unknown         unknown         unavailable
//
// 429 comes from the queues before the request is looked at. A ConfigMap that is
// being deleted, one of another name, a resourceVersion that is no positive number and a
// value above MaxValue are misconfigured.
//
// # Invariants
//
//   - R1 One call is at most one write, and that is one HTTP request: no retry
//     (client-go's would follow Retry-After), no redirect, no HTTP/2, a connection of its own
//     for each request, so that net/http has nothing to replay. A second request
//     is refused where it would be sent.
//   - R2 Every PATCH names a UID and a resourceVersion, a positive number. An empty
//     one, and 0, overwrite whatever is there: such a tag is a conflict and is not sent.
//   - R3 A read is a GET without a resourceVersion: the apiserver asks its etcd's
//     quorum, not its cache.
//   - R4 Once a connection was handed to a write, no error of the transport is taken
//     for "not applied".
//   - R5 Every call ends by the context's deadline or after Config.Timeout, also
//     while a credential plugin does not answer; what it then answers is not used. The apiserver is told
//     the time that is left, so that it does not apply a write long after that.
//   - R6 A tag is resourceVersion@UID. Mod revisions of an etcd do not come again,
//     so that neither a deleted and recreated ConfigMap nor another cluster's matches.
//   - R7 A patch changes nothing but the key: other keys, labels, annotations stay.
//     Any change of the ConfigMap, not only of the key, is a new version.
//   - R8 A value that is UTF-8 stands in data, for people; any other in binaryData.
//   - R9 Identical content leaves the version as it is: two swaps from one version with
//     the same bytes are both applied. Records are safe because each carries a fresh nonce.
//   - R10 The kubeconfig and the files that it names are read for each call, so that
//     renewed credentials are noticed. When it names another server than at first, the
//     register is misconfigured: that would be another arbiter.
package configmap
