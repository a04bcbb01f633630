// Package stores is what internal/probe says of real stores, right and wrong ones, and
// how many pairs share one. It has tests only.
package stores
