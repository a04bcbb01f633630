// Package cluster runs the pair that a scenario needs: real etcds, the built twok, a real arbiter,
// each site in its own network namespace (testing/network), or with a proxy in between where
// TWOK_HARNESS=proxy asks for it. Processes are internal/lab's.
//
// Invariants:
//
//  1. Two members and the arbiter have an address each, and reach each other at these alone.
//  2. The program itself reaches all of them, cut or not: what it reads for a check does not pass
//     what it cuts.
//  3. Collect reads the members over the API while they serve, ends them in order, and reads their
//     databases from disk without etcd's code.
//  4. A store that lies (Liar) counts each answer that an honest one cannot give.
//  5. Idle says which cut has met nobody.
//  6. After Close nothing runs and nothing is mounted. The directory stays.
package cluster
