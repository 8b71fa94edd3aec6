# Everything is set up here: a machine needs Python 3.11 or newer, git, make and bash.
#   make check   formatter, linter, types, floors     make demo    a ticket from start to end, offline, no key
#   make test    the tests, in minutes                make lock    resolve requirements.lock anew
#   make proof   the long tests                       make bench   time and CPU beside a bare SDK loop
#   make venv    only the set-up                      make clean   remove what make made

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: venv check test proof demo bench lock clean

PYTHON ?= python3
KILLS ?= 150
NIGHTS ?= 2
SEED ?= 1
PROCESSES ?= 3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

venv: $(INSTALLED)

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(INSTALLED)
	$(BIN)/pytest -n 3 --cov --cov-report=
	$(BIN)/coverage report --fail-under=100

proof: $(INSTALLED)
	@echo "proof: KILLS=$(KILLS) NIGHTS=$(NIGHTS) SEED=$(SEED)"
	KILLS=$(KILLS) NIGHTS=$(NIGHTS) SEED=$(SEED) $(BIN)/pytest -m proof -n $(PROCESSES)

demo: $(INSTALLED)
	$(BIN)/python -m runner.offline.demo

bench: $(INSTALLED)
	$(BIN)/python -m tests.benchmark

lock: $(INSTALLED)
	$(BIN)/uv pip compile --quiet --universal --upgrade --generate-hashes --no-emit-index-url --all-extras \
		--group dev --group build --custom-compile-command "make lock" --output-file requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache dist
	find runner tickets tests -name __pycache__ -prune -exec rm -rf {} +

# The lock first, hash by hash; then the project itself, for which nothing is fetched.
$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is missing or older than Python 3.11: say which to use, as in: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
		exit 1; }
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@
