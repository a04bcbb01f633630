// Package network gives each site of a pair a network namespace of its own, with one
// address and one link to a router, and cuts what passes the router.
//
// [Enter] first puts the whole program into a PID, a mount and a network namespace. Whatever
// the program makes there (processes, mounts, further namespaces, firewall rules) has no name
// outside and ends with the program, however that ended: there is nothing that a
// later run would have to find and remove.
//
//	outer ──> init (PID 1, reaps) ──> the program ──> etcd, agents, arbiter
//	SIGKILL    dies with outer          its end ends     the kernel ends all of them
//	                                    init             with init
//
// The program's own network namespace is the router: it reaches every site, cut or not,
// since rules apply to what it forwards only. A process or a socket is put into a site with
// [Network.In] and [Network.Dial].
//
// Invariants:
//
//  1. Sites reach each other only through the router.
//  2. Set replaces all rules in one transaction of nftables. When it returned, no packet that
//     a rule forbids passes any more; connections that are established are not spared, but by NewConns.
//  3. Dropped counts what each rule stopped, so that a cut that met nobody can be told from one that did. What is
//     dropped in the moment in which rules are replaced may be missing in it.
//  4. Nothing of this package touches the network of the machine.
//  5. Where namespaces are not allowed, Enter is an error that wraps [ErrNotAllowed].
package network
