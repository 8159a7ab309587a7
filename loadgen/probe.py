"""Short runs on a live endpoint that show what its iterations cost: closed loops of doubling width.

Prompts and outputs are spread evenly on a logarithmic scale, so that iterations differ in rows,
prompt tokens and context, and answers do not end in step. They are ordinary runs, whose directories
stay. It fits nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import uvloop

from loadgen.config import LoadConfig, OutputConfig, RequestConfig, RunConfig, TargetConfig
from loadgen.progress import Progress
from loadgen.run import run
from loadgen.trace import Trace, write_trace

_ROUNDS: Final = 4
_FEWEST_PROMPT_TOKENS: Final = 16


def probe_traces(
    batch_size: int, prompt_tokens: int, output_tokens: int
) -> Iterator[tuple[int, Trace]]:
    """(width, trace) of each closed loop; the longest prompt has `prompt_tokens`."""
    width = 1
    while True:
        count = _ROUNDS * width
        lengths = np.geomspace(min(_FEWEST_PROMPT_TOKENS, prompt_tokens), prompt_tokens, count)
        outputs = np.geomspace(max(2, output_tokens / 2), 2 * output_tokens, count)
        rng = np.random.default_rng(width)
        yield (
            width,
            Trace(
                timestamp_ms=np.zeros(count),
                input_length=rng.permutation(lengths.astype(np.int64)),
                output_length=rng.permutation(outputs.astype(np.int64)),
            ),
        )
        if width == batch_size:
            return
        width = min(2 * width, batch_size)


def probe(
    base_url: str,
    request: RequestConfig,
    batch_size: int,
    prompt_tokens: int,
    output_tokens: int,
    result_dir: Path,
    command: Sequence[str],
    progress: Progress,
) -> list[Path]:
    """Do the runs; their directories. Raises LoadgenError, and KeyboardInterrupt if stopped."""
    paths = []
    with tempfile.TemporaryDirectory() as scratch:
        for width, trace in probe_traces(batch_size, prompt_tokens, output_tokens):
            file = Path(scratch, f"probe-{width}.jsonl")
            write_trace(file, trace, {"generator": {"probe": {"width": width}}})
            config = RunConfig(
                trace=file,
                targets=(TargetConfig(name="target", base_url=base_url),),
                request=request,
                load=LoadConfig(closed_loop=True, max_concurrency=width, workers=1),
                output=OutputConfig(result_dir=result_dir, label=f"probe, {width} at once"),
            )
            progress.say(f"probing: {len(trace)} requests, {width} at once")
            finished = uvloop.run(run(config, command, progress))
            if finished.was_interrupted:
                raise KeyboardInterrupt
            paths.append(finished.path)
    return paths
