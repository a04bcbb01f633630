// Command cmd plays the experiments of testing/experiment and prints their tables.
//
//	cmd --only commit-lag --runs 5 --versions 3.6     five more runs of each of its cells
//	cmd --total 100 --for 7m                          what is missing to a hundred of each, seven minutes of it
//	cmd --table                                       the tables of what there is
//
// Its exit status is 1 if anything failed; what is there by then stays.
package main
