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
	@$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile -m "not containers and not faults"

test-faults: .venv/dev ## Run the tests that take long: those that break processes, networks, servers, disks, clocks
	@$(BIN)/python -m pytest -n 3 --dist loadfile -m "faults and not containers and not conformance"

test-conformance: .venv/dev ## Run the suite on PostgreSQL 15 and 17, through PgBouncer, without notifications, on Python 3.12 and 3.13
	@$(BIN)/python -m pytest -n 2 -m conformance

test-containers: .venv/dev ## Run the tests that need a container engine
	@TESTCONTAINERS_RYUK_DISABLED=true $(BIN)/python -m pytest -m containers

chaos: .venv/dev ## Break everything at random for ten minutes and judge what is left (CHAOS_SECONDS=60 SEED=7)
	@$(BIN)/python -m tests.chaos $(if $(CHAOS_SECONDS),--seconds $(CHAOS_SECONDS)) $(if $(SEED),--seed $(SEED))

check: .venv/dev ## Run the linters and the type checker
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

bench: .venv/dev ## Measure everything against a bare loop in the same run; QUICK=1: in two minutes
	@$(BIN)/fleet bench all $(if $(QUICK),--quick)

bench-peers: .venv/dev ## Measure beside pgqueuer, awa, Oban and Procrastinate
	@$(BIN)/fleet bench peers

docs: .venv/dev ## Build the documentation into docs/_build, warnings are errors
	@$(BIN)/python -m sphinx -W -n -q --keep-going -b html docs docs/_build

.venv/bin/python:
	@$(PYTHON) -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "fleet needs Python 3.11 or newer with venv; name one by: make PYTHON=/path/to/python3.11 …" >&2; exit 1; }
	@echo "Making a virtual environment in .venv …" >&2
	@$(PYTHON) -m venv .venv

.venv/run: pyproject.toml | .venv/bin/python
	@echo "Installing fleet and an embedded PostgreSQL …" >&2
	@$(call install,$(USED))
	@touch $@

.venv/dev: pyproject.toml .venv/run
	@echo "Installing what the tests need …" >&2
	@$(call install,$(EVERYTHING))
	@touch $@
