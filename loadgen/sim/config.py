"""What may be said of a simulation: strict, frozen models; the command line's flags come from them.

Names and defaults are those of the servers that are simulated and of `loadgen run`.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, model_validator

from loadgen.config import GeneratorConfig, ResultConfig
from loadgen.sim.continuous import ContinuousBatching, ContinuousOptions, Schedule
from loadgen.sim.order import Order
from loadgen.sim.policy import Policy
from loadgen.sim.static import Release, StaticBatching, StaticOptions, StaticPrefill
from loadgen.strict import Strict, conflict


class PolicyName(StrEnum):
    """The policies; each is a target of the run directory."""

    STATIC = "static"
    CONTINUOUS = "continuous"


class Router(StrEnum):
    """How replicas share requests."""

    ROUND_ROBIN = "round_robin"
    LEAST_LOADED = "least_loaded"
    PREFIX = "prefix"


def _words(value: Any) -> Any:
    if isinstance(value, str):
        return [part for part in value.replace(" ", ",").split(",") if part]
    return value


class PolicyConfig(Strict):
    """The simulated servers."""

    policy: Annotated[tuple[PolicyName, ...], BeforeValidator(_words), Field(min_length=1)] = Field(
        (PolicyName.STATIC, PolicyName.CONTINUOUS),
        description="what to simulate, the first is the baseline",
        json_schema_extra={"metavar": "POLICY,..."},
    )
    batch_size: int = Field(
        16, ge=1, le=100_000, description="static: requests in a full batch; continuous: slots"
    )
    max_wait: float = Field(
        50.0,
        ge=0,
        le=3_600_000,
        description="static: ms after which a batch that is not full starts",
    )
    static_prefill: StaticPrefill = Field(
        StaticPrefill.FAIR,
        description="static: a batch's prompts take one iteration (fair), or one for each token of "
        "the longest (lesson)",
    )
    release: Release = Field(
        Release.FINISHED,
        description="static: tokens leave as they are made (finished), or all at their batch's end",
    )
    token_budget: int = Field(
        2048, ge=1, le=10_000_000, description="continuous: tokens of one iteration"
    )
    kv_blocks: int = Field(8192, ge=1, description="continuous: blocks of the KV cache")
    block_size: int = Field(16, ge=1, le=65536, description="continuous: tokens of a block")
    schedule: Schedule = Field(
        Schedule.DECODE_FIRST,
        description="continuous: decode-first (Sarathi-Serve, vLLM v1: decodes, then chunks of "
        "prompts), whole-prompt (Orca: the same without chunks) or prefill-first (vLLM v0)",
    )
    order: Order = Field(
        Order.FCFS,
        description="continuous: first come first served, shortest prompt first, shortest output "
        "first (an oracle), or SLAI (arXiv 2508.01002)",
    )
    tbt: float = Field(
        100.0, gt=0, description="order slai: ms that a request may wait between two tokens"
    )
    tbt_margin: float = Field(
        2.0, ge=0, description="order slai: mean iterations before then at which a decode is urgent"
    )
    prefill_emits_token: bool = Field(
        True,
        description="the iteration that completes a prompt gives its first token, as on real "
        "servers; the lesson's do not",
    )
    prefix_cache: bool = Field(
        False,
        description="continuous: prompt blocks that the trace's hash_ids name again need no "
        "prefill, while a replica remembers them",
    )
    max_model_len: Annotated[int, Field(ge=2)] | None = Field(
        None, description="prompt and output tokens together; longer requests are an error"
    )
    cost: str = Field(
        "iterations",
        min_length=1,
        description="what an iteration takes: `iterations` (1 each), a YAML file, or one for each "
        "policy: static=A.yaml,continuous=B.yaml",
        json_schema_extra={"metavar": "COST"},
    )

    @model_validator(mode="after")
    def _agree(self) -> PolicyConfig:
        if self.token_budget < self.batch_size:
            raise conflict("token_budget", "must give each slot a token: not below", ["batch_size"])
        if len(set(self.policy)) < len(self.policy):
            raise conflict("policy", "names one twice")
        return self

    def build(self, name: PolicyName) -> Policy:
        """A fresh policy."""
        if name is PolicyName.STATIC:
            return StaticBatching(
                StaticOptions(
                    batch_size=self.batch_size,
                    max_wait_s=self.max_wait / 1000,
                    prefill=self.static_prefill,
                    release=self.release,
                    prefill_emits_token=self.prefill_emits_token,
                    max_model_len=self.max_model_len,
                )
            )
        return ContinuousBatching(
            ContinuousOptions(
                token_budget=self.token_budget,
                max_sequences=self.batch_size,
                kv_blocks=self.kv_blocks,
                block_tokens=self.block_size,
                schedule=self.schedule,
                order=self.order,
                prefill_emits_token=self.prefill_emits_token,
                max_model_len=self.max_model_len,
                tbt_s=self.tbt / 1000,
                tbt_margin=self.tbt_margin,
            )
        )


class ArrivalConfig(Strict):
    """When requests come: by default at the trace's times."""

    at_once: bool = Field(False, description="all requests wait from the start")
    closed_loop: bool = Field(
        False, description="keep --max-concurrency in flight; the trace's times are left out"
    )
    max_concurrency: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="requests in flight, in a closed loop"
    )
    gang: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="send so many at once, the next when all of them have ended"
    )

    @model_validator(mode="after")
    def _agree(self) -> ArrivalConfig:
        if self.closed_loop != (self.max_concurrency is not None):
            raise conflict("closed_loop", "goes together with", ["max_concurrency"])
        if (self.gang is not None) + self.closed_loop + self.at_once > 1:
            raise conflict("gang", "is one of", ["closed_loop", "at_once"])
        return self


class FleetConfig(Strict):
    """Several replicas of each policy behind one router."""

    replicas: int = Field(1, ge=1, le=10_000, description="servers of each policy")
    router: Router = Field(
        Router.ROUND_ROBIN,
        description="round_robin, least_loaded (fewest requests in flight), or prefix (the same "
        "first prompt block, or else the same session, goes to the same replica)",
    )
    find_replicas: bool = Field(
        False, description="find the fewest replicas for which --good-share meets --goodput"
    )
    good_share: float = Field(
        0.99, gt=0, le=1, description="share of requests that must be good, for --find-replicas"
    )


class SimResultConfig(ResultConfig):
    """Where results go and what is said of them."""

    records: bool = Field(
        True,
        description="keep a record of every request, and a run directory; without, statistics "
        "alone, in memory that does not grow",
    )


class SimulateConfig(Strict):
    """One simulation: a trace, or the laws to draw one from, on one policy or on several."""

    trace: Path | None = None
    generate: GeneratorConfig = GeneratorConfig()
    policies: PolicyConfig = PolicyConfig()
    load: ArrivalConfig = ArrivalConfig()
    fleet: FleetConfig = FleetConfig()
    output: SimResultConfig = SimResultConfig()

    @model_validator(mode="after")
    def _agree(self) -> SimulateConfig:
        if self.fleet.find_replicas and not self.output.goodput:
            raise conflict("find_replicas", "needs limits to meet: give", ["goodput"])
        return self


SECTIONS: Final[dict[str, type[Strict]]] = {
    "generate": GeneratorConfig,
    "policies": PolicyConfig,
    "load": ArrivalConfig,
    "fleet": FleetConfig,
    "output": SimResultConfig,
}
"""Of a simulation's configuration file."""
