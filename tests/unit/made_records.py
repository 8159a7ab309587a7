"""Records, headers and runs made by hand, and the captured streams."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from loadgen.journal import Journal, begin_run
from loadgen.record import Outcome, RequestRecord, RunHeader, TargetInfo, TokenSource

CAPTURES: Final = Path(__file__).resolve().parent.parent / "data" / "sse"
STREAMS: Final = tuple(
    sorted(path.name for path in CAPTURES.glob("sse_*.txt") if path.name != "sse_headers.txt")
)
"""Whole streams as real servers sent them; `sse_headers.txt` is the beginning of an exchange."""


def capture(name: str) -> bytes:
    """A captured body, without the response's head where the file holds one."""
    raw = (CAPTURES / name).read_bytes()
    return raw.partition(b"\r\n\r\n")[2] if raw.startswith(b"HTTP/") else raw


def made_record(
    seq: int = 0,
    *,
    due: float = 0.0,
    start: float | None = None,
    chunks: tuple[float, ...] = (),
    end: float | None = None,
    served: int | None = None,
    asked: int = 4,
    prompt: int = 10,
    outcome: Outcome = Outcome.OK,
    **more: Any,
) -> RequestRecord:
    """A record whose times are told; what is not told follows from the chunks."""
    start = due if start is None else start
    fields: dict[str, Any] = {
        "target": "a",
        "first_token_s": chunks[0] if chunks else None,
        "last_token_s": chunks[-1] if chunks else None,
        "output_tokens_served": len(chunks) if served is None and chunks else served,
        "token_source": TokenSource.USAGE if chunks else None,
        "prompt_tokens_served": prompt if chunks else None,
    }
    fields |= more
    return RequestRecord(
        seq=seq,
        due_s=due,
        start_s=start,
        chunk_s=chunks,
        end_s=(chunks[-1] if chunks else start) if end is None else end,
        prompt_tokens_asked=prompt,
        output_tokens_asked=asked,
        outcome=outcome,
        **fields,
    )


def made_header(
    *names: str, requests: int = 1, percentiles: tuple[float, ...] = (50.0, 90.0, 99.0), **more: Any
) -> RunHeader:
    """A header of a run on the targets of those names."""
    fields: dict[str, Any] = {
        "run_id": "20260101T000000Z-run-0000",
        "kind": "compare" if len(names) > 1 else "run",
        "label": None,
        "metadata": {},
        "started_at": "2026-01-01T00:00:00.000+00:00",
        "command": ("loadgen", "run"),
        "config": {
            "load": {"max_concurrency": None},
            "output": {"metric_percentiles": list(percentiles)},
        },
        "seed": 0,
        "trace_name": "trace.jsonl",
        "trace_sha256": "0" * 64,
        "requests": requests,
        "targets": tuple(
            TargetInfo(
                name=name,
                base_url="http://127.0.0.1:8000",
                endpoint="/v1/completions",
                model="m",
                features=("ignore_eos",),
            )
            for name in names or ("a",)
        ),
        "transport": "socket",
        "versions": {"loadgen": "0"},
        "machine": {"cores": 2},
    }
    return RunHeader(**(fields | more))


def made_run(path: Path, header: RunHeader, records: Iterable[RequestRecord]) -> Path:
    """A run directory on disk, as a run leaves it before its results are made."""
    path.mkdir(parents=True, exist_ok=True)
    begin_run(path, header, b'{"timestamp":0.0,"input_length":1,"output_length":1}\n')
    journal = Journal(path)
    for record in records:
        journal.append(record)
    journal.close()
    return path
