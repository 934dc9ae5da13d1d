# Two commands do everything on a machine that has Python and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := $(shell grep -i '^torch==' constraints.txt)
# The package bm3d is for non-commercial use, so it is installed only if asked for: make test BM3D=1.
READY := $(VENV)/ready $(if $(BM3D),$(VENV)/bm3d)

.DEFAULT_GOAL := help
.PHONY: help demo quick test lint bench kernels docs wheel clean

help:            ## what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

# torch comes first and by its exact pin, so that no other package's range fetches another build.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs,export,hub,viewer,dev]'
	touch $@

$(VENV)/bm3d: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[baselines]'
	touch $@

demo: $(READY)   ## train a denoiser on built-in data: a table and a report with pictures
	$(BIN)/spen reproduce table1 --quick --out demo-output

# tests/slow.txt names the tests that are left out, most of them programs that a compiler makes and whole commands.
quick: $(READY)   ## the tests that end within two minutes on two cores: all but those in tests/slow.txt
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test: $(READY) lint   ## lint, types, every test; BM3D=1 tests that baseline too (non-commercial licence)
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(READY)   ## style and types
	$(BIN)/ruff check src tests benchmarks examples docs
	$(BIN)/ruff format --check --quiet src tests benchmarks examples docs
	$(BIN)/mypy

bench: $(READY)   ## time and memory of the strategies
	$(BIN)/python -m benchmarks

# A CPU build of torch has no Triton, and Triton's interpreter needs an older numpy: an environment apart, 1.5 GB.
kernels:         ## the Triton kernels by value, interpreted on the CPU
	$(PYTHON) -m venv build/kernels
	build/kernels/bin/python -m pip install --quiet --disable-pip-version-check "$(TORCH)" numpy==2.3.5 pytest hypothesis
	build/kernels/bin/python -m pip install --quiet --disable-pip-version-check --no-deps triton==3.6.0
	PYTHONPATH=src build/kernels/bin/python -m pytest -o addopts=-q tests/gradients/test_kernels.py

docs: $(READY)   ## the documentation, into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: $(READY)   ## dist/*.whl, installed into an empty environment and used there
	rm -rf dist build
	$(BIN)/python -m build --wheel --no-isolation --outdir dist .
	PYTHON="$(PYTHON)" TORCH="$(TORCH)" .ci/install dist/*.whl

clean:           ## remove the environment and everything made
	rm -rf $(VENV) build dist site demo-output
