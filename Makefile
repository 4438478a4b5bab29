# `make demo` and `make test` set up everything they need; both start from a bare Python 3.11.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
JOBS   ?= 2

# Linear algebra threads times test processes must not exceed the cores.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

.PHONY: setup test test-slow test-dear test-all test-costs hostile guard browser demo docs dist minimum newest lock bench lint format clean

setup: $(STAMP)

# The pinned torch comes first: it satisfies the range of the extra, which then installs no other.
$(STAMP): pyproject.toml
	$(PYTHON) -c "import sys; sys.exit('vhat needs Python 3.11 or newer; set PYTHON=...' if sys.version_info < (3, 11) else 0)"
	@echo "Installing into $(VENV): 2.3 GB, some minutes, the first time only."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[torch,test,lint]"
	touch $(STAMP)

# The core of the tests: seven to eight minutes on two cores, before anything is compiled.
test: $(STAMP)
	$(PYTEST) --tier core

# The rest, but for the dearest tests.
test-slow: $(STAMP)
	$(PYTEST) --tier slow

# One fifth of the dearest tests, chosen by the commit.
test-dear: $(STAMP)
	$(PYTEST) --tier dear

test-all: $(STAMP)
	$(PYTEST) --tier all

# What each test costs when nothing is compiled beforehand; tests/tiers.py makes the tiers from it.
test-costs: $(STAMP)
	costs=$$(mktemp -d) && TMPDIR=$$costs $(PYTEST) --tier all --record $$costs/costs && \
		$(BIN)/python -m tests.tiers $$costs/costs.*; rm -rf $$costs

# Hostile calls, files, commands and signals, drawn by a seed. A second call goes on where the first one stopped; failures are kept in
# tests/hostile/cases/, which the tests replay. With FastAPI and httpx installed, --requests 1000 asks the HTTP example too;
# `python -m tests.hostile.load --full` puts load on one model. `make hostile HOSTILE="--calls 5000 --seed 7 --seconds 600"` runs others.
HOSTILE ?= --calls 1000 --derived 1000 --files 1000 --commands 300 --tables 100 --kills 100 --seed 0

hostile: $(STAMP)
	$(BIN)/python -W ignore -m tests.hostile $(HOSTILE)

# Compares the numbers of this working tree with those of a commit, bit for bit: some five minutes on one core.
# `make guard BEFORE=main GUARD="--rtol 1e-10 --cases numpy/*"` allows for rounding and runs some cases.
BEFORE ?= HEAD
GUARD  ?=

guard: $(STAMP)
	$(BIN)/python tools/guard.py $(BEFORE) $(GUARD)

# What the tests look at reports with. Without it they are skipped, and say so.
browser:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then echo "Chromium is installed."; \
	elif ! command -v apt-get >/dev/null; then \
		echo "Chromium and chromedriver are missing, and there is no apt-get: install both by hand."; exit 1; \
	elif [ "$$(id -u)" = 0 ]; then $(APT); \
	elif command -v sudo >/dev/null; then sudo sh -c '$(APT)'; \
	else echo "Chromium is missing, and installing it takes root or sudo: apt-get install chromium chromium-driver"; exit 1; fi

APT := apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends chromium chromium-driver

demo: $(STAMP)
	$(BIN)/vhat demo --out demo

# The site, in site/, by tools of its own: nothing of the library's environment is touched, and nothing is fetched to build it.
DOCS := .venv-docs

docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict

$(DOCS)/.installed: pyproject.toml tools/requirements.py
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(PYTHON) tools/requirements.py extra docs > $(DOCS)/requirements.txt
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r $(DOCS)/requirements.txt
	touch $@

# Wheel and sdist, in dist/; the wheel is then installed where there is nothing else, no torch either, and runs the demo. With the
# extra for tables it runs the quick starts of the README that need no torch. `make dist TORCH=torch==2.13.0` installs that torch as
# well and runs all of them.
DIST  := .venv-dist
TORCH ?=

dist:
	rm -rf build dist $(DIST)
	$(PYTHON) -m venv $(DIST)/tools
	$(DIST)/tools/bin/python -m pip install --quiet --disable-pip-version-check build==1.6.1
	$(DIST)/tools/bin/python -m build --outdir dist .
	$(PYTHON) -m venv $(DIST)/empty
	$(DIST)/empty/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	cd $(DIST) && empty/bin/python -c "import importlib.util as u; assert u.find_spec('torch') is None"
	cd $(DIST) && empty/bin/vhat --version && empty/bin/vhat demo --out demo
	$(DIST)/empty/bin/python -m pip install --quiet --disable-pip-version-check "$$(ls dist/*.whl)[sklearn]" $(TORCH)
	$(DIST)/empty/bin/python tools/readme_starts.py $(if $(TORCH),,--no-torch)

# The oldest versions that pyproject.toml allows, and the tests that need no more than them. Old packages are warned of
# by new ones that they rest on, which is no fault of ours: deprecations are left aside here, and here only.
OLDEST := .venv-minimum

minimum: $(OLDEST)/.installed
	$(OLDEST)/bin/vhat --version
	$(OLDEST)/bin/python -m pytest -W ignore::DeprecationWarning -m "not slow" \
		tests/intervals/test_interval.py tests/docs/test_import.py tests/variance/test_weighted_norm.py tests/models/test_outer_products.py

$(OLDEST)/.installed: pyproject.toml tools/requirements.py
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(PYTHON) tools/requirements.py minimum > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(OLDEST)/constraints.txt -e ".[sklearn]" pytest
	touch $@

# The newest versions that pyproject.toml allows, in an environment that is made anew each time, and the core of the tests. Not part of CI:
# what is published tomorrow should be no failure of a change of today. `make newest NEWEST_TESTS=tests/intervals` runs some.
NEWEST       := .venv-newest
NEWEST_TESTS ?= --tier core

newest:
	rm -rf $(NEWEST)
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager -e ".[torch,test]"
	$(NEWEST)/bin/python -m pip list --format freeze
	$(NEWEST)/bin/python -m pytest -n $(JOBS) --dist loadfile $(NEWEST_TESTS)

# requirements/test.lock: the environment of `make setup` with a hash for every file. Versions stay as they are where pyproject.toml
# allows them; `make lock LOCK=--upgrade` takes the newest.
LOCKING := .venv-lock
LOCK    ?=

lock:
	test -x $(LOCKING)/bin/uv || $(PYTHON) -m venv $(LOCKING)
	$(LOCKING)/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.8
	$(LOCKING)/bin/uv pip compile --quiet pyproject.toml --extra torch --extra test --extra lint --python-version 3.11 \
		--generate-hashes --no-annotate --no-header --no-emit-index-url $(LOCK) --output-file requirements/test.lock

# The whole table takes about two hours on two quiet cores, the first time half an hour more for training.
# `make bench BENCH="--only per-point --quick"` measures some rows, or small ones; the others are kept.
RIVALS  := .venv-bench
THREADS ?= $(shell nproc 2>/dev/null || echo 1)
BENCH   ?=

bench: export OMP_NUM_THREADS := $(THREADS)
bench: export OPENBLAS_NUM_THREADS := $(THREADS)
bench: $(STAMP) $(RIVALS)/.installed
	$(BIN)/python -m benchmarks $(BENCH)

# laplace-torch brings a torchvision that it does not use; one built for another torch would stop its import.
$(RIVALS)/.installed: benchmarks/rivals.txt
	test -x $(RIVALS)/bin/python || $(PYTHON) -m venv $(RIVALS)
	$(RIVALS)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/rivals.txt
	$(RIVALS)/bin/python -c "import torchvision" 2>/dev/null || \
		$(RIVALS)/bin/python -m pip uninstall --quiet --yes torchvision
	touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(RIVALS) $(DOCS) $(DIST) $(OLDEST) $(NEWEST) $(LOCKING) build dist site demo/*.png .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
