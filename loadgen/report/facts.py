"""What a run was, from its header alone: targets, trace, load, versions, machine. For people."""

from __future__ import annotations

from typing import Any

from loadgen.record import RunHeader


def facts_of(header: RunHeader) -> list[tuple[str, str]]:
    """(name, value) pairs, in the order in which one reads them."""
    facts = []
    for target in header.targets:
        fields = ", ".join(target.features) or "no optional fields"
        facts.append(
            (target.name, f"{target.base_url} · {target.model} · {target.endpoint} · {fields}")
        )
    return [
        *facts,
        ("trace", f"{header.trace_name}, SHA-256 {header.trace_sha256}"),
        ("prompt seed", str(header.seed)),
        ("load", _load_of(header.config)),
        ("transport", header.transport),
        ("versions", ", ".join(f"{name} {v}" for name, v in header.versions.items())),
        ("machine", ", ".join(f"{name} {v}" for name, v in header.machine.items())),
        *header.metadata.items(),
    ]


def _load_of(config: dict[str, Any]) -> str:
    """How the trace was made into load, as far as it differs from the defaults."""
    load = {key: value for key, value in config.get("load", {}).items() if value}
    drawn = config.get("generate", {}) if config.get("trace") is None else {}
    said = (drawn | load).items()
    facts = {key: value for key, value in said if value is not None and value is not False}
    return ", ".join(f"{key} {value}" for key, value in facts.items()) or "open loop"
