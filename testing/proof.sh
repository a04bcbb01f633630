#!/bin/bash
# proof.sh DURATION [STATE-DIR]: the machine checks of the safety argument, within about
# DURATION (a Go duration in whole seconds or minutes: 120s, 5m). With a directory the totals of
# earlier runs are gone on with; without, it is the budgeted version. Each check gets a share, in
# percent; add a line for a new one.
set -eu -o pipefail
cd "$(dirname "$0")/.."

total=${1:?duration}
dir=${2:-}
case $total in
*m) seconds=$((${total%m} * 60)) ;;
*s) seconds=${total%s} ;;
*) echo "proof.sh: a duration like 120s or 5m, not $total" >&2; exit 2 ;;
esac
# The fuzzers get a minute each of the budgeted version's five.
explore=36 simulate=24 fuzz=20
if [ -n "$dir" ]; then
	mkdir -p "$dir"
	explore=40 simulate=30 fuzz=10
fi

# share PERCENT: the seconds of a check.
share() { echo "$((seconds * $1 / 100))s"; }

explorer() {
	go run ./testing/explore/cmd -proof -for "$(share $explore)" ${dir:+-state "$dir/explore.json"}
}

simulation() {
	go test -count=1 -timeout 0 ./testing/sim -run 'TestRules|TestRandom|TestLong' -args -sim.for "$(share $simulate)" ${dir:+-sim.state "$(realpath "$dir")/sim.json"} -test.v
}

# fuzzer TARGET: the last line of its output has the executions. A failing input is kept in
# walsurgery/testdata/fuzz/TARGET and fails every go test from then on.
fuzzer() {
	go test -count=1 -timeout 0 ./walsurgery -run '^$' -fuzz "^$1\$" -fuzztime "$(share $fuzz)" -fuzzminimizetime 20x -parallel 2
}

explorer
simulation
fuzzer FuzzSegment
fuzzer FuzzRecords
