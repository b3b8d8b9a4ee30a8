# `make help` says what there is. Every target makes the environment that it needs; nothing is
# installed outside this directory. Another interpreter: make PYTHON=python3.12 test

SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
# Workers and tests share few cores: with BLAS threads of their own they are six times slower.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
export PYTHON
# Where it is set, each start of an interpreter compiles all modules again: twice the time.
export PYTHONDONTWRITEBYTECODE :=
# Test processes at once: most tests wait more than they compute. 0 for one, with pdb and all output.
WORKERS ?= 4
PYTEST_ARGS ?=
PYTEST = -m pytest -n $(WORKERS) --dist worksteal
GPU_ARGS ?=
BENCH_ARGS ?=
PROFILE_ARGS ?=
# The commit that make bench-quick compares this tree with.
BASE ?= HEAD
GOLDEN_ARGS ?=
FUZZ_ARGS ?=
MUTATE_ARGS ?=
CHAOS_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo polyglot test test-long test-uvloop test-floors fuzz mutate chaos chaos-hosts lint types unit protos protos-check size wheel gpu bench bench-quick profile docs bench-rpc bench-autograd bench-dist-autograd golden lock clean demo-env env

help: ## says what there is
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name what; do \
		printf '  make %-12s %s\n' "$$name" "$$what"; done

demo: demo-env ## installs what it needs here, then trains on digits with three processes
	@$(BIN)/telegrad run --nproc-per-node 3 examples/parameter_server.py

polyglot: demo-env ## a Node program joins a job and calls its functions (needs node and npm)
	@$(BIN)/python scripts/polyglot.py

test: env ## everything that decides: lint, types, protos, and the tests beside them
	@$(MAKE) --no-print-directory -j 2 lint types protos-check unit

test-long: env ## the tests that take minutes, and those of test-uvloop
	$(ONE_THREAD) $(BIN)/python $(PYTEST) -m long -o faulthandler_timeout=0 $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory test-uvloop

test-uvloop: env ## the tests of calls and transports on uvloop's event loop
	@$(BIN)/python -m pip --quiet install --constraint constraints.txt --upgrade --target $(VENV)/uvloop uvloop
	PYTHONPATH=$(VENV)/uvloop $(ONE_THREAD) $(BIN)/python $(PYTEST) -m "not long" tests/rpc tests/transport tests/doctor tests/guides $(PYTEST_ARGS)

test-floors: ## the fast tests against the lowest versions that pyproject.toml allows
	@sh scripts/environment.sh $(VENV) dev,examples,rl
	@sh scripts/floors.sh $(VENV) $(VENV)-floors
	$(ONE_THREAD) $(VENV)-floors/bin/python $(PYTEST) -m "not long" $(PYTEST_ARGS)

fuzz: env ## mutated inputs for all that reads others' bytes: FUZZ_ARGS='--inputs 2000000'
	$(ONE_THREAD) $(BIN)/python scripts/fuzz.py $(FUZZ_ARGS)

mutate: env ## the share of 200 small changes that the tests notice: MUTATE_ARGS='--row session'
	$(BIN)/python scripts/mutate.py $(MUTATE_ARGS)

chaos: env ## jobs of real processes that are killed, stopped and cut, by seed: CHAOS_ARGS='--runs 200 --seed 1'
	$(ONE_THREAD) $(BIN)/python scripts/chaos.py $(CHAOS_ARGS)

chaos-hosts: env ## the same between hosts, which are network namespaces, while links are cut: CHAOS_ARGS as above
	$(ONE_THREAD) $(BIN)/python scripts/chaos_hosts.py $(CHAOS_ARGS)

lint: env ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: env ## mypy, strict
	$(BIN)/mypy

unit: env
	$(ONE_THREAD) $(BIN)/python $(PYTEST) -m "not long" $(PYTEST_ARGS)

protos: env ## generates telegrad/pb from protos/
	$(BIN)/python scripts/make_protos.py

protos-check: env
	$(BIN)/python scripts/make_protos.py --check

docs: ## the documentation site, into site/; a broken link or an undocumented public name fails
	@sh scripts/environment.sh $(VENV)-docs docs
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict

size: env ## megabytes installed and time of import, held to their bounds
	@$(BIN)/python scripts/size.py

wheel: env ## builds the wheel, installs it in a fresh environment and runs a job from it
	@$(BIN)/python scripts/wheel.py

# Installs nothing: it may be a machine without a network.
gpu: ## the tests that take arrays of CuPy and the kernels' times, on this machine's GPU
	@python=$(BIN)/python; [ -x "$$python" ] || python="$${PYTHON:-python3}"; \
		"$$python" scripts/gpu.py --venv $(VENV) $(GPU_ARGS)

# The tests' environment: the two hosts of a benchmark are made as those of the tests are.
bench: env ## all benchmarks beside their peers, in under 25 minutes; writes tables and plots
	@sh scripts/peers.sh $(VENV) torch openmpi xoscar ray dask monarch plots
	$(BIN)/python benchmarks/bench.py --json docs/bench.json --write $(BENCH_ARGS)

bench-quick: demo-env ## this tree beside a commit, no peers, in six minutes: BASE=a61bff9
	@$(BIN)/python benchmarks/quick.py --base $(BASE) $(BENCH_ARGS)

profile: env ## where the microseconds of a call go: PROFILE_ARGS='--transport grpc'
	$(BIN)/python benchmarks/call_profile.py $(PROFILE_ARGS)

bench-rpc: demo-env ## calls of all sizes beside the peers'; makes an environment for each, takes minutes
	@sh scripts/peers.sh $(VENV) telegrad-uvloop torch ray xoscar dask monarch
	$(BIN)/python benchmarks/rpc.py --json bench-rpc.json $(BENCH_ARGS)

bench-autograd: demo-env ## gradients beside torch's, HIPS autograd's and NumPy by hand; makes an environment for each
	@sh scripts/peers.sh $(VENV) torch autograd
	$(BIN)/python benchmarks/autograd.py --json bench-autograd.json $(BENCH_ARGS)

bench-dist-autograd: demo-env ## gradients across workers beside torch's; makes an environment for it
	@sh scripts/peers.sh $(VENV) torch
	$(BIN)/python benchmarks/dist_autograd.py --json bench-dist-autograd.json $(BENCH_ARGS)

golden: demo-env ## writes tests/golden: what torch finds for programs, modules and optimizers
	@sh scripts/peers.sh $(VENV) torch
	$(ONE_THREAD) $(VENV)-bench-torch/bin/python scripts/make_golden.py $(GOLDEN_ARGS)

lock: env ## renews constraints.txt
	sh scripts/lock.sh $(BIN)/uv

clean: ## removes what the other targets made
	rm -rf examples/polyglot/node_modules
	rm -rf $(VENV) $(VENV)-floors $(VENV)-docs $(VENV)-bench-* .mypy_cache .ruff_cache .pytest_cache dist site .hypothesis fuzz-findings
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

env:
	@sh scripts/environment.sh $(VENV) dev,examples,rl

demo-env:
	@sh scripts/environment.sh $(VENV) examples
