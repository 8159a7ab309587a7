"""What `loadgen serve` may be told, by flags and by its environment; and when it refuses to start.

It knows no HTTP and loads no web framework.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field

from loadgen.client.allowed import ANY, VARIABLE, Allowed
from loadgen.config import http_url
from loadgen.errors import ConfigError
from loadgen.strict import Strict

TOKEN_VARIABLE: Final = "LOADGEN_API_TOKEN"
TOKEN_FILE_VARIABLE: Final = "LOADGEN_API_TOKEN_FILE"
START_VARIABLE: Final = "LOADGEN_START"
"""What --start FILE would hold, for a container that has no file."""
GRAFANA_VARIABLE: Final = "LOADGEN_GRAFANA_URL"
KEY_PREFIX: Final = "LOADGEN_KEY_"
"""A variable of the service that a client may name as the key of a run begins so."""
TOKEN_CHARS: Final = 16


def _by_commas(value: Any) -> Any:
    return [name for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def _host_name(text: str) -> str:
    """A name or an address, as `host_in` finds it; raises ValueError."""
    text = text.strip()
    found = host_in(f"[{text}]" if text.count(":") > 1 and text[0] != "[" else text)
    if found is None:
        raise ValueError(f"{text!r}: must be a name or an address, as lab.example.com")
    return found


def host_in(header: str) -> str | None:
    """What a Host header names, in lower case and without its port; None where it is none."""
    found = _HOST.fullmatch(header)
    return None if found is None else (found["v6"] or found["name"]).lower()


_HOST: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::\d{1,5})?")


class ServeConfig(Strict):
    """The flags of `loadgen serve`."""

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="address to serve on; any but loopback needs a token in LOADGEN_API_TOKEN",
    )
    port: int = Field(8765, ge=0, le=65535, description="port to serve on; 0 takes a free one")
    result_dir: Path = Field(Path("runs"), description="folder that holds the run directories")
    allowed_host: Annotated[
        tuple[Annotated[str, AfterValidator(_host_name)], ...], BeforeValidator(_by_commas)
    ] = Field(
        (),
        description="further names that the service is reached by, as in its URL, by commas",
        json_schema_extra={"metavar": "NAME,..."},
    )
    start: Path | None = Field(
        None,
        description="runs to start at once: a YAML or JSON list of what POST /api/runs takes, each "
        "with `repeat: true` where it is to run over and over; left out, LOADGEN_START holds the "
        "list itself",
        json_schema_extra={"metavar": "FILE"},
    )
    max_queue: int = Field(20, ge=1, le=1000, description="runs that may wait for their turn")
    max_requests: int = Field(
        1_000_000, ge=1, description="requests that one run may have, for each target"
    )
    max_trace_mib: int = Field(64, ge=1, le=4096, description="largest trace that is taken")
    keep_traces: int = Field(100, ge=1, description="uploaded traces that are kept")
    keep_runs: int = Field(
        500, ge=1, description="runs of the service that are kept; the oldest go first"
    )
    max_disk_gib: Annotated[float, Field(gt=0)] = Field(
        20.0, description="space that the service's runs may take; the oldest go first"
    )
    drain: float = Field(
        60.0, ge=0, le=86_400, description="seconds that a stopped run may wait for its answers"
    )
    rest: float = Field(2.0, ge=0, le=86_400, description="seconds between a run and the next")
    open_metrics: bool = Field(
        False, description="serve /metrics without the token, for a Prometheus that has none"
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """Flags and environment, checked."""

    flags: ServeConfig
    token: str | None
    allowed: Allowed
    allowed_text: str
    grafana_url: str | None

    @property
    def runs(self) -> Path:
        return self.flags.result_dir

    @property
    def traces(self) -> Path:
        return self.flags.result_dir / ".traces"

    @property
    def hosts(self) -> frozenset[str]:
        """Names by which requests may ask for this service, without port, in lower case."""
        own = {"localhost", "127.0.0.1", "::1", *self.flags.allowed_host}
        if not _is_unspecified(self.flags.host):
            own.add(self.flags.host.lower())
        return frozenset(own)


def settings_of(flags: ServeConfig, environment: Mapping[str, str] = os.environ) -> Settings:
    """Raises ConfigError where the service must not start like this."""
    token = _token(environment)
    if token is not None and (
        len(token) < TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token
    ):
        raise ConfigError(
            f"{TOKEN_VARIABLE}: must have {TOKEN_CHARS} characters or more, printable ASCII "
            "without spaces"
        )
    if token is None and not _is_loopback(flags.host):
        raise ConfigError(
            f"--host {flags.host}: others can reach it, so it needs a token of {TOKEN_CHARS} "
            f"characters or more in {TOKEN_VARIABLE}"
        )
    grafana = environment.get(GRAFANA_VARIABLE) or None
    try:
        _ = grafana and http_url(grafana)
    except ValueError:
        raise ConfigError(
            f"{GRAFANA_VARIABLE}: needs a URL such as http://127.0.0.1:3000"
        ) from None
    text = environment.get(VARIABLE, ANY)
    return Settings(flags, token, Allowed(text), text, grafana)


def _token(environment: Mapping[str, str]) -> str | None:
    path = environment.get(TOKEN_FILE_VARIABLE)
    if path is None:
        return environment.get(TOKEN_VARIABLE)
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "is not text"
        raise ConfigError(f"{TOKEN_FILE_VARIABLE}: {path}: {reason}") from None


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
