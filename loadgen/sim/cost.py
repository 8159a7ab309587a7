"""What an iteration costs: one each, or seconds by an affine model.

    seconds = fixed + a * prefill tokens + b * decoded rows + c * KV tokens read

Static batches are charged for their padding, since the policy counts it as work. The parameters
come from a YAML file with the words where they come from. It knows no policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError

from loadgen.errors import ConfigError
from loadgen.sim.config import PolicyConfig
from loadgen.sim.policy import Step
from loadgen.strict import Strict
from loadgen.yaml_file import parse

NonNegative = Annotated[float, Field(ge=0)]
MOST_NAME: Final = 200
MOST_ORIGIN: Final = 2000
"""Characters."""


class CostFile(Strict):
    """The YAML file: microseconds, and where they come from."""

    name: str = Field(min_length=1, max_length=MOST_NAME)
    origin: str = Field(min_length=1, max_length=MOST_ORIGIN)
    """How the figures were found: the machine, the model, the command."""
    fixed_us: NonNegative
    """Of each iteration, whatever is in it."""
    prefill_token_us: NonNegative
    decode_row_us: NonNegative
    kv_token_us: NonNegative
    overhead_ms: NonNegative = 0.0
    """What a client waits for beside iterations, from its start to the server's queue and back."""
    server: PolicyConfig | None = None
    """The policy that the costs were found for; `simulate` takes its own instead."""

    @property
    def cost(self) -> StepCost:
        """In seconds."""
        return StepCost(
            fixed_s=self.fixed_us / 1e6,
            prefill_token_s=self.prefill_token_us / 1e6,
            decode_row_s=self.decode_row_us / 1e6,
            kv_token_s=self.kv_token_us / 1e6,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Seconds; of iterations instead, 1 each."""

    fixed_s: float
    prefill_token_s: float = 0.0
    decode_row_s: float = 0.0
    kv_token_s: float = 0.0

    def seconds(self, step: Step) -> float:
        """All iterations of `step`."""
        return self.seconds_of(step, step.iterations)

    def seconds_of(self, step: Step, iterations: int) -> float:
        """The first so many iterations of `step`: an arithmetic series."""
        first_s, growth_s = self.series(step)
        return iterations * first_s + growth_s * (iterations * (iterations - 1) // 2)

    def series(self, step: Step) -> tuple[float, float]:
        """(seconds of the first iteration, by how much each is longer than the one before)"""
        first_s = (
            self.fixed_s
            + self.prefill_token_s * step.prefill_tokens
            + self.decode_row_s * step.decode_rows
            + self.kv_token_s * step.kv_tokens
        )
        return first_s, self.kv_token_s * step.kv_growth

    def iterations_before(self, limit_s: float, rows: int, kv_tokens: int) -> int:
        """How many iterations of decoding begin before `limit_s` from now; 1 at least."""
        if limit_s == math.inf:
            return NO_LIMIT
        step = Step(decode_rows=rows, kv_tokens=kv_tokens, kv_growth=rows)
        first_s, growth_s = self.series(step)
        if first_s <= 0:
            return 1
        # n first + growth n (n - 1) / 2 = limit; the square root is rounded, so look around it.
        half = growth_s / 2
        linear = first_s - half
        root = 2 * limit_s / (linear + math.sqrt(linear * linear + 4 * half * limit_s))
        n = max(1, math.floor(root))
        while n > 1 and self.seconds_of(step, n - 1) >= limit_s:
            n -= 1
        while self.seconds_of(step, n) < limit_s:
            n += 1
        return n


NO_LIMIT: Final = 1 << 62
ITERATIONS: Final = StepCost(fixed_s=1.0)


def read_cost(path: Path) -> tuple[StepCost, CostFile]:
    """The costs in a YAML file; raises ConfigError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"--cost: {path}: {error.strerror}") from None
    try:
        told = CostFile.model_validate(parse(data, f"--cost: {path}"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(f"--cost: {path}: {where}: {first['msg'].lower()}") from None
    cost = told.cost
    if cost.fixed_s + cost.decode_row_s + cost.prefill_token_s <= 0:
        raise ConfigError(
            f"--cost: {path}: fixed_us, prefill_token_us and decode_row_us are all 0: a first "
            "iteration would take no time; give one of them"
        )
    return cost, told
