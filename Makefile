# Everything a fresh machine needs: `make test`, `make demo`. The rest is for daily work.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := $(VENV)/.demo
WORKERS ?= 2

.PHONY: test test-second test-all test-kernels demo docs lint format wheel bench clean

PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test: lint
	$(PYTEST) $(PYTEST_FLAGS)

test-second: $(STAMP)
	$(PYTEST) -m second $(PYTEST_FLAGS)

# Both at once.
test-all: lint
	$(PYTEST) -m "not slow" $(PYTEST_FLAGS)

# Triton's kernels without a GPU, in its interpreter; in a folder of its own, so that nothing else finds Triton.
test-kernels: $(STAMP)
	test -d $(VENV)/triton || $(BIN)/python -m pip install --no-compile --no-deps --target $(VENV)/triton triton==3.9.0
	TRITON_INTERPRET=1 PYTHONPATH=$(VENV)/triton $(PYTEST) -m triton $(PYTEST_FLAGS)

demo: $(DEMO)
	$(BIN)/varprop demo

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

wheel: $(STAMP)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m build --wheel

bench: $(STAMP)
	$(BIN)/python benchmarks/speed.py

clean:
	rm -rf dist build .pytest_cache .ruff_cache .mypy_cache .hypothesis

# The demo needs less than the rest.
$(DEMO): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e '.[demo]'
	touch $@

# The stamp is newer than what it was made from, or the packages are installed again.
$(STAMP): pyproject.toml constraints.txt tests/peers.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile -c constraints.txt -e '.[dev,docs]'
	$(BIN)/python -m pip install --no-compile --no-deps -r tests/peers.txt
	touch $@
