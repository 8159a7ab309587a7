"""`python -m servers.toy`: a simulated server in real time, until SIGTERM or SIGINT.

The flags of the policy are those of `loadgen simulate`; a cost file from `loadgen calibrate` brings
them, and flags go before it. Exit code 2 with one line where something cannot be used.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import uvloop
from pydantic import Field

from loadgen.errors import ConfigError, LoadgenError
from loadgen.flags import Parser, add_flags, flag_of, take, validate
from loadgen.sim.config import PolicyConfig, PolicyName
from loadgen.sim.cost import CostFile, StepCost, read_cost
from loadgen.sim.policy import NeverFitsError
from loadgen.sim.policy import Sequence as SimSequence
from loadgen.strict import Strict
from servers.lifetime import die_with_parent, stated_parent
from servers.toy.engine import Engine
from servers.toy.metrics import LABEL, Metrics
from servers.toy.server import Service, serve

_MAX_MODEL_LEN = 8192
_Microseconds = Annotated[float, Field(ge=0, le=1e9)]


class ServerConfig(Strict):
    """Where it serves."""

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(8003, ge=0, le=65535, description="port; 0 takes a free one, as is printed")
    served_model_name: str = Field("toy", min_length=1, description="name of the model")
    max_queue: int = Field(1024, ge=1, description="requests that may wait; more get a 429")
    max_body_bytes: int = Field(4 << 20, ge=1024, description="of one request; more get a 413")


class StepConfig(Strict):
    """What an iteration takes, where no --cost does; the defaults are made up."""

    fixed_us: _Microseconds = Field(10_000.0, description="of each iteration")
    prefill_token_us: _Microseconds = Field(50.0, description="of each prompt token computed")
    decode_row_us: _Microseconds = Field(200.0, description="of each row decoded")
    kv_token_us: _Microseconds = Field(0.0, description="of each token of context that is read")


def read_settings(words: Sequence[str]) -> tuple[ServerConfig, PolicyConfig, StepCost, str]:
    """(where, policy, costs, the costs' name) of a command line; raises LoadgenError."""
    parser = Parser(
        prog="python -m servers.toy",
        description=f"{LABEL}. It serves OpenAI's API at the times at which a simulated server "
        "would answer.",
        epilog="example: python -m servers.toy --policy continuous --fixed-us 20000",
    )
    add_flags(parser, "server", ServerConfig)
    parser.add_argument(
        "--policy",
        choices=tuple(PolicyName),
        help="how requests are batched (default: continuous, or what --cost says)",
    )
    parser.add_argument(
        "--cost", type=Path, metavar="FILE", help="costs, and what policy they were found for"
    )
    add_flags(parser, "policy", PolicyConfig, without={"policy", "cost", "prefix_cache"})
    add_flags(parser, "costs, where no --cost is given", StepConfig)
    given = parser.parse_args(words)
    told = _costs(given)
    policy: dict[str, Any] = {"policy": "continuous", "max_model_len": _MAX_MODEL_LEN}
    if told.server is not None:
        policy |= told.server.model_dump(exclude_unset=True)
    said = take(PolicyConfig, given).items()
    policy |= {key: value for key, value in said if key != "cost" and value is not None}
    config = validate(PolicyConfig, policy)
    if len(config.policy) != 1:
        raise ConfigError(f"--cost: {given.cost}: server.policy: one server has one; give --policy")
    return validate(ServerConfig, take(ServerConfig, given)), config, told.cost, told.name


def _costs(given: argparse.Namespace) -> CostFile:
    said = take(StepConfig, given)
    if given.cost is None:
        costs = validate(StepConfig, said)
        return CostFile(name="given by flags", origin="flags", **costs.model_dump())
    if said:
        raise ConfigError(f"--cost: gives all costs; leave out {flag_of(next(iter(said)))}")
    return read_cost(given.cost)[1]


def build(server: ServerConfig, config: PolicyConfig, cost: StepCost, cost_name: str) -> Service:
    """The parts, wired; raises ConfigError where the longest request could not be served."""
    longest = config.max_model_len
    assert longest is not None
    (name,) = config.policy
    try:
        config.build(name).submit(SimSequence(0, longest - 1, 1))
    except NeverFitsError as error:
        raise ConfigError(f"--max-model-len: a request of {longest} tokens: {error}") from None
    facts = {"model_name": server.served_model_name, "policy": str(name), "costs": cost_name}
    metrics = Metrics(facts | {"order": str(config.order), "release": str(config.release)})
    return Service(
        engine=Engine(config.build(name), cost, metrics, server.max_queue),
        metrics=metrics,
        model=server.served_model_name,
        max_model_len=longest,
        max_body_bytes=server.max_body_bytes,
    )


async def _serve(service: Service, config: ServerConfig) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(service, config.host, config.port, stop)


def main(words: Sequence[str]) -> int:
    """Serve until stopped; returns the exit code."""
    die_with_parent(stated_parent())
    try:
        server, policy, cost, cost_name = read_settings(words)
        service = build(server, policy, cost, cost_name)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(service, server))
    except LoadgenError as error:
        print(f"toy: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"toy: {server.host}:{server.port}: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
