"""The costs of an iteration, fitted to measured runs of one server.

Costs are fitted to the iterations that `observe.py` reads, robustly, since a busy machine stalls
now and then; then all are raised alike, so that the fitted iterations take in all what the measured
ones took: stalls are part of what a server delivers. What a client waits for beside iterations is
what brings simulated TTFT nearest to the measured one, of the half of requests that wait least: of
long queues an error of the costs is the larger part. It starts nothing, and prints nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import yaml

from loadgen.archive import Run
from loadgen.errors import ConfigError
from loadgen.journal import write_whole
from loadgen.record import RequestRecord
from loadgen.sim.config import PolicyConfig, PolicyName
from loadgen.sim.cost import CostFile
from loadgen.sim.nnls import Floats, robust_nnls
from loadgen.sim.observe import Observed, observe
from loadgen.sim.predict import Asked, simulate_asked

_FEWEST: Final = 8
"""Iterations, of which four costs could be told at all."""
_OVERHEADS_MS: Final = np.geomspace(0.1, 1000, 41)
"""A quarter apart. With none at all the next request of a closed loop would catch the iteration
that begins when its predecessor ends, as no real one does."""
_NEAR: Final = np.linspace(0.8, 1.25, 46)
PARAMETERS: Final = ("fixed_us", "prefill_token_us", "decode_row_us", "kv_token_us")

_SAID: Final = {
    PolicyName.STATIC: ("batch_size", "max_wait", "static_prefill", "release"),
    PolicyName.CONTINUOUS: (
        *("batch_size", "token_budget", "kv_blocks", "block_size", "schedule", "order"),
    ),
}
"""What a model's file always says of its policy, beside what differs from the defaults."""


@dataclass(frozen=True, slots=True)
class Residual:
    """Iterations of one kind: measured beside fitted."""

    kind: str
    iterations: int
    measured_ms: float
    """Mean of one."""
    fitted_ms: float
    rms_ms: float
    """Root mean square of fitted - measured."""
    max_ms: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Costs, and how well they fit."""

    model: CostFile
    residuals: tuple[Residual, ...]
    stall_share: float
    """Of the measured time, what the typical costs leave out and was spread over all."""
    ttft_off_ms: tuple[float, float, float]
    """Quartiles of measured - simulated TTFT, request by request, with the overhead in."""


def calibrate(
    runs: Sequence[tuple[Run, str]], config: PolicyConfig, *, name: str, origin: str
) -> Calibration:
    """Fit the costs of (run, target) pairs, all of one server; raises LoadgenError."""
    measured = [(Asked.of(run, target), list(run.of_target(target))) for run, target in runs]
    observed = [
        one for _, records in measured for turn in _turns(records) for one in observe(turn, config)
    ]
    if len(observed) < _FEWEST:
        raise ConfigError(
            f"{runs[0][0].path}: {len(observed)} iterations can be read from it: too few; "
            "calibrate from a streamed run that kept the server busy"
        )
    work = np.array([one.work for one in observed], dtype=np.float64)
    seconds = np.array([one.seconds for one in observed])
    typical = robust_nnls(work, seconds)
    is_busy = work[:, 4] == 0
    fitted_s = float((work[is_busy] @ typical).sum())
    if fitted_s <= 0:
        raise ConfigError(
            f"{runs[0][0].path}: of its iterations all begin on an idle server; calibrate from a "
            "streamed run that kept the server busy"
        )
    raised = float(seconds[is_busy].sum()) / fitted_s
    costs = zip(PARAMETERS, (1e6 * raised * typical).round(3).tolist(), strict=False)
    model = CostFile(name=name, origin=origin, server=config, **dict(costs))
    for overheads_ms in (_OVERHEADS_MS, None):
        near_ms = model.overhead_ms * _NEAR if overheads_ms is None else overheads_ms
        tried = [model.model_copy(update={"overhead_ms": round(ms, 3)}) for ms in near_ms.tolist()]
        model = min(tried, key=lambda one: _quick_ttft_error_s(measured, one))
    seen_s, simulated_s = _ttft_s(measured, model)
    quartiles = np.percentile(1000 * (seen_s - simulated_s), (25, 50, 75))
    return Calibration(
        model,
        tuple(_residuals(observed, raised * (work @ typical))),
        1 - 1 / raised,
        (float(quartiles[0]), float(quartiles[1]), float(quartiles[2])),
    )


def write_model(path: Path, model: CostFile) -> None:
    """The YAML file; raises ConfigError where it cannot be written."""
    content = model.model_dump(mode="json", exclude_unset=True)
    if (server := model.server) is not None:
        said = server.model_dump(mode="json", exclude_none=True)
        names = [*_SAID[server.policy[0]], *sorted(server.model_fields_set - {"policy", "cost"})]
        told = {name: said[name] for name in names if name in said}
        content["server"] = {"policy": str(server.policy[0])} | told
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        raise ConfigError(f"--output: {path}: {error.strerror}") from None


def _turns(records: Sequence[RequestRecord]) -> list[list[RequestRecord]]:
    turns: dict[tuple[int, int], list[RequestRecord]] = {}
    for record in records:
        turns.setdefault((record.repeat, record.block), []).append(record)
    return list(turns.values())


def _quick_ttft_error_s(
    measured: Sequence[tuple[Asked, Sequence[RequestRecord]]], model: CostFile
) -> float:
    seen_s, simulated_s = _ttft_s(measured, model)
    is_quick = seen_s <= np.median(seen_s)
    return float(np.abs(seen_s - simulated_s)[is_quick].mean())


def _ttft_s(
    measured: Sequence[tuple[Asked, Sequence[RequestRecord]]], model: CostFile
) -> tuple[Floats, Floats]:
    """(measured, simulated) TTFT of each request that has one."""
    pairs: list[tuple[float, float]] = []
    for asked, records in measured:
        simulated = {r.seq: r.ttft_s for r in simulate_asked(asked, model, "simulated")}
        for record in records:
            ttft_s, simulated_s = record.ttft_s, simulated[record.seq]
            if record.is_ok and ttft_s is not None and simulated_s is not None:
                pairs.append((ttft_s, simulated_s))
    columns: Floats = np.array(pairs).T
    return columns[0], columns[1]


def _residuals(observed: Sequence[Observed], fitted_s: Floats) -> list[Residual]:
    """By what iterations computed: prompts, and rows in doubling numbers."""
    kinds: dict[tuple[int, str], list[int]] = {}
    for index, one in enumerate(observed):
        iterations, prefill, rows, *_ = one.work
        if one.starts_idle:
            kind = (-1, "an idle server's first")
        elif prefill and rows:
            kind = (0, "prompts beside rows" if iterations == 1 else "whole batches")
        elif prefill:
            kind = (1, "prompts")
        else:
            size = 1 << (rows - 1).bit_length()
            kind = (1 + size, f"{size // 2 + 1}-{size} rows" if size > 2 else f"{size} row(s)")
        kinds.setdefault(kind, []).append(index)
    seconds = np.array([one.seconds for one in observed])
    found = []
    for key in sorted(kinds):
        chosen = kinds[key]
        off_ms = 1000 * (fitted_s[chosen] - seconds[chosen])
        found.append(
            Residual(
                key[1],
                sum(observed[index].work[0] for index in chosen),
                1000 * float(seconds[chosen].mean()),
                1000 * float(fitted_s[chosen].mean()),
                float(np.sqrt(np.mean(off_ms**2))),
                float(np.abs(off_ms).max()),
            )
        )
    return found
