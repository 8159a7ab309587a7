# make demo    compare a static-batch server with vLLM on this machine's CPU
# make lesson2 the batching lesson measured on both: requests/s, improvement, engine and scheduling
# make test    everything that CI runs; make test-fast: the pure part; make check: lint and types
# make setup   the environments and the embedded model alone
# make bench-client   the client's cost and exactness, a quarter of an hour
# make bench-static   the static server against a bare script, ten minutes
# make bench-stats    how far comparisons, gains and capacities can be trusted, half an hour
# make bench-peer     loadgen beside `vllm bench serve` on one server and trace, ten minutes
# make bench-predict  the simulator against the toy and both real servers, a quarter of an hour
# make bench-sim      the simulator's speed, a minute
# make bench-page     whether the service's page keeps up, and what watching costs, five minutes
# make dashboards     write Grafana's JSON anew from dashboards/*.py
# make clean   remove what was made here, and the model's cache
#
# The demo's workload: make demo N=200 RATE=inf CV=1.5 SEED=42 BATCH_SIZE=16
# The lesson's: make lesson2 SCALE=0.1 REPEATS=4 BATCH_SIZE=16

N ?= 64
RATE ?= 8
CV ?= 1.5
SEED ?= 42
BATCH_SIZE ?= 16
SCALE ?= 0.1
REPEATS ?= 4

CACHE = $${LOADGEN_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/loadgen}

.PHONY: help setup demo lesson2 test test-fast check bench-client bench-static bench-stats \
	bench-peer bench-predict bench-sim bench-page dashboards clean

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

setup:
	@scripts/setup

demo:
	@scripts/demo --num-prompts "$(N)" --request-rate "$(RATE)" --arrival-cv "$(CV)" \
		--seed "$(SEED)" --batch-size "$(BATCH_SIZE)"

lesson2:
	@scripts/lesson2 --scale "$(SCALE)" --repeats "$(REPEATS)" --batch-size "$(BATCH_SIZE)"

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

bench-stats:
	@scripts/setup tools
	@.venv/bin/python -m bench.stats

bench-peer:
	@scripts/setup
	@.venv/bin/python -m bench.peer

bench-predict:
	@scripts/setup
	@.venv/bin/python -m bench.predict

bench-sim:
	@scripts/setup tools
	@.venv/bin/python -m bench.sim

bench-page:
	@scripts/setup tools
	@.venv/bin/python -m bench.page

dashboards:
	@scripts/setup tools
	@.venv/bin/python -m dashboards.build

clean:
	rm -rf .venv .venv-servers runs build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf loadgen.egg-info "$(CACHE)"
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
