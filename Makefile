PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
USED := -e '.[embedded]'
EVERYTHING := -e '.[embedded,bench,dev,docs]'
# uv takes a quarter of pip's time. Where it can reach nothing, pip may: it knows the settings of this machine.
install = { $(PIP) uv && $(BIN)/uv pip install -q --python $(BIN)/python $(1); } 2>/dev/null || $(PIP) $(1)

.PHONY: help run up roll down test test-faults test-conformance test-containers chaos check bench bench-peers docs

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: .venv/run ## Run a whole fleet on this machine: PostgreSQL, workers, API and a sample
	@$(BIN)/fleet up --sample

up: .venv/run ## Run a whole fleet in containers: PostgreSQL, migration, workers, API, Prometheus
	@$(BIN)/python deploy/stack.py up

roll: .venv/run ## Replace the workers in containers one after another, while they work
	@$(BIN)/python deploy/stack.py roll

down: .venv/run ## End the fleet in containers; its data stays
	@$(BIN)/python deploy/stack.py down

test: .venv/dev ## Run the tests that take no long time, on an embedded PostgreSQL 18
