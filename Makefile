# Every target runs in .venv, which is made on first use from pyproject.toml and constraints.txt.
# On a fresh machine this needs Python 3.11 or newer with venv, and a package index.

PYTHON ?= python3
BIN := .venv/bin
ARGS ?=

# One module of benchmarks/ per published number; scripts/gpu_suite.sh runs what a GPU changes.
BENCHMARKS ?= atari_cpu a2c_atari batcher dicttensor import_time learning

.DELETE_ON_ERROR:
.PHONY: train test oldest slow check conformance sanitize bench gpu docs clean

train: .venv/.installed  ## Train the REINFORCE example: make train ARGS="--seed 1"
	$(BIN)/python -m algos.reinforce $(ARGS)

test: .venv/.installed  ## The fast CPU tests and the doctests, on two cores
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not gpu and not slow" -n 2 --dist loadfile $(ARGS)

oldest: .venv/.installed  ## The same with old versions of what it depends on
	$(BIN)/pip install --quiet --no-deps --upgrade --target build/oldest -r oldest.txt
	PYTHONPATH=$(CURDIR)/build/oldest $(MAKE) test

slow: .venv/.installed  ## The slow CPU tests; one may take 20 minutes
	$(BIN)/pytest -m "slow and not gpu" -o faulthandler_timeout=1200 $(ARGS)

check: .venv/.installed  ## Format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_layering.py

conformance: .venv/.installed  ## All Atari games and 300 made-up cartridges beside ale-py
	$(BIN)/python -m scripts.conformance --full $(ARGS)

sanitize: .venv/.installed  ## Less of the same, with the address and undefined-behaviour sanitizers
	$(BIN)/python -m scripts.conformance --sanitize $(ARGS)
	$(BIN)/python -m scripts.conformance --sanitize --interpret $(ARGS)

bench: .venv/.installed  ## The benchmarks that need no GPU, one after the other
	@set -e; for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name $(ARGS); done

gpu: .venv/.installed  ## The tests that need a CUDA device; without one this fails
	RLBATCH_REQUIRE_GPU=1 $(BIN)/pytest -m gpu -o faulthandler_timeout=300 $(ARGS)

docs: .venv/.installed-docs  ## The documentation, into site/
	$(BIN)/mkdocs build --strict

clean:  ## Everything that is made, except .venv
	rm -rf build dist site gpu_results .pytest_cache .mypy_cache .ruff_cache
	find . \( -path ./.venv -o -path ./.git \) -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

# The build backend goes first and is then used as it is: no second, unpinned environment.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt scikit-build-core
	$(BIN)/pip install --quiet -c constraints.txt --no-build-isolation -e '.[algos,dev]'
	touch $@

.venv/.installed-docs: .venv/.installed
	$(BIN)/pip install --quiet -c constraints.txt --no-build-isolation -e '.[docs]'
	touch $@
