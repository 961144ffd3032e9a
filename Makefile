# SPDX-License-Identifier: Apache-2.0
# `make` builds bin/keelson; `make help` lists the rest.
SHELL := /bin/bash
export GO ?= go
# without what only debuggers read, a tenth of the compiler's work: programs are linked with -s -w (docs/decisions/0223)
export GOFLAGS := -trimpath -buildvcs=false -gcflags=all=-dwarf=false $(GOFLAGS)
# everywhere but for the shim and the race detector, so that whatever is compiled is compiled once
export CGO_ENABLED := 0
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT := $(shell git rev-parse HEAD 2>/dev/null)
STATE := $(if $(COMMIT),$(if $(shell git status --porcelain --untracked-files=no 2>/dev/null),dirty,clean))
DATE := $(shell TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null)
LDFLAGS := -s -w -X keelson/cluster/version.revision=$(VERSION) -X keelson/cluster/version.gitCommit=$(COMMIT) -X keelson/cluster/version.treeState=$(STATE) \
	-X keelson/cluster/version.buildDate=$(DATE) $(foreach v,gitVersion=v1.37.2 gitMajor=1 gitMinor=37 gitCommit=$(COMMIT) gitTreeState=$(STATE) buildDate=$(DATE),-X k8s.io/component-base/version.$(v))
LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
EMBED := runtime/embedded
SHIM_SRC := go.mod $(shell find runtime/shim runtime/oci lib \( -name '*.go' -o -name '*.c' \) -not -name '*_test.go' 2>/dev/null)
ETCD_SRC := go.mod $(shell find store lib -name '*.go' -not -name '*_test.go' 2>/dev/null)
HELLO_SRC := images/hello/go.mod $(shell find images/hello -name '*.go' -not -name '*_test.go' 2>/dev/null)

.DEFAULT_GOAL := build
.PHONY: build run demo test race attack kills lint golangci golangci-fast critest h2spec vulncheck fmt fuzz fuzz-short e2e bench bench-scheduler check deps tools clean help

build: helper ## build bin/keelson (static, CGO-free) and what it carries
	@hack/go-build -ldflags '$(LDFLAGS)' -o bin/keelson ./cmd/keelson

.PHONY: helper
helper: $(EMBED)/keelson-shim.zst $(EMBED)/hello.zst $(EMBED)/etcd.zst

$(EMBED)/keelson-shim.zst: $(SHIM_SRC)
	@hack/need-seccomp
	@CGO_ENABLED=1 hack/go-build -tags 'netgo osusergo seccomp' -ldflags '-s -w -extldflags -static' -o bin/keelson-shim ./runtime/shim/keelson-shim
	$(GO) run ./runtime/embedded/pack bin/keelson-shim $@

$(EMBED)/hello.zst: $(HELLO_SRC)
	@hack/go-build -C images/hello -ldflags '-s -w' -o $(CURDIR)/bin/hello .
	$(GO) run ./runtime/embedded/pack bin/hello $@

$(EMBED)/etcd.zst: $(ETCD_SRC)
	@hack/go-build -ldflags '-s -w' -o bin/etcd ./store/etcdapi/etcd
	$(GO) run ./runtime/embedded/pack bin/etcd $@

run: build ## a cluster in the foreground
	bin/keelson up

demo: build ## build, start a cluster, run examples/replicaset.yaml, show its timeline, leave the cluster up
	@hack/demo bin/keelson

test: build ## every test and fuzz-short; root-only tests run where root, and say so where not
	@hack/test

race: build ## every test under the race detector
	@RACE=1 hack/test

attack: build ## attacks on whole clusters (root; minutes and gigabytes of memory)
	@KEELSON_ATTACK=1 hack/test -timeout 40m -run '^Test(Attack|Escape)' ./test

converge: ## 2,000 histories of the simulation, other ones for each commit (cluster/clustertest/converge)
	@CONVERGE_HISTORIES=2000 hack/test -run '^TestConverge$$' -timeout 2h ./cluster/clustertest/converge

kills: ## a thousand kills of the store
	@KEELSON_TEST_KILL_ROUNDS=1000 hack/test -run '^TestKill9$$' -timeout 2h ./store/embed

critest: build ## critest of cri-tools against the container runtime (root; versions: test/critools/go.mod)
	@hack/critest

h2spec: ## h2spec against the HTTP/2 server (versions: test/h2spec/go.mod)
	@hack/h2spec

vulncheck: ## the binary in the Go vulnerability database (exit 2: it cannot be reached)
	@hack/vulncheck

lint: ## gofmt and go vet
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -d $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	$(GO) -C images/hello vet ./...

fmt: bin/tools/golangci-lint ## gofumpt and gci over the tree
	bin/tools/golangci-lint fmt

golangci: bin/tools/golangci-lint ## golangci-lint (pinned), with the rules of .golangci.yml
	bin/tools/golangci-lint run --allow-parallel-runners ./...
	cd images/hello && ../../bin/tools/golangci-lint run --allow-parallel-runners ./...

golangci-fast: bin/tools/golangci-lint ## those of its rules that need no types: format, complexity, imports, spelling
	bin/tools/golangci-lint run --allow-parallel-runners --fast-only ./...
	cd images/hello && ../../bin/tools/golangci-lint run --allow-parallel-runners --fast-only ./...

bin/tools/golangci-lint: Makefile # names the version
	GOBIN=$(CURDIR)/bin/tools $(GO) install $(LINT)
	@touch $@

fuzz: ## every fuzz target for FUZZTIME (default 10s)
	@hack/fuzz

fuzz-short: ## every fuzz target for FUZZTIME (default 1s) without a lead by coverage, as `make test` does
	@hack/fuzz short

e2e: build ## the end-to-end scripts alone (root)
	$(GO) test -count=1 -timeout 15m ./test/...

bench: build ## the figures of docs/performance.md
	bin/keelson bench

bench-scheduler: build ## the scheduler: its engine alone, then with the API server (docs/performance.md; ARGS="plain --scale 0.1")
	GOMAXPROCS=1 $(GO) test -run xxx -bench Place -benchtime 1x -benchmem ./scheduler/schedtest
	bin/keelson bench scheduler $(ARGS)

check: lint test ## what CI runs
	@true

deps: ## install what the build needs (Debian: gcc, libseccomp-dev, pkg-config)
	@hack/need-seccomp

tools: ## helm, kwok, CoreDNS and suites of controller-runtime into bin/tools, for the tests that run them (versions: test/*/go.mod)
	cd test/clients && GOBIN=$(CURDIR)/bin/tools $(GO) install -ldflags '-s -w' tool
	cd test/coredns && $(GO) build -ldflags '-s -w' -o $(CURDIR)/bin/tools/coredns .
	cd test/envtest && GOBIN=$(CURDIR)/bin/tools $(GO) install -ldflags '-s -w' tool
	cd test/envtest && for suite in envtest client; do \
		$(GO) test -c -ldflags '-s -w' -o $(CURDIR)/bin/tools/$$suite.test sigs.k8s.io/controller-runtime/pkg/$$suite || exit 1; done

.PHONY: envtest-release
envtest-release: build ## an archive and an index for setup-envtest: make envtest-release DIR=dist URL=https://...
	@hack/envtest-release $(or $(DIR),dist) $(or $(URL),http://127.0.0.1:8000)

.PHONY: ui
ui: ## build the dashboard's page from ui/ (Node 20); what it makes is committed
	@hack/ui

clean: ## remove what make made
	rm -rf bin $(EMBED)/*.zst

help: ## this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
