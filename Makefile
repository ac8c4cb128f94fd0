PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Every process that a test starts imports torch and much more, which takes three times as long without bytecode: that of
# the packages is there from their installation, the project's own is written, whatever the shell says.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: demo test test-all test-docs quick matrix lint docs install install-test install-docs clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

install: $(BIN)/python
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .

install-test: $(BIN)/python
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test]'

install-docs: $(BIN)/python
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'

demo: install
	$(BIN)/ppl demo

test: install-test
	$(PYTEST) --ignore tests/docs

# Slow ones too: an hour.
test-all: install-test
	$(PYTEST) --ignore tests/docs -m ""

# README, pages and notebooks as printed.
test-docs: install-test
	$(PYTEST) tests/docs

quick: install-test
	$(PYTEST) -m quick

# The wheel in fresh environments: newest releases on every Python from 3.12 on, lowest ones on 3.11; before a release.
matrix: install-test
	$(BIN)/python -m benchmarks.quality.installs

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: install-docs
	$(BIN)/python -m sphinx -n -W --keep-going --quiet -d build/doctrees docs build/html

clean:
	rm -rf $(VENV) noca_demo build
