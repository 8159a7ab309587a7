"""What a client may say of a run: a configuration file's content without paths, files and ports.

The models are those of `loadgen.config`; the lists here say which of their fields a client may set,
and what is left is the service's. A key comes by the name of an environment variable of the
service, or is given once and never told again. It starts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from pydantic import BaseModel

from loadgen.config import (
    GeneratorConfig,
    OutputConfig,
    RequestConfig,
    RunConfig,
    TargetConfig,
)
from loadgen.config_file import POINT_SECTIONS, SECTIONS, Sections, check_sections
from loadgen.errors import ConfigError
from loadgen.explore_config import SECTIONS as EXPLORE_SECTIONS
from loadgen.explore_config import (
    CapacityConfig,
    PointsConfig,
    SweepConfig,
    config_of,
    most_requests,
)
from loadgen.flags import validate
from loadgen.secrets import Redactor, clean_config, secrets_of_requests
from loadgen.service.refusal import Refusal
from loadgen.service.settings import KEY_PREFIX, Settings
from loadgen.sim.config import SECTIONS as SIM_SECTIONS
from loadgen.sim.config import FleetConfig, PolicyConfig, SimResultConfig, SimulateConfig

TRACE_ID: Final = re.compile(r"[0-9a-f]{64}")
"""The SHA-256 of the trace's file."""
DEFAULT_KEY: Final = "OPENAI_API_KEY"
_FLAG: Final = re.compile(r"--([a-z][a-z0-9-]*)")
_MOST_KEY_CHARS: Final = 4096
_FEWEST_KEY_CHARS: Final = 4
"""Shorter ones could not be struck out of texts without shredding them."""
_MOST_TARGETS: Final = 16
_MOST_REPLICAS: Final = 64
"""Of each policy: each arrival looks at all."""
_MOST_DEPTH: Final = 64
_FREE: Final = ("header", "extra_body", "metadata")
"""Fields whose keys a client chooses."""


Config = RunConfig | PointsConfig | SimulateConfig


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of run: the command that does it, and how many targets it takes."""

    words: tuple[str, ...]
    fewest_targets: int
    most_targets: int
    sections: Sections
    """Of its configuration; of each, a client may set `fields_of`."""
    build: Callable[[dict[str, Any]], Config]
    """The checked configuration of a content; raises ConfigError."""


def _run(content: dict[str, Any]) -> RunConfig:
    return validate(RunConfig, content)


KINDS: Final = {
    "run": Kind(("run",), 1, 1, POINT_SECTIONS, _run),
    "compare": Kind(("compare",), 2, _MOST_TARGETS, SECTIONS, _run),
    "sweep": Kind(
        *(("sweep",), 1, 1, EXPLORE_SECTIONS["sweep"]),
        lambda content: config_of("sweep", SweepConfig, content),
    ),
    "capacity": Kind(
        *(("capacity",), 1, 1, EXPLORE_SECTIONS["capacity"]),
        lambda content: config_of("capacity", CapacityConfig, content),
    ),
    "simulate": Kind(
        *(("simulate",), 0, 0, SIM_SECTIONS), lambda content: validate(SimulateConfig, content)
    ),
}

_OF_RESULTS: Final = {"label", "metadata", "goodput", "metric_percentiles"}
_WITHHELD: Final[dict[type[BaseModel], set[str]]] = {
    TargetConfig: {"api_key_env"},
    GeneratorConfig: {"lengths_from"},
    RequestConfig: {"tokenizer", "token_ids", "transport"},
    OutputConfig: OutputConfig.model_fields.keys() - _OF_RESULTS,
    SimResultConfig: SimResultConfig.model_fields.keys() - _OF_RESULTS,
    PolicyConfig: {"cost"},
    FleetConfig: {"find_replicas", "good_share"},
}


def fields_of(section: type[BaseModel]) -> set[str]:
    """What a client may set of a section: no path, no port, no folder."""
    return section.model_fields.keys() - _WITHHELD.get(section, set())


_OWN: Final = ("kind", "api_key", "keep", "repeat")


@dataclass(frozen=True, slots=True)
class Spec:
    """A run that may be started: checked, with its secrets apart from what is kept of it."""

    kind: str
    content: dict[str, Any]
    """The configuration file's content for the command, the trace still as its id."""
    config: Config
    api_key: str | None = field(default=None, repr=False)
    keep: bool = False
    repeat: bool = False

    @property
    def run(self) -> RunConfig | None:
        """What is asked of targets; None: it asks none."""
        if isinstance(self.config, PointsConfig):
            return self.config.run
        return self.config if isinstance(self.config, RunConfig) else None

    @property
    def targets(self) -> tuple[TargetConfig, ...]:
        return () if self.run is None else self.run.targets

    @property
    def key_variable(self) -> str | None:
        """The service's environment variable that holds the key, where one was named."""
        name: str | None = self.content.get("request", {}).get("api_key_env")
        return name

    @property
    def shown(self) -> dict[str, Any]:
        """`content` with everything struck out that may be a secret."""
        if self.run is None:
            return self.content
        request = self.run.request
        urls = [target.base_url for target in self.targets]
        carried = secrets_of_requests(urls, request.header, request.extra_body)
        redactor = Redactor([self.api_key, *carried])
        shown: dict[str, Any] = _struck(clean_config(self.content, redactor), redactor)
        return shown


def _struck(part: Any, redactor: Redactor, *, is_free: bool = False) -> Any:
    """A copy without known secrets, also where a client put one in a place that has none. Keys are
    ours, and stay, but below those where a client chooses them (`is_free`)."""
    if isinstance(part, dict):
        return {
            redactor.strike(key) if is_free else key: _struck(
                value, redactor, is_free=is_free or key in _FREE
            )
            for key, value in part.items()
        }
    if isinstance(part, list):
        return [_struck(item, redactor, is_free=is_free) for item in part]
    return redactor.strike(part) if isinstance(part, str) else part


def _check_plain(body: Any) -> None:
    """Raises Refusal where it nests deeper than anything that is meant, or is no JSON (from YAML):
    later steps walk it by calls, and write it down."""
    level, depth = [body], 0
    while level:
        if depth > _MOST_DEPTH:
            raise Refusal(422, f"the body: nests more than {_MOST_DEPTH} deep")
        depth += 1
        level = [
            item
            for part in level
            if isinstance(part, dict | list)
            for item in (part.values() if isinstance(part, dict) else part)
        ]
    try:
        orjson.dumps(body)
    except TypeError as error:
        raise Refusal(422, f"the body: is not JSON: {error}") from None


def read_spec(body: Any, settings: Settings, environment: Mapping[str, str]) -> Spec:
    """The run that a client's JSON asks for; raises Refusal, which says what is wrong with it."""
    if not isinstance(body, dict):
        raise Refusal(422, "the body must be a JSON object")
    _check_plain(body)
    kind = body.get("kind", "run")
    if not isinstance(kind, str) or kind not in KINDS:
        raise Refusal(422, f"kind: must be one of {', '.join(KINDS)}")
    content = {key: value for key, value in body.items() if key not in _OWN}
    known = ("trace", *KINDS[kind].sections)
    for key in content:
        if key not in known:
            raise Refusal(422, f"{key[:60]}: no such key for {kind}; there are {', '.join(known)}")
    for name, model in KINDS[kind].sections.items():
        _only_allowed(content.get(name), name, model)
    trace = content.get("trace")
    if trace is not None and not (isinstance(trace, str) and TRACE_ID.fullmatch(trace)):
        raise Refusal(422, "trace: must be the id that POST /api/traces gave")
    if trace is not None and content.get("generate"):
        raise Refusal(422, "generate: the trace is given; leave one of them out")
    try:
        check_sections(content, "body", KINDS[kind].sections)
        config = KINDS[kind].build({**content, "trace": None})
    except ConfigError as error:
        raise Refusal(422, _FLAG.sub(lambda flag: flag[1].replace("-", "_"), str(error))) from None
    spec = Spec(
        kind=kind,
        content=content,
        config=config,
        api_key=_key_in(body),
        keep=_flag(body, "keep"),
        repeat=_flag(body, "repeat"),
    )
    _check_size(spec, settings)
    _check_key(spec, settings, environment)
    return spec


def _only_allowed(section: Any, name: str, model: type[BaseModel]) -> None:
    for part in section if isinstance(section, list) else [section]:
        for key in part if isinstance(part, dict) else ():
            if key in model.model_fields and key not in fields_of(model):
                raise Refusal(422, f"{name}.{key}: is not for a client of the service to say")


def _check_size(spec: Spec, settings: Settings) -> None:
    limits, count = KINDS[spec.kind], len(spec.targets)
    if not limits.fewest_targets <= count <= limits.most_targets:
        wanted = (
            str(limits.fewest_targets)
            if limits.fewest_targets == limits.most_targets
            else f"{limits.fewest_targets} to {limits.most_targets}"
        )
        raise Refusal(422, f"targets: {spec.kind} takes {wanted}, got {count}")
    config, most = spec.config, settings.flags.max_requests
    if isinstance(config, SimulateConfig) and config.fleet.replicas > _MOST_REPLICAS:
        raise Refusal(422, f"fleet.replicas: at most {_MOST_REPLICAS} here")
    if isinstance(config, PointsConfig):
        if most_requests(config) > most:
            raise Refusal(422, f"{spec.kind}: a point may have at most {most} requests here")
        generate = config.run.generate
    else:
        generate = config.generate
        if spec.content.get("trace") is None and generate.num_prompts > most:
            raise Refusal(422, f"generate.num_prompts: at most {most} here")
    if generate.rate_profile is not None and generate.rate_profile.startswith("trace:"):
        raise Refusal(
            422, "generate.rate_profile: a file is not for a client of the service to name"
        )


def _key_in(body: Mapping[str, Any]) -> str | None:
    key = body.get("api_key")
    if key is None or key == "":
        return None
    if not isinstance(key, str) or len(key) > _MOST_KEY_CHARS or not _is_plain(key):
        raise Refusal(422, "api_key: must be printable ASCII, on one line")
    if len(key) < _FEWEST_KEY_CHARS:
        raise Refusal(422, f"api_key: must have {_FEWEST_KEY_CHARS} characters or more")
    return key


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise Refusal(422, f"{name}: must be true or false")
    return value


def _check_key(spec: Spec, settings: Settings, environment: Mapping[str, str]) -> None:
    """A key of the service's own goes only where the service's owner wants it to go."""
    name = spec.key_variable
    if name is None:
        return
    if spec.api_key is not None:
        raise Refusal(422, "api_key: leave it out, or request.api_key_env")
    if name != DEFAULT_KEY and not name.startswith(KEY_PREFIX):
        raise Refusal(
            422, f"request.api_key_env: must be {DEFAULT_KEY}, or begin with {KEY_PREFIX}"
        )
    if name not in environment:
        raise Refusal(422, "request.api_key_env: the service has no key of that name")
    if settings.allowed.is_any:
        raise Refusal(
            403,
            "request.api_key_env: the service's own keys go only to targets that its "
            "LOADGEN_ALLOWED_TARGETS lists, and it lists none; give api_key, or set it",
        )


def schema() -> dict[str, Any]:
    """The JSON schema of what `read_spec` takes, for the OpenAPI document; without references."""
    return {"oneOf": [_schema_of(name, kind) for name, kind in KINDS.items()]}


def _schema_of(name: str, kind: Kind) -> dict[str, Any]:
    is_default = name == next(iter(KINDS))
    properties: dict[str, Any] = {
        "kind": {"type": "string", "enum": [name]} | ({"default": name} if is_default else {}),
        "trace": {
            "type": ["string", "null"],
            "pattern": f"^{TRACE_ID.pattern}$",
            "description": "id of an uploaded trace; without it one is drawn by `generate`",
        },
        "keep": {"type": "boolean", "description": "never prune this run"},
        "repeat": {"type": "boolean", "description": "queue it again whenever it has finished"},
        "api_key": {
            "type": ["string", "null"],
            "minLength": _FEWEST_KEY_CHARS,
            "maxLength": _MOST_KEY_CHARS,
            "writeOnly": True,
            "description": "given to the run alone; never kept and never told",
        },
    }
    for section, model in kind.sections.items():
        whole = _inline(model.model_json_schema())
        allowed = fields_of(model)
        whole["properties"] = {
            key: value for key, value in whole["properties"].items() if key in allowed
        }
        if section == "targets":
            whole = {
                "type": "array",
                "minItems": kind.fewest_targets,
                "maxItems": kind.most_targets,
                "items": whole,
            }
        if section == "fleet":
            whole["properties"]["replicas"]["maximum"] = _MOST_REPLICAS
        properties[section] = whole
    return {
        "type": "object",
        "title": name,
        "required": [
            *(() if is_default else ("kind",)),
            *(("targets",) if "targets" in kind.sections else ()),
            *((name,) if name == "sweep" else ()),
            *(("output",) if name == "capacity" else ()),
        ],
        "additionalProperties": False,
        "properties": properties,
    }


def _inline(whole: dict[str, Any]) -> dict[str, Any]:
    """The schema with what it refers to in place of the references; ours refer to no cycles."""
    known = whole.pop("$defs", {})

    def resolve(part: Any) -> Any:
        if isinstance(part, dict):
            if "$ref" in part:
                return resolve(known[part["$ref"].rpartition("/")[2]])
            drop = ("metavar", "aliases", "title")
            return {key: resolve(value) for key, value in part.items() if key not in drop}
        return [resolve(item) for item in part] if isinstance(part, list) else part

    found: dict[str, Any] = resolve(whole)
    return found
