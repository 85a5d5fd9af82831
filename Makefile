# Targets for development; `make help` lists them. Needs Python >= 3.11 and make; everything else comes from the lock files, and
# for some targets from packages of the system (.ci/packages).

SHELL := /bin/sh
.DELETE_ON_ERROR:
.SUFFIXES:

PYTHON  ?=
VENV    := .venv
PY      := $(VENV)/bin/python
TANDEMQ := $(VENV)/bin/tandemq
PYTEST  := $(PY) -m pytest
READY   := $(VENV)/.ready
SPARK   := $(VENV)/.spark
DOCS    := $(VENV)/.docs
S3      := .venv-s3/.ready
RELEASE := .venv-release/.ready
ENGINE  := $(wildcard src/tandemq/engine/*.p[yx][xi] src/tandemq/engine/*.h)
WHERE   ?= tests
# Tests that need the packages of the extra `spark`.
OF_SPARK := tests/spark tests/unit/cli/test_spark_options.py tests/unit/console/test_pipeline.py \
	tests/unit/console/test_query_files.py
# Tests of the packages that import the engine.
OF_ENGINE := tests/unit/broker tests/unit/client/core tests/unit/engine tests/unit/replication tests/unit/storage \
	tests/unit/cli/test_log.py tests/unit/cli/test_log_format.py
ELSEWHERE := $(OF_SPARK) tests/mutations tests/interop tests/browser tests/clusters tests/packaging tests/versions \
	tests/test_tidy.py tests/test_docs.py
CHOSEN   = $(if $(k),-k "$(k)")
# How long each test of a run took, the longest first.
TIMES    = --durations=15 --durations-to=build/durations/$@.txt
TYPED   := src/tandemq lab tests chaos judge $(sort $(dir $(wildcard bench/*.py examples/*.py tools/*.py)))

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Images for containers often set it. Every process would then compile what it imports: `make test` would take half as long
# again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: all help setup setup-spark packages fmt check docs reference test test-python services mutations spark demo console sim browser screenshots interop versions versions-sample spark-cluster bench bench-spark bench-failover chaos release-gate soak fuzz-engine spec blackbox cov wheel deb image packaging release release-check install-check newcomers arm source-date lock clean

all: check test  ## check + test (the default)

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY)  ## the environment .venv from the lock files; .venv/bin/tandemq is the command

setup-spark: $(SPARK) $(S3)  ## the same with Spark, its Java and the S3 server of its tests, 1 GB more; `make spark` does so too

packages:  ## install packages of the system that tests need (apt; root or sudo); for=services: those of one target
	@sh tools/packages.sh install $(for)

# Before anything else a target says what it needs and does not find.
needs-%:
	@sh tools/packages.sh check $*

# The lock files are installed one after the other: the later ones have source archives, which are built with the setuptools of
# the first one instead of a downloaded one.
$(READY): requirements.lock requirements-demo.lock requirements-console.lock pyproject.toml setup.py $(ENGINE) tools/find_python.sh
	@test -x $(PY) || { python=$$(PYTHON='$(PYTHON)' sh tools/find_python.sh) && "$$python" -m venv --clear $(VENV); }
	$(PY) -m pip install --quiet --no-compile --require-hashes -r requirements.lock
	$(PY) -m pip install --quiet --require-hashes --no-deps --no-build-isolation -r requirements-demo.lock
	$(PY) -m pip install --quiet --no-compile --require-hashes -r requirements-console.lock
	$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@$(TANDEMQ) --version | grep compiled || echo 'No C compiler with headers of Python was found. Everything works; sends cost' \
		'about 15 times as much CPU time.'
	@touch $@

# pyspark is a source archive of 450 MB.
$(SPARK): $(READY) requirements-spark.lock
	$(PY) -m pip install --quiet --no-compile --require-hashes --no-deps --no-build-isolation -r requirements-spark.lock
	@touch $@

# The S3 server of the tests needs other versions of some packages.
$(S3): requirements-s3.lock $(READY)
	$(PY) -m venv --clear .venv-s3
	.venv-s3/bin/python -m pip install --quiet --no-compile --require-hashes -r requirements-s3.lock
	@touch $@

# What checks the files of a release.
$(RELEASE): requirements-release.lock $(READY)
	$(PY) -m venv --clear .venv-release
	.venv-release/bin/python -m pip install --quiet --no-compile --require-hashes -r requirements-release.lock
	@touch $@

# Only the site needs these.
$(DOCS): $(READY) requirements-docs.lock
	$(PY) -m pip install --quiet --no-compile --require-hashes -r requirements-docs.lock
	@touch $@

fmt: $(READY)  ## format, and apply automatic fixes
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

check: $(SPARK)  ## format, lint, types, the project's own rules and the documentation
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy $(TYPED)
	$(PYTEST) -q tests/test_tidy.py tests/test_docs.py $(TIMES)

docs: $(DOCS)  ## the documentation site, in build/site; a broken link or anchor fails
	$(PY) -m tools.reference
	$(PY) -m tools.picture --check
	$(PY) -m tools.dashboards --check
	$(VENV)/bin/zensical build --strict --clean

reference: $(READY)  ## write the reference pages made from the code, the architecture picture and the dashboards
	$(PY) -m tools.reference
	$(PY) -m tools.picture
	$(PY) -m tools.dashboards

# Three at a time on two cores, because some of the tests wait for the disk and for sockets; an idle worker takes tests from
# the others.
test: $(READY)  ## the tests that need Python and make only and start no process; k=name selects
	$(PYTEST) $(WHERE) -n 3 --dist worksteal $(ELSEWHERE:%=--ignore=%) -m "not slow and not system and not services" \
		$(TIMES) $(CHOSEN)

test-python: $(READY)  ## those of the packages that call the engine, with the engine in Python; k=name selects
	TANDEMQ_ENGINE=python $(PYTEST) $(OF_ENGINE) -n 2 --dist worksteal -m "not slow and not system and not services" \
		$(TIMES) $(CHOSEN)

services: needs-services $(READY)  ## tests with servers of the system's packages: Redis, ZooKeeper on Java, etcd, openssl; k=name selects
	$(PYTEST) tests/unit tests/blackbox $(OF_SPARK:%=--ignore=%) -n 2 --dist worksteal -m "services and not slow" $(TIMES) $(CHOSEN)

mutations: $(READY)  ## the simulation notices each mutation of the brokers; k=name selects
	$(PYTEST) tests/mutations -n 2 --dist worksteal -m "not slow" $(TIMES) $(CHOSEN)

spark: $(SPARK) $(S3)  ## the data pipeline on Spark, with Java from the lock file if there is none; k=name selects
	$(PYTEST) $(OF_SPARK) -n 2 --dist worksteal -m "not slow" $(TIMES) $(CHOSEN)

demo: $(SPARK)  ## a cluster under load that loses a master, with checks of the result
	$(TANDEMQ) demo

console: $(READY)  ## a cluster with traffic and the console beside it; prints the link to open
	$(PY) -m tools.console_demo

sim: $(READY)  ## the simulation: 300 seeds, seeds=2000 for more, seed=7 for one with its full log
	$(PY) -m lab.sim $(if $(seed),--seed $(seed)) $(if $(seeds),--seeds $(seeds) --jobs 2)

# The screenshots of a run are in build/screenshots; those of the documentation are written by `make screenshots` only.
browser: needs-browser $(SPARK)  ## the console in a real browser; k=name selects
	$(PYTEST) tests/browser $(TIMES) $(CHOSEN)

screenshots: needs-browser $(SPARK)  ## the same, and its screenshots replace those of docs/assets/console
	TANDEMQ_SCREENSHOTS=docs/assets/console $(PYTEST) tests/browser

# Six at a time, because these tests wait for JVMs and timers most of their time.
interop: needs-interop $(SPARK)  ## tests with unmodified Java peers; k=name selects
	$(PYTEST) tests/interop -n 6 --dist worksteal -m "not slow" $(TIMES) $(CHOSEN)

# One at a time: each group has a dozen clients beside it. The release is built from its commit, once, in build/releases.
versions: needs-versions $(READY)  ## clusters, stores and clients of the last release together with this tree's, half an hour; k=name selects
	$(PYTEST) tests/versions -o faulthandler_timeout=0 $(TIMES) $(CHOSEN)

versions-sample: needs-versions-sample $(READY)  ## the shortest of these tests: an upgrade under load, a store that is opened backwards
	$(PYTEST) tests/versions -m "not slow" $(TIMES) $(CHOSEN)

# The cluster's processes run in environments of their own, with the wheel; they are kept in build/spark-cluster.
spark-cluster: needs-spark-cluster $(SPARK) wheel  ## the pipeline on a Spark master and two workers with the wheel; k=name selects
	$(PYTEST) tests/clusters -m "not slow" -o faulthandler_timeout=0 $(TIMES) $(CHOSEN)

ifdef cores
bench: $(READY)
	$(PY) -m bench.cores --cores $(cores)
else
bench: $(READY)  ## the benchmarks, with Java RocketMQ, its proxy and NATS JetStream in the same run, and clients beside floods; cores=1,2: shards alone, on so many cores
	$(PY) -m bench.run
	$(PY) -m bench.flood
	$(PY) -m bench.pops
	$(PY) -m bench.grpc
	$(PY) -m bench.tenants
endif

bench-spark: $(SPARK)  ## the data pipeline's figures, compared with Spark's own readers and writers, cmp and Kafka
	$(PY) -m bench.spark

bench-failover: $(READY)  ## interruptions of reads and writes in each mode, with both registries; the cost of elections
	$(PY) -m bench.modes

chaos: needs-chaos $(READY)  ## real brokers, real registries, real faults, 200 runs: about two hours
	$(PY) -m chaos.run

release-gate: needs-soak $(READY)  ## every kind of fault for a night (hours=8), the judge, versions, times; the page of the results
	$(PY) -m chaos.gate run $(if $(hours),--hours $(hours)); code=$$?; $(PY) -m chaos.gate report; exit $$code

soak: needs-soak $(SPARK) $(S3) wheel  ## long searches and real-time waits, an hour or more, then seeds until stopped (seeds=10000: so many)
	$(PYTEST) tests --ignore=tests/browser --ignore=tests/versions -m slow -o faulthandler_timeout=0
	$(PY) -m lab.sim $(if $(seeds),--seeds $(seeds) --jobs 2,--forever)

fuzz-engine: needs-fuzz-engine $(READY)  ## the compiled engine under AddressSanitizer: a minute, seconds=600 or frames=50000000 for more
	$(PY) -m tests.fuzz $(if $(seconds),--seconds $(seconds)) $(if $(frames),--frames $(frames)) $(if $(seed),--seed $(seed))

spec: $(READY)  ## each row of docs/internals/requirements.md with its tests, and the rows without tests
	$(PY) -m tests.spec

# Four at a time on two cores, because these tests wait for processes most of their time.
blackbox: $(READY)  ## tests with clusters on real sockets, processes, files and signals; k=name selects
	$(PYTEST) tests -n 4 --dist worksteal $(ELSEWHERE:%=--ignore=%) -m "system and not slow and not services" $(TIMES) $(CHOSEN)

cov: needs-services $(SPARK) $(S3)  ## test coverage of each file
	$(PY) -m coverage run -m pytest tests --ignore=tests/interop --ignore=tests/browser --ignore=tests/clusters --ignore=tests/packaging --ignore=tests/versions -m "not slow" $(CHOSEN)
	$(PY) -m coverage report

wheel: $(READY)  ## the wheel, in dist/
	rm -rf build/lib* build/bdist* build/temp*
	$(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	rm -rf build/lib* build/bdist* build/temp*

# Twice: the compiled wheel, too, has to have the same bytes.
release: $(READY) $(RELEASE)  ## sdist, wheels, bill of materials, checksums in dist/, checked; engine=python, twice=1, tag=v1.2.3
	$(PY) -m tools.release build $(if $(engine),--engine $(engine)) $(if $(twice),--twice)
	$(PY) -m tools.release check $(if $(tag),--tag "$(tag)")

release-check: $(READY) $(RELEASE)  ## the checks only, of what is in dist/, and the bill of materials and checksums
	$(PY) -m tools.release check $(if $(tag),--tag "$(tag)")

install-check:  ## install the files of dist/ in new environments with all extras, send and receive; extra=name: that one only
	python=$$(PYTHON='$(PYTHON)' sh tools/find_python.sh) && "$$python" tools/try_install.py \
		$(or $(extra:%=--extra %),--extra console --extra proxy --extra spark) \
		$(or $(files),dist/tandemq-*-py3-none-any.whl dist/tandemq-*.tar.gz)

# Roots, servers and environments of their own; it says what this machine cannot run.
newcomers:  ## a new user's first message by one page each: Python and make, Debian, Java, Spark, image; k=name selects; root
	$(or $(shell PYTHON='$(PYTHON)' sh tools/find_python.sh),python3) -m tools.newcomers $(k)

arm: $(READY)  ## compile the engine for ARM64, and run its tests under qemu; root and some packages
	$(PY) -m tools.arm64

source-date:  ## print the variable that gives builds of this commit the same dates
	@echo "SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct)"

# With Debian's Python: the package is for the release of this machine.
deb:  ## the Debian package, in dist/
	/usr/bin/python3 -m tools.debian_package

image: needs-image  ## the image of all servers without a registry, in dist/ (root)
	/usr/bin/python3 -m tools.image

packaging: needs-packaging $(READY)  ## the Debian package and the image, built and run in roots of their own (root), the Helm chart, a full disk; k=name selects
	$(PYTEST) tests/packaging -o faulthandler_timeout=0 $(TIMES) $(CHOSEN)

lock:  ## resolve the dependencies of pyproject.toml into the lock files
	sh tools/lock.sh

clean:  ## remove the files of builds and tests, except the environment
	rm -rf build dist htmlcov .coverage .mypy_cache .ruff_cache .hypothesis
	find src lab tests bench chaos judge -name __pycache__ -type d -prune -exec rm -rf {} +
