# `make demo` and `make test` do all set-up themselves: a virtual environment in .venv, made when missing. The
# demonstration installs only what it needs; the rest comes with the first target that needs it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: build demo test docs lint types check clean

demo: $(VENV)/demo
	$(BIN)/tidefast demo

# The quick tests. Whole chunks of a file stay together on a worker, so that fixtures of a module are made once.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -rs

test: $(VENV)/ready
	$(PYTEST) -m "not slow"

docs: $(VENV)/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready
	$(BIN)/mypy

check: lint types
	$(PYTEST)

# sdist and wheel, and the wheel tried in an environment of its own; the image's steps in another.
build: $(VENV)/ready
	$(BIN)/python .ci/build.py
	$(BIN)/python .ci/image.py

INSTALL = PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[bench]'
	touch $@

$(VENV)/ready: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[dev]'
	touch $(VENV)/demo $@

clean:
	rm -rf $(VENV)
