"""The record: what one request was asked to do, when each thing happened, and how it ended.

Every figure in a table, plot, verdict or gate is computed from these alone, so a field that is not
here cannot be reported. Times are seconds on the monotonic clock, counted from the run's start.
It does not know how a record comes about (client, simulator) nor what is made of it (stats).
The formulas are those of `docs/metrics.md`; the words are those of `vllm bench serve`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

SCHEMA_VERSION: Final = 1
"""Version of the run directory's files; older ones stay readable."""

ERROR_CHARS: Final = 500
"""Error texts are cut here: they come from servers and are of any length."""


class Outcome(StrEnum):
    """How a request ended: a closed set, so that it can be a metric's label."""

    OK = "ok"
    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT_CONNECT = "timeout_connect"
    TIMEOUT_FIRST_TOKEN = "timeout_first_token"
    TIMEOUT_TOTAL = "timeout_total"
    HTTP_4XX = "http_4xx"
    HTTP_429 = "http_429"
    HTTP_5XX = "http_5xx"
    STREAM_ERROR = "stream_error"
    TRUNCATED = "truncated"
    MALFORMED = "malformed"
    EMPTY = "empty"
    SHORT = "short"
    CANCELLED = "cancelled"
    DROPPED = "dropped"


class Phase(StrEnum):
    """Warm-up requests are recorded, and left out of every figure."""

    WARMUP = "warmup"
    MEASURED = "measured"


class TokenSource(StrEnum):
    """Where the count of output tokens comes from, best first."""

    CONTINUOUS_USAGE = "continuous_usage"
    USAGE = "usage"
    TOKENIZER = "tokenizer"
    CHUNKS = "chunks"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request, ended. `None` means that the event never happened, or is not known."""

    seq: int
    """Row of the trace, from 0."""
    target: str
    phase: Phase = Phase.MEASURED
    session: str | None = None
    parent: int | None = None
    """`seq` of the turn before this one in its session."""
    gang: int | None = None
    block: int = 0
    """Which stretch of an alternating comparison (ABBA)."""
    repeat: int = 0
    worker: int = 0

    due_s: float
    """When the trace wants it sent."""
    start_s: float
    """When the client took it up, before it had a connection."""
    connected_s: float | None = None
    """When a new connection stood (TLS included); None on a reused one."""
    sent_s: float | None = None
    """When the last byte of the request was handed to the socket."""
    first_byte_s: float | None = None
    first_token_s: float | None = None
    """The first chunk that carries text, reasoning or a tool call; a role alone is none."""
    chunk_s: tuple[float, ...] = ()
    """When each chunk that carries content came."""
    chunk_tokens: tuple[int, ...] | None = None
    """Tokens in each of those chunks, where the server says it."""
    last_token_s: float | None = None
    end_s: float
    """When the finish was known: [DONE], the end of the body, or the failure."""

    prompt_tokens_asked: int
    prompt_tokens_served: int | None = None
    output_tokens_asked: int
    output_tokens_wanted: int | None = None
    """The trace's own length, where padding made the request ask for more."""
    output_tokens_served: int | None = None
    token_source: TokenSource | None = None
    outcome: Outcome
    http_status: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    text: str | None = None
    """The generated text, kept on request only."""

    @property
    def is_ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def schedule_lag_s(self) -> float:
        """start - due: the client's own lateness."""
        return self.start_s - self.due_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token: first_token - start, the connect included."""
        return None if self.first_token_s is None else self.first_token_s - self.start_s

    @property
    def ttft_from_due_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.due_s

    @property
    def e2e_s(self) -> float:
        """end - start."""
        return self.end_s - self.start_s

    @property
    def e2e_from_due_s(self) -> float:
        return self.end_s - self.due_s

    @property
    def tpot_s(self) -> float | None:
        """(last_token - first_token) / (output tokens - 1); undefined up to one token."""
        tokens = self.output_tokens_served
        if tokens is None or tokens <= 1 or self.first_token_s is None or self.last_token_s is None:
            return None
        return (self.last_token_s - self.first_token_s) / (tokens - 1)

    @property
    def useful_tokens(self) -> int:
        """Output tokens that the trace wanted: what padding adds beyond them is of no use."""
        wanted = self.output_tokens_wanted
        limit = self.output_tokens_asked if wanted is None else wanted
        return min(self.output_tokens_served or 0, limit)

    def icl_s(self) -> list[float]:
        """Gaps between *chunks*."""
        return [b - a for a, b in zip(self.chunk_s, self.chunk_s[1:], strict=False)]

    def itl_s(self) -> list[float]:
        """Gaps between *tokens*: each later chunk's gap spread over its tokens.

        A chunk of k tokens that came g after the one before counts as k gaps of g / k. Where the
        server does not say how many tokens a chunk carries, each counts as one (then ITL = ICL).
        """
        if self.chunk_tokens is None:
            return self.icl_s()
        gaps: list[float] = []
        for gap, tokens in zip(self.icl_s(), self.chunk_tokens[1:], strict=True):
            if tokens > 0:
                gaps.extend([gap / tokens] * tokens)
        return gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHealth:
    """How one worker fared in one target's turn: the instrument's own state, for the verdict."""

    worker: int
    target: str
    block: int = 0
    repeat: int = 0
    cpu_s: float
    """Processor time that it took."""
    wall_s: float
    loop_lag_p99_s: float
    """How late its event loop came to what was due."""
    loop_lag_max_s: float
    chunks: int
    """Events with content that it read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetInfo:
    """What a run knew of one target before it began."""

    name: str
    base_url: str
    endpoint: str
    model: str
    features: tuple[str, ...]
    """Optional request fields that were agreed on; the same for every target of a comparison."""
    server: str | None = None
    """The `Server` header of its answers."""
    max_model_len: int | None = None
    fixed_prompt_tokens: int | None = None
    """Tokens that it counts in every prompt beside the text: special ones, a chat template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """What was run, with what, on which machine: written once, before the first request."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    kind: str
    """`run` (one target) or `compare` (several)."""
    label: str | None
    metadata: dict[str, str]
    started_at: str
    """Wall-clock time of the run's start, ISO 8601 in UTC: the only one there is."""
    command: tuple[str, ...]
    """The command line, secrets struck out."""
    config: dict[str, Any]
    """The effective configuration, secrets struck out."""
    seed: int
    trace_name: str
    trace_sha256: str
    requests: int
    targets: tuple[TargetInfo, ...]
    transport: str
    workers: int = 1
    versions: dict[str, str]
    machine: dict[str, Any]
    self_check: dict[str, Any] | None = None
    prompts: dict[str, Any] | None = None
    """What prompts were measured with."""
