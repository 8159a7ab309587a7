"""What a YAML file, a flag or the service may say: strict, frozen models, and nothing else.

Unknown keys are errors. A field's description is its help text and its line in the docs; `flags.py`
makes the command line's flags from these models, so that no option is written down twice.
Secrets never live here: a key is named by its environment variable.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, PositiveFloat, model_validator

from loadgen.strict import Strict as Strict
from loadgen.strict import conflict as _conflict
from loadgen.trace.config import ArrivalLaw as ArrivalLaw
from loadgen.trace.config import GeneratorConfig as GeneratorConfig

DEFAULT_API_KEY_ENV: Final = "OPENAI_API_KEY"


def _json_object(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error})") from None


def _pairs(value: Any) -> Any:
    """`["K=V", ...]` as a mapping."""
    return _mapping(value, re.compile("="))


def _pairs_or_colons(value: Any) -> Any:
    """`["K=V", ...]`, or `K:V` as in curl's headers and vLLM's goodput, as a mapping."""
    return _mapping(value, re.compile("[=:]"))


def _mapping(value: Any, separator: re.Pattern[str]) -> Any:
    if not isinstance(value, list | tuple):
        return value
    mapping = {}
    for item in value:
        key, *text = separator.split(str(item), maxsplit=1)
        if not text or not key.strip():
            raise ValueError("each value must be KEY=VALUE; a file goes before the flags")
        mapping[key.strip()] = text[0].strip()
    return mapping


def _header_fields(fields: dict[str, str]) -> dict[str, str]:
    for name, value in fields.items():
        if not _TOKEN.fullmatch(name):
            raise ValueError("a header's name has letters, digits and dashes")
        if not value.isascii() or not value.isprintable():
            raise ValueError(f"the value of {name} must be printable ASCII")
    return fields


_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""RFC 9110, section 5.6.2."""
Pairs = Annotated[dict[str, str], BeforeValidator(_pairs)]
Headers = Annotated[
    dict[str, str], BeforeValidator(_pairs_or_colons), AfterValidator(_header_fields)
]


def http_url(url: str) -> str:
    """The URL, if it is one with a host; raises ValueError."""
    problem = "needs a URL such as http://127.0.0.1:8000"
    if not url.isprintable() or " " in url:
        raise ValueError(problem)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{problem} ({error})") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(problem)
    return url


EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class TargetConfig(Strict):
    """One endpoint, and what its requests have that those to others have not."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] = "target"
    base_url: Annotated[str, AfterValidator(http_url)]
    model: str | None = Field(None, min_length=1, description="in place of request.model")
    api_key_env: EnvironmentName | None = Field(
        None,
        description="in place of request.api_key_env: environment variable with this target's key",
    )


class Endpoint(StrEnum):
    AUTO = "auto"
    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"


def _endpoint(value: Any) -> Any:
    """The short forms, as long paths."""
    return {"chat": Endpoint.CHAT, "completions": Endpoint.COMPLETIONS}.get(value, value)


class Transport(StrEnum):
    SOCKET = "socket"
    HTTPX = "httpx"


class RequestConfig(Strict):
    """What every request of a run has in common."""

    model: str | None = Field(
        None,
        min_length=1,
        description="model to ask for; left out, the only one of /v1/models",
        json_schema_extra={"aliases": ["--served-model-name"], "metavar": "NAME"},
    )
    endpoint: Annotated[Endpoint, BeforeValidator(_endpoint)] = Field(
        Endpoint.AUTO,
        description="path of the API, or chat or completions; auto: completions where they are "
        "served",
    )
    tokenizer: Path | None = Field(
        None,
        description="tokenizer.json, or a directory that holds one: prompts then have exactly the "
        "asked number of tokens. Left out, that of a model whose name is such a directory; without "
        "any, prompts are measured by a few probes before the run",
    )
    token_ids: bool = Field(
        False,
        description="send prompts as token ids, to /v1/completions; needs a tokenizer, and targets "
        "that take them",
    )
    temperature: float | None = Field(0.0, ge=0, le=2, description="sampling temperature")
    top_p: float | None = Field(None, gt=0, le=1, description="nucleus sampling")
    ignore_eos: bool | None = Field(
        None,
        description="hold every output to its asked length, by ignore_eos and min_tokens, or do "
        "not start; by default, where all targets can",
    )
    stream: bool = Field(True, description="stream the answers; without it there is no TTFT")
    header: Headers = Field(
        default_factory=dict, description="extra header, K=V", json_schema_extra={"metavar": "K=V"}
    )
    extra_body: Annotated[dict[str, Any] | None, BeforeValidator(_json_object)] = Field(
        None,
        description="further fields of the request body",
        json_schema_extra={"metavar": "JSON"},
    )
    api_key_env: EnvironmentName = Field(
        DEFAULT_API_KEY_ENV,
        description="environment variable that holds the API key",
        json_schema_extra={"metavar": "NAME"},
    )
    insecure: bool = Field(False, description="do not verify TLS certificates")
    transport: Transport = Field(
        Transport.SOCKET,
        description="socket: our own, exact and cheap; httpx: the library's, which takes proxies "
        "from the environment",
    )
    connect_timeout: PositiveFloat = Field(10.0, description="seconds to connect, TLS included")
    first_token_timeout: PositiveFloat = Field(300.0, description="seconds to the first token")
    total_timeout: PositiveFloat = Field(1800.0, description="seconds a request may take in all")
    keep_text: bool = Field(False, description="keep the generated text in the records")

    @model_validator(mode="after")
    def _agree(self) -> RequestConfig:
        if self.token_ids and self.endpoint is Endpoint.CHAT:
            raise _conflict("token_ids", "goes to /v1/completions only; leave out", ["endpoint"])
        for key in (self.extra_body or {}).keys() & _OURS.keys():
            raise _conflict("extra_body", f"{key} is set by loadgen itself; use {_OURS[key]}")
        return self

    def to(self, target: TargetConfig) -> RequestConfig:
        """What requests to one target have."""
        own = {"model": target.model, "api_key_env": target.api_key_env}
        return self.model_copy(update={key: value for key, value in own.items() if value})


_OURS: Final = {
    "model": "--model",
    "prompt": "a trace with prompts",
    "messages": "a trace with messages",
    "max_tokens": "--output-len or a trace",
    "max_completion_tokens": "--output-len or a trace",
    "stream": "--no-stream",
    "stream_options": "nothing: it is negotiated",
}


class Pace(StrEnum):
    """What decides when a request is due."""

    OPEN = "open"
    """The trace's own times, however late the answers are; a cap may hold requests back."""
    CLOSED = "closed"
    """A fixed number in flight: a request is due when a place is free."""
    GANG = "gang"
    """Static batching by the client: a gang is due when the one before has wholly ended."""


class LoadConfig(Strict):
    """How the trace is turned into load."""

    max_concurrency: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="cap on requests in flight; waiting under it counts as schedule lag",
        json_schema_extra={"aliases": ["--concurrency"]},
    )
    closed_loop: bool = Field(
        False,
        description="keep --max-concurrency requests in flight and leave the trace's times out",
    )
    gang: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="send gangs of this size; each waits for the longest member of the one before",
        json_schema_extra={"metavar": "SIZE"},
    )
    gang_pad: bool = Field(False, description="all of a gang ask for its longest output")
    ramp_up: float = Field(
        0.0,
        ge=0,
        description="seconds in which an open loop's rate, or a closed loop's width, grows from 0",
    )
    workers: Annotated[int, Field(ge=1, le=256)] | None = Field(
        None, description="worker processes; by default as many as the asked rate needs"
    )
    max_duration: PositiveFloat | None = Field(
        None, description="hard stop: seconds a target's turn may send"
    )
    max_output_tokens_total: Annotated[int, Field(ge=1)] | None = Field(
        None, description="hard stop: output tokens, all targets together"
    )
    max_error_share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="hard stop: share of failed requests, once 20 have ended"
    )
    num_warmups: int = Field(
        1,
        ge=0,
        le=10_000,
        description="requests sent one by one before each target's turn, left out of figures",
    )
    ready_timeout: float = Field(5.0, ge=0, description="seconds to wait for a target to answer")
    prompt_seed: int = Field(0, ge=0, lt=2**32, description="seed of the prompts' text")

    @property
    def pace(self) -> Pace:
        if self.gang is not None:
            return Pace.GANG
        return Pace.CLOSED if self.closed_loop else Pace.OPEN

    def in_gangs(self, size: int) -> LoadConfig:
        """The same in padded gangs, as `split_gain` sends it."""
        gangs = {"gang": size, "gang_pad": True, "closed_loop": False, "max_concurrency": None}
        return self.model_copy(update=gangs)

    @model_validator(mode="after")
    def _agree(self) -> LoadConfig:
        if self.closed_loop and self.max_concurrency is None:
            raise _conflict(
                "closed_loop", "needs a number to keep in flight: give", ["max_concurrency"]
            )
        if self.gang is not None:
            others = {"closed_loop", "max_concurrency", "ramp_up", "workers"}
            if said := others & self.model_fields_set:
                raise _conflict("gang", "is a pace of its own; leave out", said)
        elif self.gang_pad:
            raise _conflict("gang_pad", "needs a size: give", ["gang"])
        cap, workers = self.max_concurrency, self.workers
        if cap is not None and workers is not None and cap < workers:
            raise _conflict("max_concurrency", f"leaves some of {workers} workers nothing to do")
        return self


def _percentiles(value: Any) -> Any:
    if isinstance(value, str):
        return [part for part in value.replace(" ", ",").split(",") if part]
    return value


Goals = Annotated[
    dict[Literal["ttft", "tpot", "e2el"], Annotated[float, Field(gt=0)]],
    BeforeValidator(_pairs_or_colons),
]
"""Limits in milliseconds, under vLLM's names."""


class ResultConfig(Strict):
    """Where results go and what is said of them."""

    result_dir: Path = Field(Path("runs"), description="folder that holds the run directories")
    run_dir: Path | None = Field(
        None,
        description="the run's own directory, in place of a fresh one in --result-dir; it then "
        "also holds live.json, which says how far the run is",
        json_schema_extra={"metavar": "DIR"},
    )
    label: str | None = Field(
        None,
        max_length=200,
        description="a name for the report",
        json_schema_extra={"metavar": "TEXT"},
    )
    metadata: Pairs = Field(
        default_factory=dict,
        description="a fact to keep with the run, K=V",
        json_schema_extra={"metavar": "K=V"},
    )
    goodput: Goals = Field(
        default_factory=dict,
        description="what a request must meet to be good, in ms, as in ttft:200 tpot:50 e2el:5000",
        json_schema_extra={"metavar": "NAME:MS"},
    )
    metric_percentiles: Annotated[
        tuple[Annotated[float, Field(gt=0, lt=100)], ...], BeforeValidator(_percentiles)
    ] = Field(
        (50.0, 90.0, 99.0),
        description="percentiles in tables, such as 50,90,99",
        json_schema_extra={"metavar": "P,P,..."},
    )


class OutputConfig(ResultConfig):
    """The same of a run, whose metrics can be watched."""

    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        None,
        description="serve live metrics for Prometheus on this port; 0 takes a free one",
        json_schema_extra={"metavar": "PORT"},
    )
    metrics_host: str = Field(
        "127.0.0.1", min_length=1, description="address that the metrics are served on"
    )
    linger: bool = Field(
        False,
        description="keep the metrics up after the end until they were scraped, at most 5 minutes",
    )

    @model_validator(mode="after")
    def _agree(self) -> OutputConfig:
        if self.linger and self.metrics_port is None:
            raise _conflict("linger", "needs metrics to keep up: give", ["metrics_port"])
        return self


class CompareConfig(Strict):
    """In which order targets have their turns."""

    blocks: int = Field(
        1,
        ge=1,
        le=10_000,
        description="stretches of the trace between which targets alternate (A B, B A, ...), so "
        "that what drifts with time weighs on all alike",
    )
    together: bool = Field(
        False,
        description="all targets at once, each with workers of its own; only where they share no "
        "hardware",
    )
    cool_down: float = Field(
        0.0, ge=0, le=3600, description="seconds of rest before each turn but the first"
    )
    split_gain: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="split the second target's gain into engine and scheduling: it has one more "
        "turn, in gangs of SIZE (the first target's batch size) whose members all ask for the "
        "longest output; for requests that all wait, as with --request-rate inf or --closed-loop",
        json_schema_extra={"metavar": "SIZE"},
    )


class RoundsConfig(Strict):
    """How often a command does its run; each is a run of its own, with its own directory."""

    rounds: int = Field(
        1, ge=0, le=1_000_000, description="do it so many times; 0: until it is stopped"
    )
    rest: float = Field(0.0, ge=0, le=86_400, description="seconds between rounds")
    keep_runs: Annotated[int, Field(ge=1)] | None = Field(
        None, description="of the rounds' run directories, keep this many of the latest"
    )


@dataclass(frozen=True, slots=True)
class Leg:
    """One of those that have turns: a target, and how the trace becomes its load."""

    target: TargetConfig
    load: LoadConfig


GANGS: Final = ".gangs"
"""What the second target is called, after its name, where it is sent padded gangs."""
_MOST_NAME: Final = 63 - len(GANGS)


class RunConfig(Strict):
    """One run: a trace, or the laws to draw one from, replayed on one target or on several."""

    trace: Path | None = None
    generate: GeneratorConfig = GeneratorConfig()
    targets: tuple[TargetConfig, ...] = Field(min_length=1)
    request: RequestConfig = RequestConfig()
    load: LoadConfig = LoadConfig()
    compare: CompareConfig = CompareConfig()
    output: OutputConfig = OutputConfig()

    @model_validator(mode="after")
    def _agree(self) -> RunConfig:
        names = [target.name for target in self.targets]
        if len(set(names)) < len(names):
            raise _conflict("target", f"names must differ, got {', '.join(names)}")
        if self.compare.split_gain is not None:
            self._can_split(self.compare.split_gain, names)
        if not self.request.stream and self.output.goodput.keys() & {"ttft", "tpot"}:
            text = "ttft and tpot are of streams; limit e2el, or leave out --no-stream"
            raise _conflict("goodput", text)
        return self

    def _can_split(self, size: int, names: list[str]) -> None:
        if len(names) != 2:
            raise _conflict("split_gain", "needs two targets: static batching, and the other")
        if len(names[1]) > _MOST_NAME or names[0] == names[1] + GANGS:
            raise _conflict("split_gain", f"adds {names[1] + GANGS}: rename a target")
        said = {"gang", "ramp_up", "workers"} & self.load.model_fields_set
        if self.compare.together:
            said.add("together")
        if said:
            text = "takes turns one after another, of one worker each, its own gangs; leave out"
            raise _conflict("split_gain", text, said)
        if self.request.ignore_eos is False:
            raise _conflict("split_gain", "pads outputs held to length; leave out --no-ignore-eos")
        if self.load.max_concurrency is not None and self.load.max_concurrency < size:
            raise _conflict(
                "max_concurrency", "lets no batch fill: raise it to that of", ["split_gain"]
            )

    @property
    def legs(self) -> tuple[Leg, ...]:
        """The targets, and with `split_gain` the second once more, in padded gangs."""
        legs = tuple(Leg(target, self.load) for target in self.targets)
        size = self.compare.split_gain
        if size is None:
            return legs
        second = self.targets[1]
        gangs = second.model_copy(update={"name": second.name + GANGS})
        return (*legs, Leg(gangs, self.load.in_gangs(size)))
