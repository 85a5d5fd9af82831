# One command per habit; `make help` tells them. Needs Python >= 3.11 and make; everything else comes from the lock.

SHELL := /bin/sh
.DELETE_ON_ERROR:
.SUFFIXES:

PYTHON  ?=
VENV    := .venv
PY      := $(VENV)/bin/python
TANDEMQ := $(VENV)/bin/tandemq
PYTEST  := $(PY) -m pytest
READY   := $(VENV)/.ready
DOCS    := $(VENV)/.docs
WHERE   ?= tests
TYPED   := src/tandemq tests chaos $(sort $(dir $(wildcard bench/*.py examples/*.py tools/*.py)))

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: all help setup fmt check docs reference test demo sim interop bench bench-spark bench-failover chaos soak spec blackbox cov wheel lock clean

all: check test  ## check + test (the default)

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY)  ## the environment .venv from the lock files; .venv/bin/tandemq is the command

# The lock files are installed one after the other: the later ones hold source archives (pyspark is 450 MB), built with
# the setuptools of the first instead of one fetched for the occasion.
$(READY): requirements.lock requirements-demo.lock requirements-spark.lock pyproject.toml tools/find_python.sh
	@test -x $(PY) || { python=$$(PYTHON='$(PYTHON)' sh tools/find_python.sh) && "$$python" -m venv --clear $(VENV); }
	$(PY) -m pip install --quiet --no-compile --require-hashes -r requirements.lock
	$(PY) -m pip install --quiet --require-hashes --no-deps --no-build-isolation -r requirements-demo.lock
	$(PY) -m pip install --quiet --no-compile --require-hashes --no-deps --no-build-isolation -r requirements-spark.lock
	$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# Only the site needs these.
$(DOCS): $(READY) requirements-docs.lock
	$(PY) -m pip install --quiet --no-compile --require-hashes -r requirements-docs.lock
	@touch $@

fmt: $(READY)  ## format, and fix what can be fixed
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

check: $(READY)  ## format, lint, types, and the rules of the house (tidy, docs)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy $(TYPED)
	$(PYTEST) -q tests/test_tidy.py tests/test_docs.py

docs: $(DOCS)  ## the documentation site, in build/site; a broken link or anchor fails
	$(PY) -m tools.reference --check
	$(PY) -m tools.picture --check
	$(VENV)/bin/zensical build --strict --clean

reference: $(READY)  ## write the reference pages made from the code, and the architecture picture
	$(PY) -m tools.reference
	$(PY) -m tools.picture

# Three at a time: half of the time goes into waiting for processes. Who is done takes tests from the others.
test: $(READY)  ## the tests, without Java peers and without real-time waits; k=name picks
	$(PYTEST) $(WHERE) -n 3 --dist worksteal --ignore=tests/interop --ignore=tests/test_tidy.py --ignore=tests/test_docs.py \
		-m "not slow and not interop" $(if $(k),-k "$(k)")

demo: $(READY)  ## the main job on real input, told as a story
	$(TANDEMQ) demo

sim: $(READY)  ## the simulation: some hundred seeds; as many as wanted: seeds=2000; one with its full log: seed=7
	$(TANDEMQ) sim $(if $(seed),--seed $(seed)) $(if $(seeds),--seeds $(seeds) --jobs 2)

interop: $(READY)  ## unmodified Java peers with ours (needs Java and Maven); k=name picks
	$(PYTEST) tests/interop -m "not slow" --timeout=240 $(if $(k),-k "$(k)")

bench: $(READY)  ## the benchmarks, beside Java RocketMQ
	$(PY) -m bench.run

bench-spark: $(READY)  ## the data pipeline's figures, beside Spark's own ways and cmp
	$(PY) -m bench.spark

bench-failover: $(READY)  ## seconds without reads and writes in each mode, on both registries; what electing costs
	$(PY) -m bench.modes

chaos: $(READY)  ## real brokers, real registries, real faults, 200 runs: about two hours
	$(PY) -m chaos.run

soak: $(READY)  ## the tests that wait in real time, half an hour or more, then seeds until stopped
	$(PYTEST) tests --ignore=tests/interop -m slow -o faulthandler_timeout=0
	$(TANDEMQ) sim --forever

spec: $(READY)  ## each row of docs/internals/requirements.md with the tests that show it, and the rows without
	$(PY) -m tests.spec

blackbox: $(READY)  ## real processes, sockets, files and signals; k=name picks
	$(PYTEST) tests/blackbox -m "not slow" $(if $(k),-k "$(k)")

cov: $(READY)  ## how much of each file its tests reach
	$(PY) -m coverage run -m pytest tests --ignore=tests/interop -m "not slow and not interop" $(if $(k),-k "$(k)")
	$(PY) -m coverage report

wheel: $(READY)  ## the wheel, in dist/
	rm -rf build
	$(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	rm -rf build

lock:  ## resolve pyproject.toml anew into the lock files
	sh tools/lock.sh

clean:  ## remove what builds and tests leave behind; the environment stays
	rm -rf build dist htmlcov .coverage .mypy_cache .ruff_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
