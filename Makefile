# Every verb of this repository. `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE_CODE := $(wildcard native/*.cpp native/*.hpp native/*.inl)
NATIVE := CMakeLists.txt $(NATIVE_CODE)
PROMPT ?= def fibonacci(n):
# Built and tested on two cores; `make test WORKERS=8` on a larger machine.
WORKERS ?= 2

.PHONY: help setup demo check format test test-all bench native portable wheel clean distclean
.DEFAULT_GOAL := help

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/pip.stamp:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed: make PYTHON=python3.11") if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet pip==25.3
	@touch $@

# The package itself, editable: its compiled part is built again when a native source changes.
$(VENV)/package.stamp: pyproject.toml constraints.txt $(NATIVE) | $(VENV)/pip.stamp
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/package.stamp
	$(BIN)/pip install --quiet --constraint constraints.txt --group dev
	@touch $@

setup: $(VENV)/dev.stamp  ## make .venv with the package and the development tools

demo: $(VENV)/package.stamp  ## complete a prompt with the checkpoint that ships with the package
	$(BIN)/deskside run "$(PROMPT)"

check: $(VENV)/dev.stamp  ## lint, formatting of Python and C++, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/clang-format --dry-run -Werror $(NATIVE_CODE)

format: $(VENV)/dev.stamp  ## rewrite all sources in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE_CODE)

test: $(VENV)/dev.stamp  ## the fast suite
	$(BIN)/pytest -n $(WORKERS)

test-all: $(VENV)/dev.stamp  ## the whole suite, slow tests too
	$(BIN)/pytest -n $(WORKERS) -m ""

bench: $(VENV)/dev.stamp  ## time decode and prefill beside transformers, and speculation
	$(BIN)/python -m benchmarks.generate
	$(BIN)/python -m benchmarks.speculation

native: $(VENV)/pip.stamp  ## build the compiled kernels again
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	@touch $(VENV)/package.stamp

# Another processor's build: no source that only x86 runs. It gets an environment of its own, which
# borrows the libraries of .venv but not its package.
portable: $(VENV)/dev.stamp  ## build without x86 kernels into build/portable and test that build
	rm -rf build/portable
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir build/portable \
		--config-settings cmake.define.DESKSIDE_PORTABLE=ON .
	$(BIN)/python -m venv --without-pip build/portable/venv
	cd build/portable/venv/lib/python3.*/site-packages && \
		ls -d $(abspath $(VENV))/lib/python3.*/site-packages > libraries.pth
	$(BIN)/pip --python build/portable/venv/bin/python install --quiet --no-deps build/portable/*.whl
	build/portable/venv/bin/python -m pytest -q -n 0 -m native tests/ops

wheel: $(VENV)/pip.stamp  ## build a wheel into dist/
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

clean:  ## remove caches and build outputs
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## remove .venv as well
	rm -rf $(VENV)
