# Two commands on a fresh machine: `make repro` runs the pipeline, `make test` passes the tests.
# Each sets up .venv when it is not there; PYTHON picks the interpreter it is made from.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# The stages are commands of this environment, whatever the shell outside knows.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: repro test lint gpu clean

repro: $(READY)
	$(BIN)/dvc repro

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "slow or not slow"

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Everything that needs a GPU, measured on this machine; ARGS names some of the parts.
gpu: $(READY)
	$(BIN)/python -m benchmarks.gpu $(ARGS)

# torch is asked for by an exact version first: on Linux a plain range would take the newest build with
# several gigabytes of CUDA. On a GPU machine install the build you want into .venv before `make`.
$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable ".[dvc,dev]"
	touch $@

clean:
	rm -rf .venv .dvc/cache .dvc/tmp .pytest_cache .mypy_cache .ruff_cache build *.egg-info
