"""The import direction, read from the source: the straight line from trace to report stays one."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "loadgen").rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def is_skipped(node: ast.AST) -> bool:
    """Blocks that do not run on import: for type checkers, or for a program's own start."""
    return isinstance(node, ast.If) and any(
        word in ast.unparse(node.test) for word in ("TYPE_CHECKING", "__name__")
    )


def imports_in(node: ast.AST) -> Iterator[str]:
    """Dotted names that a tree imports, inside functions too, but not for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if is_skipped(child):
            assert isinstance(child, ast.If)
            for other in child.orelse:
                yield from imports_in(ast.Module([other], []))
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            assert child.module is not None
            for alias in child.names:
                name = f"{child.module}.{alias.name}"
                yield name if name in MODULES else child.module
        else:
            yield from imports_in(child)


OURS = {
    name: {found for found in imports_in(tree) if found in MODULES} - {name}
    for name, tree in TREES.items()
}


def reach(name: str) -> set[str]:
    """Everything of ours that a module imports, however far."""
    found: set[str] = set()
    todo = [name]
    while todo:
        for other in OURS[todo.pop()] - found:
            found.add(other)
            todo.append(other)
    return found


def of(*names: str) -> set[str]:
    """The modules of these parts of loadgen, with all that is inside them."""
    return {
        module
        for module in MODULES
        for name in names
        if f"{module}.".startswith(f"loadgen.{name}.")
    }


OUTER = of(
    *("cli", "plan", "run", "worker", "workers", "turn", "flags", "progress"),
    *("exporter", "selfcheck"),
    *("trace_cli", "trace_report", "report_cli", "runs_cli", "runs_compare", "sim_cli"),
    *("exploration", "explore_cli", "probing", "run_flags", "sweep"),
    *("model_cli", "probe", "__main__", "config_file", "status"),
    *("serve_cli", "service", "service_cli", "service_client"),
)
EVERYTHING = frozenset(MODULES)
RULES = {
    "loadgen.errors": EVERYTHING,
    "loadgen.clock": EVERYTHING,
    "loadgen.record": EVERYTHING,
    "loadgen.client.sse": EVERYTHING,
    "loadgen.client.openai": EVERYTHING,
    "loadgen.trace": OUTER | of("client", "report", "journal", "replay", "schedule", "stats"),
    "loadgen.trace_report": (OUTER - of("trace_report"))
    | of("client", "journal", "replay", "schedule"),
    "loadgen.schedule": OUTER | of("client", "report", "journal", "replay", "clock"),
    "loadgen.client": OUTER | of("journal", "report", "replay", "stats", "verdict"),
    "loadgen.replay": OUTER | of("client", "journal", "report"),
    "loadgen.journal": OUTER | of("client", "report", "stats", "trace", "replay"),
    "loadgen.archive": OUTER | of("client", "report", "stats", "trace", "replay"),
    "loadgen.columns": EVERYTHING - of("record"),
    "loadgen.slo": EVERYTHING - of("record", "columns"),
    "loadgen.live": EVERYTHING - of("record", "columns", "slo"),
    "loadgen.stats": EVERYTHING - of("record", "columns", "slo"),
    "loadgen.verdict": EVERYTHING - of("record", "columns", "slo", "stats"),
    "loadgen.units": EVERYTHING - of("record", "columns"),
    "loadgen.paired": EVERYTHING - of("record", "columns", "slo", "units"),
    "loadgen.gate": EVERYTHING - of("record", "columns", "slo", "units", "errors"),
    "loadgen.capacity": EVERYTHING - of("record", "columns", "slo", "units", "paired"),
    "loadgen.knee": EVERYTHING,
    "loadgen.points": EVERYTHING
    - of("record", "columns", "slo", "units", "paired", "stats", "verdict", "capacity", "knee"),
    "loadgen.two_runs": OUTER | of("client", "report", "trace", "replay"),
    "loadgen.compare": EVERYTHING
    - of("record", "columns", "slo", "stats", "verdict", "paired", "gain", "units"),
    "loadgen.gain": EVERYTHING - of("record", "columns", "slo", "paired", "units"),
    "loadgen.exporter": EVERYTHING
    - of(*("record", "columns", "slo", "stats", "verdict", "live", "errors")),
    "loadgen.service": of("plan", "run", "worker", "workers", "turn", "replay", "progress", "cli")
    | of("report_cli", "runs_cli", "trace_cli", "serve_cli", "service_cli"),
    "loadgen.report": OUTER | of("client", "trace", "replay", "schedule"),
    "loadgen.sim": OUTER | of("client", "replay"),
}
"""What each may not reach."""


@pytest.mark.parametrize("package", RULES)
def test_the_import_direction(package: str) -> None:
    """A module imports, directly or through others, nothing that stands further down the line."""
    inside = of(package.removeprefix("loadgen."))
    for name in inside:
        wrong = (reach(name) & RULES[package]) - inside
        assert not wrong, f"{name} reaches {sorted(wrong)}"


def test_the_service_is_a_leaf() -> None:
    """Its command alone imports it, and loads the web framework only when it runs."""
    users = {name for name in MODULES if OURS[name] & of("service")} - of("service")
    assert users == {"loadgen.serve_cli"}
    assert not reach("loadgen.serve_cli") & of("service.app", "service.guard")


def test_no_import_cycles() -> None:
    """No module imports itself through others."""
    assert not [name for name in MODULES if name in reach(name)]


def test_only_one_module_imports_httpx() -> None:
    """httpx and httpx2 are interchangeable because one module alone knows them."""
    users = {
        name
        for name, tree in TREES.items()
        if {found.split(".")[0] for found in imports_in(tree)} & {"httpx", "httpx2", "httpcore"}
    }
    assert users <= {"loadgen.client.http"}


@pytest.mark.parametrize("foreign", ["servers", "tests", "scripts", "bench"])
def test_the_package_stands_alone(foreign: str) -> None:
    """Nothing in loadgen imports servers, tests or scripts: a wheel has none of them."""
    for name, tree in TREES.items():
        assert foreign not in {found.split(".")[0] for found in imports_in(tree)}, name


def test_no_grab_bags() -> None:
    """No module is named for not having a job."""
    for name in MODULES:
        for part in name.split("."):
            assert part not in ("utils", "util", "common", "base", "helpers", "misc", "core", "lib")


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_does(name: str) -> None:
    """A module begins with a docstring."""
    assert ast.get_docstring(TREES[name])


def test_no_blanket_except_without_a_reason() -> None:
    """A bare `except:` is nowhere; one that takes everything raises it again, or says why not."""
    for name, tree in TREES.items():
        lines = MODULES[name].read_text().splitlines()
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler):
                assert node.type is not None, f"{name}:{node.lineno}"
                raises = isinstance(node.body[-1], ast.Raise)
                if ast.unparse(node.type) in ("Exception", "BaseException") and not raises:
                    assert "noqa: BLE001 - " in lines[node.lineno - 1], f"{name}:{node.lineno}"


def test_the_import_is_light() -> None:
    """`import loadgen` and its command line load neither torch nor fastapi nor transformers."""
    heavy = ["torch", "fastapi", "transformers", "vllm", "ray", "starlette", "pandas"]
    code = f"import sys, loadgen, loadgen.cli; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert found.stdout.strip() == "[]"


def test_importing_the_package_alone_is_lighter_still() -> None:
    """`import loadgen` loads none of the packages that its parts need."""
    heavy = ["numpy", "pyarrow", "httpx", "httpx2", "pydantic", "vl_convert", "tokenizers", "rich"]
    code = f"import sys, loadgen; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert found.stdout.strip() == "[]"
