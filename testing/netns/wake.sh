#!/usr/bin/env bash
# How long a pair takes to write again after a cut that nobody could claim
# (the arbiter is away), on a link whose TCP connections really go into
# retransmission backoff: two network namespaces, cut with nftables. A proxy cannot show this.
#
#   sudo testing/netns/wake.sh [CUT_SECONDS=40] [ROUNDS=1] [bare]
#
# With "bare" the etcds run without agents. Prints one line a round,
# "heal_to_first_write_s N", and needs root, iproute2 and nftables. It makes the two
# namespaces twok-a and twok-b, and ends everything that it started.
set -euo pipefail
cd "$(dirname "$0")/../.."
cut=${1:-40} rounds=${2:-1} mode=${3:-agents} minor=${ETCD_MINOR:-3.6}
[ "$(id -u)" = 0 ] || { echo "wake.sh: needs root for network namespaces" >&2; exit 1; }
for tool in ip nft; do
	command -v $tool >/dev/null || { echo "wake.sh: $tool is missing: apt-get install iproute2 nftables" >&2; exit 1; }
done
export TWOK_ROOT=$PWD
mapfile -t bin < <(go run ./testing/tools/build etcd "$minor")
etcd=${bin[0]} etcdctl=${bin[1]}
make --no-print-directory build >&2
dir=$(mktemp -d) pids=()

cleanup() {
	for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
	for p in "${pids[@]}"; do wait "$p" 2>/dev/null || true; done
	ip netns del twok-a 2>/dev/null || true
	ip netns del twok-b 2>/dev/null || true
	rm -rf "$dir"
}
trap cleanup EXIT

ip netns add twok-a
ip netns add twok-b
ip -n twok-a link add veth0 type veth peer name veth0 netns twok-b
ip -n twok-a addr add 192.0.2.1/30 dev veth0
ip -n twok-b addr add 192.0.2.2/30 dev veth0
for s in a b; do
	ip -n twok-$s link set lo up
	ip -n twok-$s link set veth0 up
done

start() { # site address
	local args=("$etcd" --name "$1" --data-dir "$dir/$1"
		--listen-client-urls "http://$2:2379" --advertise-client-urls "http://$2:2379"
		--listen-peer-urls "http://$2:2380" --initial-advertise-peer-urls "http://$2:2380"
		--initial-cluster a=http://192.0.2.1:2380,b=http://192.0.2.2:2380 --initial-cluster-token twok-wake)
	local agent=()
	if [ "$mode" = agents ]; then
		# Nobody listens at the arbiter: no claim is ever possible.
		agent=(bin/twok agent --data-dir "$dir/$1" --client-url "http://$2:2379" --peer-url "http://$2:2380"
			--arbiter http://127.0.0.1:9/away --claim-after 20s --)
	fi
	# exec, so that the PID is the process that has to be ended.
	ip netns exec "twok-$1" bash -c 'exec "$@"' -- "${agent[@]}" "${args[@]}" >"$dir/$1.log" 2>&1 &
	pids+=($!)
}
start a 192.0.2.1
start b 192.0.2.2

put() { # one write with a short deadline, at either member, from inside
	ip netns exec twok-a "$etcdctl" --endpoints http://192.0.2.1:2379 --command-timeout 500ms --dial-timeout 300ms put /wake "$1" >/dev/null 2>&1
}
for i in $(seq 100); do put warm-up && break; sleep 0.2; [ "$i" -lt 100 ] || { echo "wake.sh: the pair does not write" >&2; exit 1; }; done

for r in $(seq "$rounds"); do
	sleep 5
	for s in a b; do
		ip netns exec twok-$s nft 'table inet cut { chain in { type filter hook prerouting priority -300; iifname "veth0" drop; }; }'
	done
	sleep "$cut"
	for s in a b; do ip netns exec twok-$s nft delete table inet cut; done
	begin=$(date +%s.%N)
	for i in $(seq 600); do put "$r" && break; sleep 0.05; done
	end=$(date +%s.%N)
	echo "heal_to_first_write_s $(awk -v a="$begin" -v b="$end" 'BEGIN { printf "%.2f", b - a }') cut_s $cut mode $mode etcd $minor"
done
