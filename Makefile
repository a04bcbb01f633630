# Everything the project does is a target here. Only Go, git and make are needed;
# the pinned tools (etcd, staticcheck) are built once into a cache outside the
# checkout (TWOK_CACHE, else the user's cache directory).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build

export TWOK_ROOT := $(CURDIR)
export GOTOOLCHAIN ?= local

# Tests start real etcds; more packages at a time than this starve them.
TEST_PARALLEL ?= 2
TEST_TIMEOUT ?= 30m
TEST_FLAGS ?=
BENCH_ROUNDS ?= 20
FOR ?= 60m
HOURS ?= 1
SAFETY ?=
EXPERIMENTS ?= --total 5

.PHONY: build tools demo demo-s3 demo-etcd demo-configmap test test-kubernetes matrix bench lint rules proof proof-long mutants test-safety soak replay experiments clean FORCE

build: bin/twok

# go build knows what is current. Its output goes to stderr: stdout belongs to the demo.
bin/twok: FORCE
	@go build -trimpath -o $@ ./cmd/twok >&2

tools: ## build the pinned etcd releases, the stores of the tests and the linter
	@go run ./testing/tools/build etcd
	@go run ./testing/tools/build staticcheck
	@go run ./testing/tools/build versitygw
	@go run ./testing/tools/build s3rver
	@go run ./testing/tools/build lighttpd
	@go run ./testing/tools/build nginx

demo: bin/twok ## make demo DEMO='--etcd-version 3.6 --cut link'
	@exec bin/twok demo $(DEMO)

demo-s3 demo-etcd demo-configmap: bin/twok ## the demo with its arbiter in a real store, which is started first
	@exec go run ./testing/tools/store $(@:demo-%=%) bin/twok demo $(DEMO)

test:
	go test -p $(TEST_PARALLEL) -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) ./testing/e2e ./walsurgery ./internal/lostwrites ./internal/member ./cmd/twok ./... # the longest first

test-kubernetes: ## the arbiter in a ConfigMap on a real kube-apiserver, which takes ten minutes or more to build, once
	@go run ./testing/kubernetes $(KUBERNETES_FLAGS)

matrix: bin/twok ## every cut on every etcd release with etcd's own timing
	@go run ./testing/figures

bench: bin/twok ## the figures of the README
	@go run ./testing/figures --cuts link,kill-leader --rounds $(BENCH_ROUNDS)
	@go run ./testing/figures --rest 60s

experiments: bin/twok ## what docs/experiments.md reports; runs add up: make experiments EXPERIMENTS='--total 100 --for 30m'
	@go run ./testing/experiment/cmd $(EXPERIMENTS)

lint: rules
	@out=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); if [ -n "$$out" ]; then echo "gofmt -w these:" >&2; echo "$$out" >&2; exit 1; fi
	go vet ./...
	go vet -tags failpoints ./...
	$$(go run ./testing/tools/build staticcheck) ./...
	go test ./testing/layout

rules: ## each rule of the protocol has a test that names it
	@go run ./testing/rules

proof: ## the machine checks of the safety argument, about five minutes
	testing/proof.sh 300s

proof-long: ## make proof-long FOR=60m; totals add up in bin/proof
	testing/proof.sh $(FOR) bin/proof

mutants: ## the core, changed in one place at a time: each change is noticed by a test or explained
	@nice go run ./testing/mutants $(MUTANTS)

bin/scenario: FORCE
	@go build -o $@ ./testing/scenario/cmd >&2

# exec, so that a signal reaches the program and not make's shell.
test-safety: bin/twok bin/scenario ## faults on real pairs in network namespaces, checked for lost writes; ten minutes, as root (docs/harness.md)
	@if [ "$${TWOK_HARNESS:-}" = proxy ]; then echo "left out, TWOK_HARNESS=proxy: the tests of testing/network, which need namespaces"; \
	else TWOK_SAFETY=1 go test -count=1 ./testing/network; fi
	@exec bin/scenario --twok bin/twok $(SAFETY)

soak: bin/twok bin/scenario ## make soak HOURS=1.5: the whole matrix in random order, until the first scenario that is not green
	@mkdir -p testing/soak
	@exec bin/scenario --twok bin/twok --for $(HOURS)h --until-red --totals testing/soak/totals.jsonl $(SAFETY)

replay: bin/scenario ## make replay DIR=bin/safety/RUN/SCENARIO: its checks again
	@exec bin/scenario --replay $(DIR)

clean: ## the cache of tools stays
	rm -rf bin
