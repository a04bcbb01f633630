// Package freeport finds ports of loopback for the laboratory and the tests.
//
// A port is outside the range from which the kernel takes those of outgoing connections, so a process that is down
// for a while finds its port free again, and it is this process's until that ends: the tests of two packages run at
// the same time, and a port that is free now may be another one's in a moment.
package freeport
