# `make demo` and `make test` set up everything they need; both start from a bare Python 3.11.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
JOBS   ?= 2

# Linear algebra threads times test processes must not exceed the cores.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: setup test quick demo bench lint format clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -c "import sys; sys.exit('vhat needs Python 3.11 or newer; set PYTHON=...' if sys.version_info < (3, 11) else 0)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[torch,test,lint]"
	touch $(STAMP)

test: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

quick: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow"

demo: $(STAMP)
	$(BIN)/vhat demo --out demo

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
	rm -rf $(VENV) $(RIVALS) build dist demo/*.png .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
