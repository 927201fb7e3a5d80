# openpcs: see `make help`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# An older Go of the distribution fetches the one that go.mod asks for.
export GOTOOLCHAIN ?= auto

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
BIN      := bin/openpcs
LINK     := /usr/local/bin/openpcs
SCRIPTS  := $(wildcard scripts/*.sh) .ci/run
PACKAGES ?= ./...
FUZZTIME ?= 10s

GOFUMPT     := go run mvdan.cc/gofumpt@v0.12.0
STATICCHECK := go run honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := go run golang.org/x/vuln/cmd/govulncheck@v1.9.0

.PHONY: help
help: ## Show this text
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: up
up: ## Install, build and start everything, with a demo cluster and its first job
	scripts/host.sh packages
	$(MAKE) --no-print-directory build
	scripts/host.sh incus-up
	$(BIN) up

.PHONY: down
down: ## Stop openpcs and remove all that it made (but the cache of images, see clean); with OPENPCS_SITE that site alone
	rc=0; if [[ -x $(BIN) ]]; then $(BIN) down || rc=$$?; fi; \
	if [[ -z $${OPENPCS_SITE:-} ]]; then scripts/host.sh incus-down; fi; \
	if [[ $$(readlink $(LINK)) == $(CURDIR)/$(BIN) ]]; then rm -f $(LINK); fi; \
	exit $$rc

.PHONY: build
build: ## Build bin/openpcs and link it into /usr/local/bin
	CGO_ENABLED=0 go build -trimpath -ldflags '-X main.version=$(VERSION)' -o $(BIN) ./cmd/openpcs
	CGO_ENABLED=0 go build -trimpath -o $(BIN)-s3 ./cmd/openpcs-s3
	if [[ -w $(dir $(LINK)) ]]; then ln -sfn $(CURDIR)/$(BIN) $(LINK); fi

.PHONY: host
host: ## Install the packages and start Incus, nothing of openpcs
	scripts/host.sh packages
	scripts/host.sh incus-up

# Only a hang reaches the limits. They sum up to 70 minutes so that Go's dump
# of what hangs comes before CI gives up.
.PHONY: test
test: ## Run all tests, those on real Incus and real Slurm too
	$(MAKE) --no-print-directory host build
	scripts/awscli.sh path
	go test -race -count=1 -timeout 25m $$(go list $(PACKAGES) | grep -v -e /test/e2e -e /compute/incus)
	go test -race -count=1 -timeout 10m ./internal/compute/incus
	if [[ -n $$(ls test/e2e/*_test.go 2>/dev/null) ]]; then go test -count=1 -timeout 50m -tags e2e -v ./test/e2e/...; fi

.PHONY: test-short
test-short: ## Run the tests that need neither root nor Incus
	go test -race -short $$(go list $(PACKAGES) | grep -v /test/e2e)

.PHONY: fuzz
fuzz: ## Run each fuzz test for FUZZTIME (10s)
	for file in $$(grep -rlE '^func Fuzz' --include='*_test.go' .); do \
		for name in $$(grep -oE '^func Fuzz[A-Za-z0-9_]*' "$$file" | cut -c6-); do \
			go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "./$$(dirname "$$file")"; \
		done; \
	done

.PHONY: bench
bench: ## Measure everything that has a budget (TOPICS: planning api logs fifty cold-start); JSON into bench/
	$(MAKE) --no-print-directory host build
	go build -o bin/openpcs-bench ./cmd/openpcs-bench
	bin/openpcs-bench $(TOPICS)

.PHONY: lint
lint: ## Check format, vet, staticcheck, shellcheck, go.mod and known vulnerabilities
	files=$$($(GOFUMPT) -l .); if [[ -n $$files ]]; then printf 'not formatted (make fmt):\n%s\n' "$$files"; exit 1; fi
	go vet ./...
	go vet -tags e2e ./...
	$(STATICCHECK) -tags e2e ./...
	go mod tidy -diff
	shellcheck $(SCRIPTS)
	out=$$($(GOVULNCHECK) ./... 2>&1) || { \
		if grep -q 'fetching vulnerabilities' <<<"$$out"; then echo 'govulncheck: skipped, its database is out of reach'; \
		else printf '%s\n' "$$out"; exit 1; fi; }

.PHONY: fmt
fmt: ## Format the Go files
	$(GOFUMPT) -w .

.PHONY: docs
docs: ## Write the pages that are made from the code
	go test ./internal/condition -run TestDocument -write
	go test ./internal/fleet -run TestPages -write
	go test ./internal/metrics -run TestPage -write

.PHONY: clean
clean: ## Remove what was built, and the cache of images
	rm -rf bin
	rm -rf --one-file-system $${OPENPCS_CACHE:-/var/cache/openpcs}
