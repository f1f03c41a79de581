# Everything a newcomer types. `make` alone lists it. Set-up runs by itself, and again only when a lock changes.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
# Gates and tests share caches and ports; benchmarks must have the machine to themselves.
.NOTPARALLEL:

# The Python that makes .venv: `make test PYTHON=python3.12` chooses another.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
# uv only resolves the lock files, from an environment of its own that is thrown away afterwards.
UV := uv==0.13.9
# `make lock UPGRADE=--upgrade` moves every pin to its newest release; plain `make lock` keeps what still fits.
UPGRADE ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --require-virtualenv
RUN := .venv/.ready-run
DEV := .venv/.ready-dev
# The rooms that promise every line and branch covered.
PURE := src/wastegate/core/*,src/wastegate/openai/*,src/wastegate/levers/*

.PHONY: help demo test lint gates bench lock clean

help: ## list what can be made
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

# Where everything is installed already, the demo needs nothing more.
demo: $(if $(wildcard $(DEV)),$(DEV),$(RUN)) ## from nothing to a cost report: model, gateway, two replicas, traffic, audit
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh

test: $(DEV) ## lint, types, import rules, then every test with coverage
	@$(MAKE) gates
	@rm -f .coverage
	$(BIN)/python -m pytest --cov --cov-report= $(ARGS)
	@echo "coverage of the pure rooms (all lines, all branches):"
	$(BIN)/python -m coverage report --include='$(PURE)' --fail-under=100
	@echo "coverage of the whole:"
	@$(BIN)/python -m coverage report --format=total

lint: $(DEV) ## the gates alone: ruff, format, mypy, import rules
	@$(MAKE) gates

gates:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(DEV) ## every benchmark, one after another, into docs/benchmarks.md
	$(BIN)/python benchmarks/run_all.py $(ARGS)

lock: ## resolve locks/*.txt anew from pyproject.toml
	@$(MAKE) check-python
	@tools=$$(mktemp -d); trap 'rm -rf "$$tools"' EXIT; \
	$(PYTHON) -m venv "$$tools"; \
	"$$tools/bin/python" -m pip install --quiet --disable-pip-version-check '$(UV)'; \
	resolve() { UV_CUSTOM_COMPILE_COMMAND='make lock' "$$tools/bin/uv" pip compile pyproject.toml \
	  --quiet --no-config --universal --python-version 3.11 --fork-strategy fewest --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --annotation-style line --group build --extra local "$$@"; }; \
	resolve --extra dev $(UPGRADE) --output-file locks/dev.txt; \
	resolve --constraint locks/dev.txt --output-file locks/run.txt
	@if grep -nE '://|--index|--find-links' locks/*.txt; then \
	  echo 'locks/ names a host (lines above); a lock must hold names, versions and hashes only' >&2; exit 1; fi

clean: ## remove .venv, caches and build leftovers; never data or models
	rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUN): locks/run.txt pyproject.toml
	@$(MAKE) install LOCK=locks/run.txt
	@touch $@

$(DEV): locks/dev.txt pyproject.toml
	@$(MAKE) install LOCK=locks/dev.txt
	@touch $@

# pip itself comes first from the lock, so that what reads the rest is the same everywhere.
.PHONY: install check-python
install: check-python
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing $(LOCK) into .venv"
	@$(PIP) install --quiet --require-hashes --no-deps -r <(sed -n '/^pip==/,/^ *#/p' $(LOCK))
	@$(PIP) install --quiet --require-hashes -r $(LOCK)
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || { \
	  echo "$(PYTHON) is not Python 3.11, 3.12 or 3.13. Install one (Debian 12: apt-get install python3 python3-venv)," >&2; \
	  echo "or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make a virtual environment with pip in it." >&2; \
	  echo "On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
