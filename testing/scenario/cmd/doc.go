// Command cmd plays scenarios of testing/scenario: those that fit ten minutes, or a selection. It needs
// root, since each site gets a network namespace; TWOK_HARNESS=proxy plays what a proxy on loopback can show.
//
// It prints a line for each scenario as it ends, and a report, which it also leaves in a directory
// of its own below --dir. Its exit status is 1 if anything was red or did not run. A scenario that ended as a broken
// assumption, where the fault breaks one on purpose, is not red.
package main
