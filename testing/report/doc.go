// Package report is what a run of scenarios leaves: a line for each as it ends, a text and a
// JSON object at the end. A scenario that was planned and did not run, or was not checked, is red.
package report
