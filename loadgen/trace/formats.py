"""The public trace formats: names of columns, unit of time, size of a block. One table.

A file's unit is never in the file: the format's name fixes it. Sources:
https://github.com/Azure/AzurePublicDataset (azure), https://github.com/HPMLL/BurstGPT (burstgpt),
https://github.com/kvcache-ai/Mooncake (mooncake),
https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon (bailian),
https://github.com/microsoft/vidur (vidur), https://github.com/vllm-project/vllm (vllm),
https://github.com/ai-dynamo/aiperf (aiperf). It reads nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """How a file is laid out."""

    CSV = "csv"
    JSONL = "jsonl"
    SHAREGPT = "sharegpt"
    PARQUET = "parquet"


class TimeUnit(StrEnum):
    """What a time in the file is."""

    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"
    ISO = "iso"
    """A date and a time of day, with or without a zone; without one it is UTC."""


MS_IN: Final = {TimeUnit.S: 1000.0, TimeUnit.MS: 1.0, TimeUnit.US: 1e-3, TimeUnit.NS: 1e-6}


@dataclass(frozen=True, slots=True)
class Format:
    """What a format's files look like."""

    kind: Kind
    time: str
    input: str
    output: str
    unit: TimeUnit
    other_outputs: tuple[str, ...] = ()
    """Other names under which the output length stands."""
    texts: tuple[str, ...] = ()
    """Names under which a prompt's text stands."""
    may_be_untimed: bool = False
    block_tokens: int = 512
    """Tokens of one block of `hash_ids`."""


REFUSED_KEYS: Final = {
    "loadgen": ("session_id", "delay", "sampling"),
    "aiperf": ("session_id", "turns", "delay", "payload", "image", "images", "audio", "audios"),
}
"""Keys that an import cannot keep."""

FORMATS: Final = {
    "azure": Format(Kind.CSV, "TIMESTAMP", "ContextTokens", "GeneratedTokens", TimeUnit.ISO),
    "burstgpt": Format(Kind.CSV, "Timestamp", "Request tokens", "Response tokens", TimeUnit.S),
    "vidur": Format(Kind.CSV, "arrived_at", "num_prefill_tokens", "num_decode_tokens", TimeUnit.S),
    "csv": Format(Kind.CSV, "timestamp_ms", "input_tokens", "output_tokens", TimeUnit.MS),
    "parquet": Format(Kind.PARQUET, "timestamp_ms", "input_tokens", "output_tokens", TimeUnit.MS),
    "mooncake": Format(Kind.JSONL, "timestamp", "input_length", "output_length", TimeUnit.MS),
    "bailian": Format(
        Kind.JSONL, "timestamp", "input_length", "output_length", TimeUnit.S, block_tokens=16
    ),
    "loadgen": Format(
        Kind.JSONL,
        "timestamp",
        "input_length",
        "output_length",
        TimeUnit.MS,
        texts=("prompt", "messages"),
    ),
    "vllm": Format(
        Kind.JSONL,
        "timestamp",
        "input_length",
        "output_length",
        TimeUnit.S,
        other_outputs=("output_tokens",),
        texts=("prompt",),
        may_be_untimed=True,
        block_tokens=16,
    ),
    "aiperf": Format(
        Kind.JSONL,
        "timestamp",
        "input_length",
        "output_length",
        TimeUnit.MS,
        texts=("text", "text_input", "messages"),
        may_be_untimed=True,
    ),
    "sharegpt": Format(Kind.SHAREGPT, "", "", "", TimeUnit.S, may_be_untimed=True),
}
