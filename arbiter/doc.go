// Package arbiter is the contract between twok and the one record that decides
// which member of a pair survives: Register (an atomic compare-and-swap on one
// value), its five error classes, and Record with its codec.
//
// Nothing here logs, and nothing here knows a store. Each store is a package
// below this one, and all of them pass the one suite in arbitertest.
//
// # The encoded record
//
// Encode writes UTF-8 JSON of at most MaxSize bytes, one field of the record or
// one history entry a line, fields in a fixed order, fields with a zero value
// left out, unknown fields last and sorted:
//
//	{
//	"format":"twok-record",
//	"version":1,
//	"id":"5f0c…",                                  record ID
//	"cluster_id":"cdf818194e3a8c32",               16 hex digits, as etcdctl prints it
//	"generation":4,
//	"survivor":{"id":"8e9e05c52164694d","name":"m1"},
//	"nonce":"77ab…",                               fresh in every swap
//	"claim_nonce":"0c1d…",                         the nonce of the last claim
//	"reason":"no contact for 3s",
//	"created_at":"2026-01-02T03:04:05.678Z",       also claimed_at, written_at
//	"claim_end":{"index":1041,"term":7},
//	"fork":{"index":1042,"term":8},
//	"confirmed":{"index":1050,"term":8},
//	"confirmed_at":"2026-01-02T03:04:07.678Z",
//	"whole":{"generation":3,"members":["…","…"],"at":"…"},
//	"mark":{"generation":3,"index":1000},
//	"drain":true,                                  also pause, forced
//	"history":[
//	{"first":2,"last":3,"survivor":"…","fork":{"index":9,"term":2},"forced":true,"at":"…"},
//	{"first":4,"last":4,"survivor":"8e9e05c52164694d","at":"…"}
//	]
//	}
//
// A change that an older twok may ignore adds a field at the top or in a history
// entry: Extra carries it through a rewrite. The other objects are closed. Any
// other change increments "version"; an older twok then answers ErrFuture and
// leaves the record alone.
//
// # Invariants of a record
//
// Encode refuses (ErrInvalid), and Decode calls garbage, what breaks one of them:
//
//   - I1 ID, nonce and claim nonce, if any, are 1 to 64 letters, digits, '-', '_' or '.'; the cluster
//     ID is not 0; the generation is at least 1.
//   - I2 Either nobody was ever named (no survivor, no history, no claim end, fork,
//     confirmation, time of claim or force), or the newest history entry is by
//     the survivor and ends at the record's generation.
//   - I3 History is ordered by generation without overlap, its used places come
//     first, and every entry has a survivor. Gaps are allowed (P17).
//   - I4 A position has an index and a term, or neither; a time of confirmation
//     belongs to a confirmation.
//   - I5 The whole note names two different members. Neither it nor the mark is of
//     a generation above the record's. A mark has a generation and an index.
//   - I6 Times are in 1970 to 9999.
//   - I7 Texts are UTF-8.
//   - I8 Extra is empty or a canonical JSON object of fields that are not known ones.
package arbiter
