// Package force is an operator's forced claim, seen from the command (P18): what is known of the record and of the
// members, what would be given up, what speaks against it, and the swap that names the member. It operates on no
// data: the named member's agent carries the order out (internal/failover).
//
// Nothing here waits for a person or prints. Every error leaves the record as it was, but for ErrUnknown.
package force
