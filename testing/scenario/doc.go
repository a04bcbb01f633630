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
// The cells that fit ten minutes ([Default]) take every fault once or twice and go round versions, arbiters and modes;
// everything else is by selection. What a scenario chooses follows from the run's seed and
// its name, when things happen follows from the machine.
package scenario
