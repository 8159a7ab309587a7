"""The documentation names what the program has: every flag, outcome, figure and threshold."""

from __future__ import annotations

import argparse
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadgen import exporter
from loadgen.cli import build_parser
from loadgen.config import RunConfig
from loadgen.config_file import SECTIONS, check_sections
from loadgen.record import Outcome, TokenSource
from loadgen.trace.config import ArrivalLaw, LengthLaw
from loadgen.trace.export import ExportFormat
from loadgen.trace.formats import FORMATS
from servers.toy.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]


def commands(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Every command, with its words."""
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from commands(child, (*words, name))


ALL = dict(commands(build_parser()))
DOING = {words: parser for words, parser in ALL.items() if parser.get_default("call")}


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def section(words: tuple[str, ...]) -> str:
    """The part of docs/cli.md that speaks of one command."""
    parts = re.split(r"^## ", page("cli.md"), flags=re.MULTILINE)
    return next(part for part in parts if part.startswith(f"loadgen {' '.join(words)}\n"))


@pytest.mark.parametrize("words", DOING, ids=" ".join)
def test_every_flag_is_documented(words: tuple[str, ...]) -> None:
    """Each flag of a command, and each alias, stands in the command's part of docs/cli.md."""
    part = section(words)
    for action in DOING[words]._actions:
        for name in action.option_strings:
            if name not in ("-h", "--help"):
                assert re.search(rf"`{re.escape(name)}[` ]", part), name


@pytest.mark.parametrize("words", DOING, ids=" ".join)
def test_every_documented_flag_exists(words: tuple[str, ...]) -> None:
    """The documentation speaks of no flag that the command does not have."""
    known = {name for action in DOING[words]._actions for name in action.option_strings}
    assert set(re.findall(r"`(--[a-z0-9-]+)", section(words))) <= known


@pytest.mark.parametrize("words", DOING, ids=" ".join)
def test_every_command_has_an_example(words: tuple[str, ...]) -> None:
    """Each command's help ends with an example; pasted into a shell it is what the parser takes."""
    epilog = DOING[words].epilog or ""
    assert "example:" in epilog
    shell = shlex.shlex(epilog.partition("example:")[2], posix=True, punctuation_chars=True)
    shell.whitespace_split = True
    example = list(shell)
    assert example[: 1 + len(words)] == ["loadgen", *words]
    assert not {word for word in example if set(word) <= set("();<>|&")}
    assert callable(build_parser().parse_args(example[1:]).call)


def test_the_program_itself_has_an_example() -> None:
    """`loadgen --help` ends with an example as well."""
    assert "example:" in (build_parser().epilog or "")


@pytest.mark.parametrize("words", DOING, ids=" ".join)
def test_every_flag_says_what_it_does(words: tuple[str, ...]) -> None:
    """No flag is without help."""
    for action in DOING[words]._actions:
        assert action.help, action.option_strings


def test_the_page_of_flags_is_fresh() -> None:
    """docs/cli.md is what scripts/write_cli_docs.py writes today."""
    assert page("cli.md") == writer().text()


def test_the_configuration_file_of_the_page_is_one() -> None:
    """The example of docs/cli.md is read by `--config`, and asks for a run."""
    content = check_sections(yaml.safe_load(writer().EXAMPLE), "the example", SECTIONS)
    assert RunConfig.model_validate(content).targets[0].name == "mine"


def writer() -> Any:
    """scripts/write_cli_docs.py, as a module."""
    spec = importlib.util.spec_from_file_location(
        "write_cli_docs", ROOT / "scripts" / "write_cli_docs.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_is_documented(outcome: Outcome) -> None:
    """docs/metrics.md says when each outcome is given."""
    assert f"`{outcome}`" in page("metrics.md")


@pytest.mark.parametrize("source", TokenSource)
def test_every_token_source_is_documented(source: TokenSource) -> None:
    """docs/metrics.md says what each source of token counts means."""
    assert f"`{source}`" in page("metrics.md")


@pytest.mark.parametrize("prefix", ["loadgen", "static"])
def test_every_live_metric_is_documented(prefix: str) -> None:
    """docs/metrics.md has a row for each metric that is exported, and for no other."""
    documented = set(re.findall(rf"^\| `({prefix}_[a-z0-9_]+)` \|", page("metrics.md"), re.M))
    if prefix == "loadgen":
        assert documented == set(exporter.NAMES)
        return
    source = (ROOT / "servers" / "static" / "metrics.py").read_text()
    names = re.findall(r'\b(gauge|counter|histogram)\(\s*"([a-z0-9_]+)"', source)
    told = {f"static_{name}" + "_total" * (kind == "counter") for kind, name in names}
    told |= {f"{name}_total" for name in re.findall(r'Counter\(\s*"(static_[a-z_]+)"', source)}
    assert len(told) > 20
    assert documented == told | {"static_server_info"}


def test_every_metric_of_the_toy_is_documented() -> None:
    """docs/metrics.md has a row for each metric that the toy server exposes, and for no other."""
    text = Metrics({}).exposition().decode()
    told = {name for name in re.findall(r"^# TYPE (toy_\S+)", text, re.M) if "_created" not in name}
    documented = set(re.findall(r"^\| `(toy_[a-z0-9_]+)` \|", page("metrics.md"), re.M))
    assert documented == told


def test_every_fact_of_a_run_is_documented() -> None:
    """The labels of `loadgen_run_info` are named in its row."""
    (row,) = re.findall(r"^\| `loadgen_run_info` \|.*", page("metrics.md"), re.M)
    assert all(fact in row for fact in exporter.FACTS)


def test_every_rule_of_the_verdict_is_documented() -> None:
    """Each rule that the verdict may name stands in docs/verdict.md, and no other does."""
    source = (ROOT / "loadgen" / "verdict.py").read_text()
    said = set(re.findall(r'(?:weigh\(|say\()\s*(?:Grade\.\w+,\s*)?"([a-z_]+)"', source))
    said |= set(re.findall(r'yield (?:Grade\.\w+|grade), "([a-z_]+)"', source))
    documented = set(re.findall(r"^\| `([a-z_]+)` \|", page("verdict.md"), re.MULTILINE))
    assert said
    assert documented == said


def test_the_map_of_the_code_is_short() -> None:
    """docs/architecture.md stays a map: at most 150 lines."""
    assert len(page("architecture.md").splitlines()) <= 150


@pytest.mark.parametrize(
    "word",
    [
        *FORMATS,
        *ExportFormat,
        *ArrivalLaw,
        *LengthLaw,
        "constant",
        "ramp",
        "steps",
        "sine",
        "trace",
    ],
)
def test_every_format_and_law_of_traces_is_documented(word: str) -> None:
    """docs/trace.md speaks of each format that is read or written, each law and each profile."""
    assert re.search(rf"`{word}[`:]|law {word}`|`{word}`, `|, `{word}`", page("trace.md")), word


def test_docs_of_traces_name_no_flag_that_is_not() -> None:
    """Each flag that docs/trace.md names exists in some command; SIDE stands for both sides."""
    known = {
        name for parser in DOING.values() for a in parser._actions for name in a.option_strings
    }
    named = set(re.findall(r"(?<![\w-])(--[a-zA-Z][a-zA-Z0-9-]*)", page("trace.md")))
    foreign = {"--dataset-name", "--dataset-path"} | {f for f in named if "timed-trace" in f}
    for flag in named - foreign:
        for side in ("input", "output"):
            assert flag.replace("SIDE", side) in known, flag
    assert named - foreign
