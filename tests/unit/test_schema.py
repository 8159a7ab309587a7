"""The JSON Schemas describe what is written, and nothing else passes for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from made_records import made_header, made_record, made_run

from loadgen.cli import main
from loadgen.record import Outcome
from loadgen.report import rebuild
from loadgen.report.schema import NAMES, schema_of

Found = dict[str, dict[str, Any]]


def results(path: Path, requests: int, *, goodput: bool = False, failing: bool = False) -> Found:
    """summary.json and comparison.json of a comparison, as they are on disk."""
    output: dict[str, Any] = {"metric_percentiles": [50, 99.9]}
    if goodput:
        output["goodput"] = {"e2el": 1500.0}
    header = made_header(
        "a", "b", requests=requests, config={"load": {"max_concurrency": None}, "output": output}
    )
    records = [
        made_record(
            n,
            target=name,
            due=n * 0.5,
            chunks=() if failing else (n + 1.0, n + 1.5, n + 2.0),
            outcome=Outcome.CONNECT if failing else Outcome.OK,
            asked=n + 3,
        )
        for name in ("a", "b")
        for n in range(requests)
    ]
    rebuild(made_run(path, header, records))
    return {name: json.loads((path / f"{name}.json").read_bytes()) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "options",
    [
        {"requests": 64, "goodput": True},
        {"requests": 3},
        {"requests": 3, "failing": True},
        {"requests": 0},
    ],
    ids=["many", "few", "failures", "nothing"],
)
def test_what_is_written_fits_its_schema(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """With figures and without, the files are as their schemas say."""
    schema = schema_of(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    content = results(tmp_path / "run", **options)[name]
    jsonschema.validate(content, schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_a_result_does_not_fit(name: str, tmp_path: Path) -> None:
    """A missing key, a key too many, a wrong type and another version are refused."""
    content = results(tmp_path / "run", 64)[name]
    figures = content["targets"]["a"]
    wrong: list[dict[str, Any]] = [
        {key: value for key, value in content.items() if key != "targets"},
        content | {"more": 1},
        content | {"schema_version": 999},
        content | {"targets": {"a": figures | {"completed": "64"}}},
        content | {"targets": {"a": figures | {"e2e_s": figures["e2e_s"] | {"median": 1.0}}}},
    ]
    for each in wrong:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(each, schema_of(name), jsonschema.Draft202012Validator)


@pytest.mark.parametrize("name", NAMES)
def test_the_command_prints_them(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`loadgen report --schema` needs no run."""
    assert main(["report", "--schema", name]) == 0
    assert json.loads(capsys.readouterr().out) == schema_of(name)
