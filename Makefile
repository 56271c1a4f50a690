# make demo    resolve for this machine, build, validate (sets itself up)
# make engine  a shell beside the private container engine that the demo started
# make test      what a change can break, with one real torch, engine, registry and nginx (sets itself up)
# make test-all  all tests: also breakages, Slurm, Kubernetes, podman, keyless, S3, hostile servers (sets itself up)
# make gpu       meet this machine's GPU: no network, no engine, python3 with torch (PYTHON=, OUT=, SECONDS=)
.DEFAULT_GOAL := help
.PHONY: help setup tool demo engine test test-all gpu ci lint workflows format types contracts drift docs weight checks faults bench dev-lock clean
.PHONY: jobs image stage staged gate key promote publish validate scan refresh dist tool-keyless

BIN := .venv/bin

help:
	@sed -n 's/^# //p' Makefile
	@echo "make lint types contracts drift docs weight    what CI checks besides the tests"
	@echo "make workflows   actionlint, zizmor and the schemas over .github/"
	@echo "make jobs image stage staged gate key promote publish validate scan refresh dist    the steps of .github/ (docs/ci-images.md)"
	@echo "make checks  write the table of docs/checks.md, and which checks have met a GPU"
	@echo "make faults  every fault and breakage of tests/faults: found, missed, false alarms on what is sound"
	@echo "make bench   benchmarks/, as ratios"

setup:
	@.ci/setup

tool:
	@.ci/setup tool

demo: setup
	@$(BIN)/python tests/e2e/private_engine.py offer -- $(BIN)/envcheck demo

engine: setup
	@$(BIN)/python tests/e2e/private_engine.py offer -- $${SHELL:-sh}

test: setup
	@.ci/test

test-all: setup
	@.ci/test all

# No set-up: what envcheck needs beside torch is where PYTHONPATH says.
PYTHON ?= python3
OUT ?= .envcheck/gpu
SECONDS ?= 540
gpu:
	@$(PYTHON) .ci/gpu --out $(OUT) --seconds $(SECONDS)

ci:
	@.ci/run

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory workflows

workflows: setup
	$(BIN)/actionlint -shellcheck= -pyflakes= .github/workflows/*.yml
	$(BIN)/zizmor --offline --quiet --strict-collection --no-progress .github
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions .github/actions/*/action.yml

# What the steps of .github/ run. Their values come from the environment, never from a text that a shell reads.
jobs image stage staged gate promote validate scan refresh dist: tool
	@.ci/step $@

# The one step that signs without a key, and its packages.
tool-keyless:
	@.ci/setup keyless

publish: tool-keyless
	@.ci/step $@

# Alone: no program that is installed meanwhile sees the secret.
key:
	@.ci/step $@

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
	$(BIN)/python .ci/matrix/format.py --check

docs: setup
	$(BIN)/sphinx-build --quiet --fail-on-warning --fresh-env -c .ci/docs docs .envcheck/docs

weight: setup
	@$(BIN)/python .ci/weight

checks: setup
	$(BIN)/python .ci/checks

faults: setup
	@$(BIN)/envcheck build torch2.13.0-cpu-py311 --engine venv --mirror host --output .envcheck/test-venv >/dev/null
	@$(BIN)/envcheck build torch2.13.0-cpu-py311 --engine venv --target train --mirror host --output .envcheck/train-venv >/dev/null
	@ENVCHECK_TEST_PYTHON=$$PWD/.envcheck/test-venv/bin/python ENVCHECK_TEST_TRAIN_PYTHON=$$PWD/.envcheck/train-venv/bin/python $(BIN)/pytest -q -n auto tests/faults

bench: setup
	@$(BIN)/envcheck build torch2.13.0-cpu-py311 --engine venv --mirror host --output .envcheck/test-venv >/dev/null
	@failed=0; for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python "$$file" || failed=1; done; exit $$failed

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-header --no-annotate \
  --no-emit-index-url --no-emit-find-links pyproject.toml

dev-lock: setup
	$(COMPILE) --group dev -o .ci/dev.lock
	$(COMPILE) --group tool --constraints .ci/dev.lock -o .ci/tool.lock
	$(COMPILE) --group tool --extra keyless --constraints .ci/dev.lock -o .ci/keyless.lock

clean:
	rm -rf .venv .envcheck dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
