"""The names of all metrics that a dashboard or a rule may use, and how to find those in PromQL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from loadgen import exporter
from servers.static.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "dashboards" / "prometheus"

_HISTOGRAMS = {name for name, *_ in (*exporter.HISTOGRAMS, *exporter.HISTOGRAMS_BY_OUTCOME)}


def _kind(name: str) -> str:
    if name in _HISTOGRAMS:
        return "histogram"
    return "counter" if name.endswith("_total") else "gauge"


LOADGEN = tuple(f"{_kind(name)} {name}" for name in exporter.NAMES)
DCGM = (
    "gauge DCGM_FI_DEV_GPU_UTIL",
    "gauge DCGM_FI_DEV_FB_USED",
    "gauge DCGM_FI_DEV_FB_FREE",
    "gauge DCGM_FI_DEV_POWER_USAGE",
    "gauge DCGM_FI_DEV_GPU_TEMP",
    "gauge DCGM_FI_DEV_MEMORY_TEMP",
    "gauge DCGM_FI_DEV_SM_CLOCK",
    "gauge DCGM_FI_DEV_MEM_CLOCK",
    "gauge DCGM_FI_DEV_XID_ERRORS",
    "gauge DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "gauge DCGM_FI_PROF_DRAM_ACTIVE",
    "counter DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
)
PROMETHEUS_OWN = ("gauge up", "gauge ALERTS")

_WORDS = {"and", "or", "unless", "on", "ignoring", "by", "without", "offset", "bool", "sum", "max"}


def series_names(lines: Iterable[str]) -> Iterator[str]:
    """The names of series, of lines of `<type> <name>`: a histogram has three."""
    for line in lines:
        kind, name = line.split()
        if kind == "histogram":
            yield from (f"{name}_bucket", f"{name}_sum", f"{name}_count")
        else:
            yield name


def of_static() -> set[str]:
    """What the static server exports, from its own registry."""
    text = Metrics(batch_size=1, max_queue=1).exposition().decode()
    lines = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    return set(series_names(f"{kind} {name}" for name, kind in lines))


def of_vllm() -> set[str]:
    """What vLLM exports, as far as we read it, from a file."""
    lines = (ROOT / "tests" / "data" / "vllm_metrics.txt").read_text().splitlines()
    return set(series_names(line for line in lines if line and not line.startswith("#")))


def rules(name: str) -> list[dict[str, Any]]:
    """All rules of a file, whatever their group."""
    content = yaml.safe_load((PROMETHEUS / "rules" / f"{name}.yml").read_text())
    return [rule for group in content["groups"] for rule in group["rules"]]


def of_rules() -> set[str]:
    """What the recording rules write."""
    return {rule["record"] for rule in rules("recording")}


def known() -> set[str]:
    """Every name that somebody exports or records."""
    fixed = set(series_names((*LOADGEN, *DCGM, *PROMETHEUS_OWN)))
    return fixed | of_static() | of_vllm() | of_rules()


def used(expr: str) -> set[str]:
    """The metrics that a PromQL expression reads."""
    rest = re.sub(r'"(?:\\.|[^"\\])*"', '""', expr)
    rest = re.sub(r"\{[^{}]*\}|\[[^\[\]]*\]", " ", rest)
    rest = re.sub(r"\b(?:by|on|without|ignoring) *\([^()]*\)", " ", rest)
    rest = re.sub(r"\boffset +\S+", " ", rest)
    names = re.findall(r"(?<![\w:.])[A-Za-z_:][\w:]*(?![\w:]*\s*\()", rest)
    return {name for name in names if name not in _WORDS}
