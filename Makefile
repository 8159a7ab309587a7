# make demo    compare a static-batch server with vLLM on this machine's CPU
# make test    everything that CI runs; make test-fast: the pure part; make check: lint and types
# make setup   the environments and the embedded model alone
# make bench-client   the client's cost and exactness, a quarter of an hour
# make bench-static   the static server against a bare script, ten minutes
<<<<<<< HEAD
# make bench-predict  the simulator against the toy and both real servers, a quarter of an hour
=======
# make bench-sim      the simulator's speed, a minute
>>>>>>> sim
# make dashboards     write Grafana's JSON anew from dashboards/*.py
# make clean   remove what was made here, and the model's cache
#
# The demo's workload: make demo N=200 RATE=inf CV=1.5 SEED=42 BATCH_SIZE=16

N ?= 64
RATE ?= 8
CV ?= 1.5
SEED ?= 42
BATCH_SIZE ?= 16

CACHE = $${LOADGEN_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/loadgen}

<<<<<<< HEAD
.PHONY: help setup demo test test-fast check bench-client bench-static bench-predict dashboards clean
=======
.PHONY: help setup demo test test-fast check bench-client bench-static bench-sim dashboards clean
>>>>>>> sim

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

setup:
	@scripts/setup

demo:
	@scripts/demo --num-prompts "$(N)" --request-rate "$(RATE)" --arrival-cv "$(CV)" \
		--seed "$(SEED)" --batch-size "$(BATCH_SIZE)"

test:
	@scripts/test

test-fast:
	@scripts/test --fast

check:
	@scripts/setup tools
	@scripts/check

bench-client:
	@scripts/setup tools
	@.venv/bin/python -m bench.client

bench-static:
	@scripts/setup
	@.venv-servers/bin/python -m bench.static

<<<<<<< HEAD
bench-predict:
	@scripts/setup
	@.venv/bin/python -m bench.predict
=======
bench-sim:
	@scripts/setup tools
	@.venv/bin/python -m bench.sim
>>>>>>> sim

dashboards:
	@scripts/setup tools
	@.venv/bin/python -m dashboards.build

clean:
	rm -rf .venv .venv-servers runs build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf loadgen.egg-info "$(CACHE)"
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
