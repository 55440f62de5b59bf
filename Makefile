# Everything sets up what it needs first. The exact versions, with hashes, are in requirements/.
PYTHON ?= python3
# The oldest Python that a worker may have; where this machine has none, the tests that need it say so and are skipped.
OLDEST_PYTHON ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.9.*/bin/python3.9) $(shell command -v python3.9))

BIN := .venv/bin
PIP_FLAGS := --quiet --disable-pip-version-check --require-hashes --no-deps

IMAGE_LOCK := --universal --python-version 3.10 --constraint requirements/dev.lock --generate-hashes --no-header --no-annotate --upgrade --quiet

.PHONY: help demo cluster cluster-down test unit lint oldest checks test-pythons test-matrix bench lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: .venv/ready ## train the handwritten digits on 2 workers
	$(BIN)/tfrun run -n 2 builtin:digits

test: .venv/ready oldest checks lint ## everything: linters, types, import rules, tests (with the cluster, if one is up), coverage
	rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest
	-$(BIN)/coverage combine --quiet  # a launcher that a test killed may leave half a file; the report below is what counts
	$(BIN)/coverage report $(if $(wildcard .cluster/pki/admin.kubeconfig)$(TFRUN_TEST_KUBECONFIG),,--omit=orchestrator/backends/kubernetes.py)

unit: .venv/ready ## the tests that start no TensorFlow and need no cluster: seconds
	$(BIN)/pytest -m "not tensorflow and not cluster"

lint: .venv/ready ## ruff, mypy, import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

.venv/ready: requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v < (3, 14) else f"$(PYTHON) is Python {v[0]}.{v[1]}; tfrun needs 3.10 to 3.13: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install $(PIP_FLAGS) -r requirements/dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

oldest: ## the oldest Python and TensorFlow that workers may have
ifeq ($(OLDEST_PYTHON),)
	@echo "there is no python3.9 here, so the tests with TensorFlow 2.15 are skipped; give one with make OLDEST_PYTHON=PATH"
else
	@$(MAKE) --no-print-directory .venv-oldest/ready
endif

.venv-oldest/ready: requirements/oldest.lock
	$(OLDEST_PYTHON) -m venv --clear .venv-oldest
	.venv-oldest/bin/pip install $(PIP_FLAGS) -r requirements/oldest.lock
	touch $@

checks: .venv-checks/ready ## what checks the Kubernetes objects, in an environment of its own: its requirements clash with ours

.venv-checks/ready: requirements/checks.lock
	$(PYTHON) -m venv --clear .venv-checks
	.venv-checks/bin/pip install $(PIP_FLAGS) -r requirements/checks.lock
	touch $@

cluster: .venv/ready ## a real Kubernetes on this machine, for the tests (SIMULATED=200: with so many simulated nodes)
	$(BIN)/python -m tests.cluster up $(if $(SIMULATED),--simulated $(SIMULATED))

cluster-down: .venv/ready ## stop it and leave nothing behind
	$(BIN)/python -m tests.cluster down

test-pythons: ## the tests that start no TensorFlow, on every Python from 3.10 to 3.13 that is here
	tests/pythons

test-matrix: .venv/ready ## every TensorFlow from 2.15 on; writes docs/compatibility.md
	$(BIN)/python tests/matrix.py

bench: .venv/ready ## the figures of docs/benchmarks.md
	$(BIN)/python -m benchmarks

lock: ## new exact versions into requirements/ (needs uv)
	uv pip compile pyproject.toml --extra cpu --group dev --universal --python-version 3.10 --override requirements/overrides.txt \
		--generate-hashes --no-header --no-annotate --upgrade --quiet -o requirements/dev.lock
	uv pip compile requirements/oldest.in --universal --python-version 3.9 \
		--generate-hashes --no-header --no-annotate --upgrade --quiet -o requirements/oldest.lock
	uv pip compile requirements/checks.in --universal --python-version 3.10 \
		--generate-hashes --no-header --no-annotate --upgrade --quiet -o requirements/checks.lock
	@# what the images hold: the same versions that were tested here
	uv pip compile pyproject.toml $(IMAGE_LOCK) -o requirements/controller.lock
	uv pip compile requirements/worker.in $(IMAGE_LOCK) -o requirements/worker.lock
	uv pip compile requirements/build.in $(IMAGE_LOCK) -o requirements/build.lock

clean: ## remove what the other targets made
	test ! -e .cluster || $(MAKE) cluster-down
	rm -rf .venv .venv-* .tfrun build dist .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
