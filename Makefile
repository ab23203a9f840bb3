# Every target sets up what it needs by itself; nothing else has to be run first.
SHELL := bash
.DEFAULT_GOAL := help
BIN := .venv/bin
TEST_EXTRAS := train serve spark modal wandb onnx dev
# Two workers fill the two cores that CI has. Each gets whole files, so that what the tests of a file share is
# made once, and the longest first (tests/conftest.py). PYTEST_ARGS passes on what you want instead.
PYTEST_ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help setup setup-cuda system-packages demo test fuzz chaos lint format clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv with everything that training needs
	@scripts/bootstrap.sh train

setup-cuda: ## the same on a machine with NVIDIA GPUs: adds JAX's CUDA 12 wheels, 5 GB
	@scripts/bootstrap.sh train cuda

system-packages: ## as root: Slurm, Java and Chromium, which some tests use and pip cannot install
	@scripts/system-packages.sh

demo: ## simulate, train a tiny model and answer a question, below runs/demo
	@scripts/bootstrap.sh train
	@$(BIN)/ping-llm demo

test: lint ## lint, then every test
	@$(BIN)/pytest $(PYTEST_ARGS)

fuzz: ## a million mutated inputs, at most 15 minutes (test runs a few thousand)
	@scripts/bootstrap.sh $(TEST_EXTRAS)
	@$(BIN)/python tests/fuzz/fuzz.py

chaos: ## kill every command 100 times, fill its disk, start it twice: half an hour to an hour; disks need root
	@scripts/bootstrap.sh $(TEST_EXTRAS)
	@$(BIN)/python scripts/chaos.py

lint: ## ruff and mypy
	@scripts/bootstrap.sh $(TEST_EXTRAS)
	@$(BIN)/ruff check -q .
	@$(BIN)/ruff format -q --check .
	@$(BIN)/mypy --no-error-summary

format: ## let ruff rewrite the files, and make docs/api.md from the docstrings
	@scripts/bootstrap.sh $(TEST_EXTRAS)
	@$(BIN)/ruff check -q --fix .
	@$(BIN)/ruff format -q .
	@$(BIN)/python scripts/api_docs.py

clean: ## remove .venv and caches; runs/ stays
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
