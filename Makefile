# Everything rests on `make setup`. Stamps make a second call cheap.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
LOCK_FLAGS := --generate-hashes --no-header --no-annotate --no-emit-index-url --python-version 3.11 --quiet
WORKERS ?= 2
# Empty is off: every process the tests start would compile our modules, and every run rewrite its assertions, again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo serve test test-again test-browser test-peers bench check fix lock screenshots clean

help: ## Say what each target does.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(STAMP) ## Prepare .venv with pinned dependencies and the kvscope command.

$(STAMP): requirements-dev.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements-dev.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@# uv compiles nothing: where byte code may not be written later, every start would compile it all again.
	-@$(BIN)/python -c "import app, commands.demo"
	@touch $(STAMP)

demo: setup ## Serve the dashboard on 127.0.0.1:8501 with the demo fleet running.
	$(BIN)/kvscope demo --serve $(ARGS)

test: setup ## Run the whole suite in two processes, browser tests too where Chromium is installed (tests/order.py).
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

test-again: setup ## Run only what failed last, alone: a lost race against the clock passes here, a real failure does not.
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(ARGS)

test-browser: setup ## Run only the browser tests.
	$(BIN)/python -m pytest -m browser $(ARGS)

test-peers: setup ## Run the tests that start real engines.
	$(BIN)/python -m pytest -o addopts="--strict-markers -ra --import-mode=importlib" tests/peers $(ARGS)

bench: setup ## Measure speed and size; prints a table.
	$(BIN)/python -m benchmarks $(ARGS)

check: setup ## Lint, format, types, import contracts.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: setup ## Mend what lint and format can mend.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## Pin the dependencies again, with hashes.
	$(BIN)/uv pip compile pyproject.toml $(LOCK_FLAGS) -o requirements.txt
	$(BIN)/uv pip compile pyproject.toml --group dev $(LOCK_FLAGS) -o requirements-dev.txt

screenshots: setup ## Draw every page's picture in docs/ again from a running demo.
	$(BIN)/python -m benchmarks.screenshots $(ARGS)

clean: ## Remove the environment and caches.
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
