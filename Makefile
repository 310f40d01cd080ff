# Each target needs nothing else done before: `make test` on a fresh clone makes the environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
COMPILER := $(VENV)/.compiler

.DEFAULT_GOAL := help
.PHONY: help env demo test test-faults test-gpu-sim test-rdma lint soak fuzz bench clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | column -t -s '|'

env: $(STAMP) ## make .venv with GEAR (editable) and everything the other targets use

$(STAMP): setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

$(COMPILER): $(STAMP)  # compiles kernels for a GPU; half a gigabyte that only tests use
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[ptx]'
	@touch $@

demo: $(STAMP) ## server, actors and a learner on CartPole; saves demo.png
	$(BIN)/python -m examples.demo

test: lint $(COMPILER) ## lint, then every test, in two processes: most tests wait for others
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile
	@$(MAKE) --no-print-directory test-gpu-sim

test-faults: $(STAMP) ## kills, stops, full disks and a bad network for half an hour; root for the last two (SEED=...)
	$(BIN)/python -m pytest -m faults --faults-long $(if $(SEED),--faults-seed $(SEED))

test-gpu-sim: $(STAMP) ## kernels for a GPU, and a server with GPUs, in Numba's CUDA simulator; needs no GPU
	NUMBA_ENABLE_CUDASIM=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile tests/kernels tests/devices

test-rdma: $(STAMP) ## the rdma path, in a virtual machine with a software device (Debian 12, root to install its packages)
	tools/rdma_vm/test.sh $(BIN)/python

lint: $(STAMP) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

soak: $(STAMP) ## writers and readers on two shards for 60 s over each path, every trajectory checked
	$(BIN)/python -m benchmarks.soak --seconds 60 --devices cpu:2 --writers 8 --path shm
	$(BIN)/python -m benchmarks.soak --seconds 60 --devices cpu:2 --writers 8 --path tcp

fuzz: $(STAMP) ## a million malformed messages to a server (MESSAGES=...), broken segments, checkpoints, files of tables
	$(BIN)/python -m tests.fuzz --messages $(or $(MESSAGES),1000000)
	$(BIN)/python -m tests.fuzz.segments --count $(or $(SEGMENTS),2000)
	$(BIN)/python -m tests.fuzz.checkpoints --count $(or $(CHECKPOINTS),5000)
	$(BIN)/python -m tests.fuzz.tables --count $(or $(TABLES),50000)

bench: $(STAMP) ## speed against the machine's limits; against others too with PEERS=reverb,cpprb (ONLY=w1-,items- for parts)
	$(BIN)/python -m benchmarks.run --peers '$(PEERS)' --only '$(ONLY)' --json $(or $(JSON),bench.jsonl)
	$(BIN)/python -m benchmarks.report $(or $(JSON),bench.jsonl) --out $(or $(REPORT),bench.md)

clean: ## remove .venv and caches
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
