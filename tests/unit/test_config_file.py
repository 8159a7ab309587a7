"""`--config FILE`: the same models as flags, from YAML or JSON; flags win."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli import build_parser, main
from loadgen.config_file import SECTIONS, check_sections, read_config
from loadgen.errors import ConfigError
from loadgen.run_flags import targets_of_file

YAML = """
targets:
  - {name: a, base_url: "http://127.0.0.1:8000"}
generate: {num_prompts: 7, request_rate: inf, output_len: 3}
load: {max_concurrency: 4, closed_loop: true}
"""


def described(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main([*words, "--dry-run", "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(YAML)
    return path


def test_a_run_from_a_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Targets, laws and load come from the file."""
    load = described(capsys, "run", "--config", str(file))
    assert load["targets"] == {"a": "http://127.0.0.1:8000"}
    assert load["requests"] == 7
    assert load["output_tokens"] == 21
    assert load["pace"] == "closed"


def test_json_is_as_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same as JSON says the same, whatever the file is called."""
    path = tmp_path / "run"
    targets = [{"name": n, "base_url": f"http://127.0.0.1:{p}"} for n, p in (("a", 1), ("b", 2))]
    path.write_text(json.dumps({"targets": targets, "generate": {"num_prompts": 5}}))
    load = described(capsys, "compare", "--config", str(path))
    assert load["requests"] == 10


def test_flags_win(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A flag replaces the file's key, and leaves its other keys."""
    words = ("--num-prompts", "9", "--base-url", "http://127.0.0.1:9")
    load = described(capsys, "run", "--config", str(file), *words)
    assert load["requests"] == 9
    assert load["output_tokens"] == 27
    assert load["targets"] == {"target": "http://127.0.0.1:9"}


def test_a_trace_on_the_command_line_replaces_the_files_laws(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TRACE is the trace, whatever the file would have drawn."""
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"timestamp":0,"input_length":2,"output_length":2}\n')
    file.write_text(YAML.replace("load:", "compare: {}\nload:"))
    load = described(capsys, "run", str(trace), "--config", str(file))
    assert load["requests"] == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("generate: {num_prompts: 0}", "generate: --num-prompts: input should be greater"),
        ("generate: {rate: 3}", "generate: rate: no such key"),
        ("load: 5", "load: must hold keys"),
        ("lod: {}", "lod: no such key"),
        ("targets: {a: 1}", "targets: must be a list"),
        ("targets: [{base_url: nowhere}]", "targets[0]:"),
        ("- 1", "must hold keys"),
        ("a: [", ":1: neither YAML nor JSON"),
        ("load: {workers: 1, workers: 2}", "the key workers stands twice"),
        ("load: !!python/object:os.system {}", "neither YAML nor JSON"),
        ("\x00", "neither YAML nor JSON"),
    ],
)
def test_mistakes_are_told_with_their_place(file: Path, text: str, told: str) -> None:
    """One line names the file, the section and the key."""
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config(file)
    assert str(file) in str(caught.value)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ("run",),
        ("run", "--config", "no-such-file"),
        ("compare", "--config", "FILE"),
        ("run", "--config", "FILE", "--rounds", "2", "--run-dir", "x"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_run(
    file: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """No target, no file, one target too few, one directory for two rounds: exit code 2."""
    assert main([str(file) if word == "FILE" else word for word in words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_trace_and_laws_in_one_file(file: Path) -> None:
    """A file that gives both is refused."""
    file.write_text(YAML + "trace: t.jsonl\n")
    assert main(["run", "--config", str(file), "--dry-run"]) == 2


OWN = [
    {"name": "a", "base_url": "http://h", "model": "m", "api_key_env": "KEY_A"},
    {"name": "b", "base_url": "http://h"},
]


@pytest.mark.parametrize(
    ("words", "models", "keys"),
    [
        ((), ["m", None], ["KEY_A", None]),
        (("--model", "n"), [None, None], ["KEY_A", None]),
        (("--api-key", "abcdef"), ["m", None], [None, None]),
        (("--api-key-env", "OTHER"), ["m", None], [None, None]),
    ],
    ids=str,
)
def test_flags_win_over_what_targets_have_of_their_own(
    words: tuple[str, ...], models: list[str | None], keys: list[str | None]
) -> None:
    """As over every other key of the file."""
    arguments = build_parser().parse_args(["compare", *words])
    targets = targets_of_file(arguments, {"targets": OWN})
    assert [target.model for target in targets] == models
    assert [target.api_key_env for target in targets] == keys


@pytest.mark.parametrize(
    "section",
    [
        {"output": {"metadata": {"a": "x\ud800"}}},
        {"output": {"metadata": {"a\0": "x"}}},
        {"request": {"extra_body": {"seed": 2**70}}},
        {"request": {"extra_body": {"a": [{"b": "\udcff"}]}}},
    ],
    ids=str,
)
def test_what_no_file_can_hold_is_refused_inside_mappings(section: dict[str, Any]) -> None:
    """Before anything is written or sent, in one line that names the key."""
    content = {"targets": [{"base_url": "http://h"}], **section}
    with pytest.raises(ConfigError, match=r"metadata|extra.body"):
        check_sections(content, "file", SECTIONS)
