# Two commands: `make quickstart` trains a policy, `make test` checks everything. Both make .venv first, from pinned versions.
# Nothing but make and Python 3.11 or newer has to be there; PYTHON=... chooses the interpreter.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3 python; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
VENV := .venv
RUN := $(VENV)/bin/python
PEERS := .venv-peers
# The files pin every package, dependencies included, so pip has nothing to resolve; bytecode is made on first import.
INSTALL := -m pip install --quiet --disable-pip-version-check --no-deps --no-compile
WORKDIR ?= runs/quickstart
PYTEST_ARGS ?=
# Each takes up to 3 GB and a core or two.
WORKERS ?= 2
# Tests start some forty processes that import JAX: without bytecode each of them compiles it for seconds.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help:  ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: quickstart
quickstart: $(VENV)/quickstart.stamp  ## Train a small policy to spell backward and write a report (WORKDIR=runs/quickstart)
	$(RUN) -m experiments.train --config=configs/quickstart.py --workdir=$(WORKDIR)
	@echo "The report: $(abspath $(WORKDIR))/report.html"

.PHONY: test
test: lint types  ## Lint, check the types, run all tests (PYTEST_ARGS='tests/report -x' to choose, WORKERS=2)
	$(RUN) -m pytest --numprocesses=$(WORKERS) --dist=worksteal $(PYTEST_ARGS)

.PHONY: lint
lint: $(VENV)/test.stamp  ## Lint and check the format
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

.PHONY: types
types: $(VENV)/test.stamp  ## Check the types of the public modules
	$(RUN) -m mypy

.PHONY: format
format: $(VENV)/test.stamp  ## Rewrite the code in the project's format
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

.PHONY: tables
tables: $(VENV)/test.stamp  ## Write the method table of README.md from the registry
	$(RUN) -m docs.make_tables

.PHONY: properties
properties: $(VENV)/test.stamp  ## Ask every recipe for every property and write docs/properties.md (a quarter of an hour)
	$(RUN) -m docs.make_properties

.PHONY: peers
peers: $(PEERS)/stamp  ## Run the adapters against verl, TRL, Tunix and torch, in .venv-peers (two minutes, gigabytes of packages)
	$(PEERS)/bin/python -m pytest tests/peers

.PHONY: peers-page
peers-page: $(PEERS)/stamp  ## Ask the peers' own estimators for every property and write docs/peers.md
	$(PEERS)/bin/python -m docs.make_peers

.PHONY: docs
docs: $(VENV)/test.stamp  ## Build the documentation site, build/site/index.html (two minutes)
	$(RUN) -m docs.make_site

.PHONY: notebooks
notebooks: $(VENV)/test.stamp  ## Execute the notebooks of docs/ and write their outputs
	$(RUN) -m docs.make_notebooks

.PHONY: pins
pins:  ## Choose the newest versions that fit setup.py, and pin them in requirements/
	rm -rf build/pins
	$(PYTHON) -m venv build/pins
	build/pins/bin/python -m pip install --quiet '.[quickstart]'
	build/pins/bin/python requirements/freeze.py > requirements/quickstart.txt
	build/pins/bin/python -m pip install --quiet '.[train,test]'
	build/pins/bin/python requirements/freeze.py > requirements/test.txt
	build/pins/bin/python -m pip check

.PHONY: clean
clean:  ## Remove .venv and caches, keep runs
	rm -rf $(VENV) $(PEERS) build .jax_cache .mypy_cache .pytest_cache .ruff_cache

# The environment is updated when the pins change, and only then.
$(VENV)/%.stamp: requirements/%.txt requirements/optional.txt | $(RUN)
	@echo "Installing requirements/$*.txt into $(VENV)"
	@$(RUN) $(INSTALL) -r $<
	@$(RUN) $(INSTALL) -r requirements/optional.txt >/dev/null 2>&1 \
		|| echo "Without a C compiler the packages of requirements/optional.txt are left out; nothing here depends on them."
	@touch $@

# Torch brings what its build for this machine needs. The CPU build is enough: pip takes it from an index that has it.
$(PEERS)/stamp: requirements/test.txt requirements/peers.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name it: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python $(INSTALL) -r requirements/test.txt
	@$(PEERS)/bin/python $(INSTALL) -r requirements/peers.txt
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check "$$(grep ^torch== requirements/peers.txt)"
	@touch $@

$(RUN):
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name it: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
