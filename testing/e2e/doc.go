// Package e2e tests the agent end to end: two real etcds, two agents, the embedded
// arbiter and clients that write, taken apart and put together again in the ways of
// docs/design/protocol.md and of the failures from the field. It holds tests and their
// helpers only.
//
//	go test ./testing/e2e                  a few minutes on two cores
//	TWOK_E2E=full go test -timeout 2h ./testing/e2e
//	                                       every cut on every etcd release, and a kill at every named step
//	TWOK_E2E_TRACES=DIR go test ./testing/e2e
//	                                       keeps the agents' traces
//
// Unless a test says otherwise each ends with the pair whole and an audit: every
// acknowledged write is on both members, and their key spaces hash equally. At the end of
// each the agents' logs are checked too: no etcd panicked, and no warning was
// repeated in a flood; and the agents' traces have to be explained by the explorer's
// model (testing/trace), unless the test says why they cannot.
//
// etcd runs with a heartbeat of 20 ms and an election timeout of 200 ms, claim-after is
// about a second. Nothing here asserts a duration: deadlines are generous and only end
// a test that hangs. After a failure the directory with data, logs and traces is kept and
// its path is printed.
//
// twok is built once for each run, with the tag failpoints; TWOK_E2E_TWOK names one that
// was built so already. Nothing needs root.
package e2e
