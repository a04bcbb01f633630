// Package scenario plays faults on real pairs and judges what was seen.
//
// A cell is FAULT/ROLE/VERSION/ARBITER/MODE: a fault of testing/fault, the role of the site that it is aimed at
// ("pair": neither or both), etcd's release line, the arbiter, and who runs etcd. Each is played
// alone, from an empty pair:
//
//	start → whole → clients write at both sites → the fault, until it is undone → whole →
//	writes at both sites → clients stop → API, disks, record and traces are read → checks
//
// go test -run selects cells by their names, TestSafety/cut-both/pair/3.6/serve/signal, part by part. A row of
// docs/scenarios.md in the place of the fault selects every fault that shows it, and makes the fault one level more:
// TestSafety/F32/leader/3.7/serve/signal/both-down. Several rows are (F31|F32); rows and faults are not mixed, by an error.
// A selection that plays no cell fails.
//
// A cell is green if its fault was in force and did what it says, the pair became whole again, every
// check was made and found nothing, and the explorer's model explains the agents' traces, or does not
// know the fault, or was not found to within the limit; the last two are counted.
//
// A cell whose fault breaks an assumption on purpose is neither green nor red if the assumption was seen broken and all
// else is right: see report.Result.
//
// The default selection ([Default]) is what fits in nine minutes and a half on two cores: 53 cells, each of another fault, which go round roles, versions,
// arbiters and modes. It is less than every fault once. It has each row of docs/scenarios.md that is a scenario by name, and each row that
// a fault shows at all, but F12 (rotation) and F15 (etcd-term); of the 62 named steps it has five. Not in it, by selection and in a soak, are
// the other 57 steps and
//
//	arbiter-one agent-term auth-jwt auth-simple cut-unclaimed disk-full-claim etcd-hiccup etcd-term lease-expiry local-peer many
//	mixed-versions rotation snapshot-often store-lies-rollback store-lies-swaps survivor-restart tls wal-dir
//
// and by selection alone big. Each of these would add seven seconds or more. What
// a scenario chooses follows from the run's seed and its name, when things happen follows from the machine.
package scenario
