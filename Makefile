# make demo    resolve for this machine, build, validate (sets itself up)
# make engine  a shell beside the private container engine that the demo started
# make test    everything, the engine tests included where an engine can be had (sets itself up)
.DEFAULT_GOAL := help
.PHONY: help setup demo engine test lint format types contracts drift docs checks faults bench dev-lock clean

BIN := .venv/bin

help:
	@sed -n 's/^# //p' Makefile
	@echo "make lint types contracts drift docs    what CI checks besides the tests"
	@echo "make checks  write the table of docs/checks.md, and which checks have met a GPU"
	@echo "make faults  every fault of tests/faults put in: found, missed, false alarms on sound machines"
	@echo "make bench   benchmarks/, as ratios"

setup:
	@.ci/setup

demo: setup
	@$(BIN)/python tests/e2e/private_engine.py offer -- $(BIN)/envcheck demo

engine: setup
	@$(BIN)/python tests/e2e/private_engine.py offer -- $${SHELL:-sh}

test: setup
	@.ci/test

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup
	$(BIN)/mypy

contracts: setup
	$(BIN)/lint-imports

drift: setup
	$(BIN)/envcheck render --check
	$(BIN)/envcheck matrix check

docs: setup
	$(BIN)/sphinx-build --quiet --fail-on-warning --fresh-env -c .ci/docs docs .envcheck/docs

checks: setup
	$(BIN)/python .ci/checks

faults: setup
	@$(BIN)/envcheck build torch2.13.0-cpu-py311 --engine venv --mirror host --output .envcheck/test-venv >/dev/null
	@ENVCHECK_TEST_PYTHON=$$PWD/.envcheck/test-venv/bin/python $(BIN)/pytest -q -n auto tests/faults

bench: setup
	@$(BIN)/envcheck build torch2.13.0-cpu-py311 --engine venv --mirror host --output .envcheck/test-venv >/dev/null
	@failed=0; for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python "$$file" || failed=1; done; exit $$failed

dev-lock: setup
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links pyproject.toml --group dev -o .ci/dev.lock

clean:
	rm -rf .venv .envcheck dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
