# Two commands: `make run` (the default example, end to end) and `make test`. Both set up everything themselves.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONFIG ?= examples/clinic_visits.yaml
export BULKHEAD_HOME ?= $(CURDIR)/.bulkhead

.DEFAULT_GOAL := help
.PHONY: help install run test test-all check lint types bench bench-gpu bench-quality gpu-check bench-leaks bench-ratchet cost docs faults test-spark screenshots ui constraints clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.runtime: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Bulkhead needs Python 3.11 or newer, found " + sys.version.split()[0] + "; set PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

.bulkhead/data/clinic_visits.parquet: examples/clinic_visits.py | $(VENV)/.runtime
	@$(BIN)/python examples/clinic_visits.py $@

install: $(VENV)/.runtime ## make the environment with the pinned dependencies

run: $(VENV)/.runtime $(if $(filter examples/clinic_visits.yaml,$(CONFIG)),.bulkhead/data/clinic_visits.parquet) ## run the default example (or CONFIG=file.yaml) end to end and register its model
	@$(BIN)/bulkhead run $(CONFIG)

TEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --durations 20

test: check ## lint, types, layers and the default tests (about 9 minutes on 2 quiet cores)
	$(TEST)

test-all: check ## the same with the long tests: whole pipelines, kills, ranks, browser, all programs under watch (over an hour on 2 cores)
	$(TEST) -m 'not spark'

check: lint types ## lint, format, spelling and types

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell schemas tasks flows training tests benchmarks examples docs README.md CHANGELOG.md

types: $(VENV)/.dev
	$(BIN)/mypy

bench: $(VENV)/.runtime ## measure training and preparation against loops by hand and against peers, and write docs/benchmarks.md (under 20 minutes on 2 quiet cores)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[chem]'
	@$(BIN)/python -m benchmarks.throughput
	@$(BIN)/python -m benchmarks.encoders
	@$(BIN)/python -m benchmarks.ranks
	@$(BIN)/python -m benchmarks.startup
	@$(BIN)/python -m benchmarks.prepare

bench-gpu: $(VENV)/.runtime ## the same on a GPU: table on the device, transformer in bf16, waits, checkpoints (10 minutes; ends with 2 where there is none)
	@$(BIN)/python -m benchmarks.gpu

cost: $(VENV)/.runtime ## measure the constants of docs/cost.md (under 5 minutes on 2 quiet cores)
	@$(BIN)/python -m benchmarks.cost

gpu-check: $(VENV)/.dev ## check on a GPU that training computes, stops, resumes and shards as on the CPU (under 8 minutes; one table; ends with 2 where there is none)
	@$(BIN)/python -m tests.gpu.check

bench-quality: $(VENV)/.runtime ## compare with boosting libraries and reference networks on the same rows, and write docs/benchmarks-quality.md (hours; resumable; ARGS=--quick: under 20 minutes)
	@$(BIN)/python -m benchmarks.quality $(ARGS)

bench-leaks: $(VENV)/.dev ## plant leaks, split honestly, and let this project and its peers look (about an hour on 2 quiet cores)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[chem]'
	@$(BIN)/python -m benchmarks.leaks

bench-ratchet: $(VENV)/.runtime ## let the gate judge simulated years of nightly retrains, and write docs/benchmarks-ratchet.md (about 10 minutes on 2 quiet cores)
	@$(BIN)/python -m benchmarks.ratchet

docs: $(VENV)/.runtime ## write docs/leaks.md from the checks
	@$(BIN)/python -m training.data.leakage.catalogue_page docs/leaks.md

faults: $(VENV)/.dev ## kill, damage and fill up runs by the hundred (about an hour on 2 cores)
	$(BIN)/python -m pytest -m long
	$(BIN)/python -m tests.faults.corrupt --flips 1000 --truncations 1000
	$(BIN)/python -m tests.faults.storage
	$(BIN)/python -m tests.faults.kill --trials 200
	$(BIN)/python -m tests.faults.kill --trials 100 --mode elastic

test-spark: $(VENV)/.dev ## hold the Spark engine against DuckDB on local Spark (needs Java 17 or newer; 20 minutes on 2 busy cores)
	@java -version >/dev/null 2>&1 || { echo 'make test-spark needs Java 17 or newer (java on the PATH), found none; install e.g. openjdk-17-jre-headless'; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[spark]'
	$(BIN)/python -m pytest -m spark tests/training/data/test_spark.py

screenshots: $(VENV)/.dev ## make the pictures of the docs from the real UIs and pages (needs Chromium; 4 minutes)
	BULKHEAD_SCREENSHOTS=docs/images $(BIN)/python -m pytest -m long tests/e2e/test_ui.py tests/e2e/test_look_page.py

ui: $(VENV)/.runtime ## Prefect (http://127.0.0.1:4200), MLflow (http://127.0.0.1:5000) and a worker over this folder's runs
	@$(BIN)/bulkhead up

constraints: $(VENV)/.dev ## pin what is installed now
	@(echo '# Every package that an installation here resolves to, pinned. Regenerate with: make constraints'; \
	  $(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//') > constraints.txt

clean: ## remove the environment and caches, never the runs in .bulkhead
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
