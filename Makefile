# Needs Python 3.11 or newer, make and pip; `check` also npm. Everything lands in this checkout.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUF := tools/buf/node_modules/.bin/buf
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --no-emit-index-url
PYTEST_ARGS ?=

.PHONY: help demo test check lint types imports protos-check buf coverage browser-test matrix model walk \
	rotation \
	fuzz e2e-vllm e2e-vllm-matrix never-blocks image-test observe \
	outage dashboard faults mutants soak bench bench-quick protos \
	states baseline lock wheel clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /: /'

demo: $(BIN)/.server ## install the daemon and move 256 verified chunks through it
	$(BIN)/kvferry demo

test: $(BIN)/.dev ## run every test that needs nothing but Python packages
	$(BIN)/pytest -n 2 $(PYTEST_ARGS)

check: lint types imports protos-check buf coverage ## lint, format, types, imports, contract, coverage

lint: $(BIN)/.dev ## ruff, all rules, and its formatter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(BIN)/.dev ## mypy, strict
	$(BIN)/mypy

imports: $(BIN)/.dev ## the one-way rule
	$(BIN)/lint-imports --no-cache

protos-check: $(BIN)/.dev ## the committed stubs are what the .proto files give
	$(BIN)/python tools/generate_protos.py --check

buf: $(BUF) ## lint of the contract, and no breaking change since the last release
	$(BUF) lint
	$(BUF) format --diff --exit-code
	$(BUF) breaking --against proto/baseline.binpb

coverage: $(BIN)/.dev ## every branch of the core is tested
	$(BIN)/pytest -n 2 -q --cov=kvferry_server.core --cov-branch --cov-fail-under=100 tests/core

browser-test: $(BIN)/.dev ## the status page in headless Chromium; needs chromium and chromium-driver
	$(BIN)/pytest -m browser tests/browser $(PYTEST_ARGS)

matrix: $(BIN)/.matrix ## the contract suite over real S3 servers
	$(BIN)/pytest -m matrix $(PYTEST_ARGS)

walk: $(BIN)/.matrix ## every page that installs something, walked from a checkout on; root, a network
	$(BIN)/pytest -m walk tests/walk $(PYTEST_ARGS)

model: $(BIN)/.dev ## how often the model check takes each transition; fails below 100
	$(BIN)/pytest -s -m slow tests/core $(PYTEST_ARGS)

rotation: $(BIN)/.dev ## keys change every 10 s for 3 minutes under load
	$(BIN)/pytest -s -m slow tests/secrets $(PYTEST_ARGS)

fuzz: $(BIN)/.dev ## 200,000 hostile inputs for every RPC and the lease, and what they covered
	$(BIN)/pytest -s -m slow tests/fuzz $(PYTEST_ARGS)

e2e-vllm: $(BIN)/.matrix ## a real vLLM engine restarts on its KV cache in S3; root, bubblewrap, 4 GB
	$(BIN)/python tools/e2e_vllm_env.py
	$(BIN)/python -m tests.e2e.run_e2e $(SCENARIOS)

e2e-vllm-matrix: $(BIN)/.matrix ## the tier on vLLM 0.28 to 0.33 and beside vLLM's own obj tier; 7 GB
	$(BIN)/python tools/e2e_vllm_env.py
	$(BIN)/python tools/e2e_vllm_matrix.py

never-blocks: $(BIN)/.matrix ## the engine's thread in each method of the tier; writes docs/never-blocks.md; strace
	$(BIN)/python tools/e2e_vllm_env.py
	$(BIN)/python tools/e2e_vllm_matrix.py --never-blocks

image-test: $(BIN)/.dev ## build the image and run it; root, buildah, debootstrap, bubblewrap
	$(BIN)/python -m tests.image.run

observe: $(BIN)/.observe ## every dashboard query and alert in a real Prometheus; Debian's prometheus
	$(BIN)/python -m tests.observe.dashboard

outage: $(BIN)/.dev ## S3 is gone for two minutes; Debian's prometheus
	$(BIN)/python -m tests.observe.outage

dashboard: $(BIN)/.dev ## write deploy/grafana/kvferry.json
	$(BIN)/python tools/make_dashboard.py

faults: $(BIN)/.matrix ## the fault matrix; writes docs/faults.md; root and a C compiler for two of them
	$(BIN)/python -m tests.faults.run

mutants: $(BIN)/.dev ## every deliberately broken build, and that its test fails
	$(BIN)/python -m tests.mutants.run

MINUTES ?= 30
soak: $(BIN)/.matrix $(BIN)/.observe ## three engines and random faults for MINUTES; writes docs/evidence/soak.md
	$(BIN)/python -m tests.soak.run --minutes $(MINUTES)

bench: $(BIN)/.bench ## every figure of docs/performance.md, which it writes; under an hour; root, bubblewrap, Ceph, 4 GB
	$(BIN)/python tools/e2e_vllm_env.py
	$(BIN)/python -m bench

bench-quick: $(BIN)/.bench ## a part of it in five minutes: one line per target, and bench-quick.json
	$(BIN)/python tools/e2e_vllm_env.py
	$(BIN)/python -m bench --quick --json bench-quick.json

protos: $(BIN)/.dev ## write the stubs
	$(BIN)/python tools/generate_protos.py

states: $(BIN)/.dev ## draw docs/state-diagram.md from the core's tables
	$(BIN)/python tools/draw_states.py

baseline: $(BUF) ## at a release: what `buf` compares with from now on
	$(BUF) build --exclude-source-info --output proto/baseline.binpb

lock: $(BIN)/.dev ## write requirements/ anew; LOCK_ARGS=--upgrade for newer versions
	$(LOCK) $(LOCK_ARGS) pyproject.toml --extra server --output-file requirements/server.txt
	$(LOCK) $(LOCK_ARGS) pyproject.toml --extra server --group dev \
		--constraint requirements/server.txt --output-file requirements/dev.txt
	$(LOCK) $(LOCK_ARGS) --group matrix --output-file requirements/matrix.txt
	$(LOCK) $(LOCK_ARGS) --group observe --constraint requirements/dev.txt \
		--output-file requirements/observe.txt
	$(LOCK) $(LOCK_ARGS) --group bench --constraint requirements/dev.txt \
		--constraint requirements/observe.txt --output-file requirements/bench.txt
	echo hatchling | $(LOCK) $(LOCK_ARGS) --output-file requirements/build.txt -

wheel: $(BIN)/python ## build dist/kvferry-*.whl
	rm -rf dist
	$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir dist .

clean: ## remove what the other targets made, environments included
	rm -rf $(VENV) .venv-protos .venv-vllm dist build tools/buf/node_modules .mypy_cache .ruff_cache \
		.pytest_cache .hypothesis .import_linter_cache .coverage

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'kvferry needs Python 3.11 or newer; say make PYTHON=python3.12'; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(BIN)/.server: $(BIN)/python requirements/server.txt pyproject.toml
	$(PIP) --require-hashes -r requirements/server.txt
	$(PIP) --editable .
	@touch $@

$(BIN)/.dev: $(BIN)/.server requirements/dev.txt
	$(PIP) --require-hashes -r requirements/dev.txt
	@touch $@

$(BIN)/.matrix: $(BIN)/.dev requirements/matrix.txt
	$(PIP) --require-hashes -r requirements/matrix.txt
	@touch $@

$(BIN)/.observe: $(BIN)/.dev requirements/observe.txt
	$(PIP) --require-hashes -r requirements/observe.txt
	@touch $@

$(BIN)/.bench: $(BIN)/.matrix requirements/bench.txt
	$(PIP) --require-hashes -r requirements/bench.txt
	@touch $@

$(BUF): tools/buf/package-lock.json
	npm ci --prefix tools/buf --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@
