// Command mutants changes the core, internal/failover, in one place at a time and
// asks whether the checks notice: mutation testing.
//
//	go run ./testing/mutants              the whole pass
//	go run ./testing/mutants -run REGEXP  the mutants whose key matches
//	go run ./testing/mutants -keys FILE   the mutants that FILE lists, in the format of survivors.txt
//	go run ./testing/mutants -list        print the keys, run nothing
//
// # Why a tool of its own
//
// The maintained tool of the day, gremlins, has none of the operators that matter most to a core made of rules: it removes
// no statement, drops no operand of a condition, takes no clause out of a switch and exchanges no reason for another. A
// mutant is a replaced piece of source text here, compiled with go test -overlay, so that the checkout is never touched.
//
// # Operators
//
//	boundary   < and <=, > and >=
//	negate     a comparison or a condition becomes its opposite; == and !=; ! dropped
//	logic      && and ||
//	drop       an operand of && or || goes; an argument of min or max; a value of a case; a field of a literal
//	force      a condition, or a returned bool, is always true, always false
//	arith      + and -, * and /, << and >>, ++ and --, += and -=
//	minmax     min and max
//	number     a number one higher, one lower
//	string     a text becomes empty, an empty one becomes a text
//	bool       true and false
//	constant   a constant of an enumeration (a Reason, a Phase, an action …) becomes another one of it
//	remove     a statement goes: an assignment to one target, a call, an increment, a return, a continue
//	clause     a clause of a switch goes, or its body; an else
//	zero       a returned value becomes the zero value
//	loop       a loop makes no round
//
// Names, remedies and other tables of text are left alone.
//
// # How a mutant dies
//
// By the first of these whose tests fail, panic, or exceed the limit of processor time: the tables and scripts of internal/failover; its random
// walks and the deaths at every action; testing/explore; testing/sim. A mutant that does not compile
// is none. All seeds are fixed: a mutant has the same end each time.
//
// # Survivors
//
// survivors.txt explains every mutant that lives: why it is equivalent, or harmless. A key names file, function, operator and
// source text, never a line number. The pass fails on a survivor that is not listed, and on a listed
// mutant that is killed or gone; go test checks the latter half of it, that all of them still exist.
package main
