"""The command line: its names, its aliases, and one line for each mistake."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from made_records import made_header, made_record, made_run

from loadgen import __version__
from loadgen.cli import build_parser, main
from loadgen.config import GeneratorConfig, LoadConfig, OutputConfig, RequestConfig
from loadgen.flags import take, validate

URL = ("--base-url", "http://127.0.0.1:9")
RUN = ("run", *URL)
DRAW = ("trace", "generate", "-o", "t.jsonl")
TWO = ("compare", "--target", "a=http://127.0.0.1:9", "--target", "b=http://127.0.0.1:9")
CANARY = "sk-canary-0123456789"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has an empty folder and no API key; what it sets is undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "")


def mistake(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that these words give; they exit with 2, print nothing and leave nothing."""
    before = sorted(Path().rglob("*"))
    code = main(list(words))
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert err.startswith("loadgen: ")
    assert "Traceback" not in err
    assert sorted(Path().rglob("*")) == before
    return err


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ((*DRAW, "--num-prompts", "0"), "--num-prompts"),
        ((*DRAW, "--num-prompts", "-3"), "--num-prompts"),
        ((*DRAW, "--num-prompts", "ten"), "--num-prompts"),
        ((*DRAW, "--num-prompts", "1.5"), "--num-prompts"),
        ((*DRAW, "--num-prompts", "nan"), "--num-prompts"),
        ((*DRAW, "--num-prompts", "inf"), "--num-prompts"),
        ((*DRAW, "--num-prompts"), "--num-prompts"),
        ((*RUN, "--goodput", "itl:5"), "--goodput"),
        ((*RUN, "--goodput", "ttft:-5"), "--goodput"),
        ((*RUN, "--goodput", "ttft"), "--goodput"),
        ((*RUN, "--goodput", "ttft:soon"), "--goodput"),
        ((*RUN, "--metrics-port", "70000"), "--metrics-port"),
        ((*RUN, "--linger"), "--metrics-port"),
        ((*RUN, "--max-concurency", "5"), "did you mean --max-concurrency?"),
        ((*DRAW, "--request-rate", "0"), "--request-rate"),
        ((*DRAW, "--request-rate", "-1"), "--request-rate"),
        ((*DRAW, "--request-rate", "nan"), "--request-rate"),
        ((*DRAW, "--request-rate", "-inf"), "--request-rate"),
        ((*DRAW, "--request-rate", "fast"), "--request-rate"),
        ((*DRAW, "--request-rate", "1e-320"), "--request-rate"),
        ((*DRAW, "--arrival", "uniform"), "--arrival"),
        ((*DRAW, "--arrival-cv", "0"), "--arrival-cv"),
        ((*DRAW, "--arrival-cv", "inf"), "--arrival-cv"),
        ((*DRAW, "--arrival-cv", "nan"), "--arrival-cv"),
        ((*DRAW, "--arrival-cv", "1e200"), "--arrival-cv"),
        ((*DRAW, "--burstiness", "0"), "--burstiness"),
        ((*DRAW, "--burstiness", "1e-320"), "--burstiness"),
        ((*DRAW, "--burstiness", "1", "--arrival-cv", "2"), "--burstiness"),
        ((*DRAW, "--seed", "-1"), "--seed"),
        ((*DRAW, "--seed", "4294967296"), "--seed"),
        ((*DRAW, "--input-mu", "nan"), "--input-mu"),
        ((*DRAW, "--input-sigma", "-1"), "--input-sigma"),
        ((*DRAW, "--input-min", "20", "--input-max", "10"), "--input-min"),
        ((*DRAW, "--output-min", "5000"), "--output-min"),
        ((*DRAW, "--input-len", "5", "--input-mu", "1"), "--input-len"),
        ((*DRAW, "--output-len", "0"), "--output-len"),
        ((*DRAW, "--preset", "lesson9"), "--preset"),
        ((*DRAW, "--preset", "lesson1", "--input-mu", "1"), "--preset"),
        ((*DRAW, "--colour", "red"), "--colour"),
        (("trace", "generate"), "--output"),
        (("trace", "generate", "-o", ""), "--output"),
        (("run",), "--base-url"),
        (("run", "--base-url", "ftp://h"), "--base-url"),
        (("run", "--base-url", "localhost:8000"), "--base-url"),
        (("run", "--base-url", ""), "--base-url"),
        (("run", "--base-url", "http://[::1"), "--base-url"),
        (("run", "--base-url", "http://h:port"), "--base-url"),
        ((*RUN, "--input-min", "20", "--input-max", "10"), "--input-min"),
        ((*RUN, "--preset", "lesson1", "--output-len", "4"), "--preset"),
        ((*RUN, "--max-concurrency", "0"), "--max-concurrency"),
        ((*RUN, "--num-warmups", "-1"), "--num-warmups"),
        ((*RUN, "--ready-timeout", "-1"), "--ready-timeout"),
        ((*RUN, "--temperature", "9"), "--temperature"),
        ((*RUN, "--temperature", "nan"), "--temperature"),
        ((*RUN, "--top-p", "0"), "--top-p"),
        ((*RUN, "--header", "nothing"), "--header"),
        ((*RUN, "--header", "X=über"), "--header"),
        ((*RUN, "--header"), "--header"),
        ((*RUN, "--extra-body", "{oops"), "--extra-body"),
        ((*RUN, "--extra-body", "[1]"), "--extra-body"),
        ((*RUN, "--endpoint", "/v2"), "--endpoint"),
        ((*RUN, "--transport", "pigeon"), "--transport"),
        ((*RUN, "--tokenizer", "/no/such/file"), "--tokenizer"),
        ((*RUN, "--connect-timeout", "0"), "--connect-timeout"),
        ((*RUN, "--total-timeout", "inf"), "--total-timeout"),
        ((*RUN, "--metric-percentiles", "101"), "--metric-percentiles"),
        ((*RUN, "--metric-percentiles", "p99"), "--metric-percentiles"),
        ((*RUN, "--metadata", "nothing"), "--metadata"),
        ((*RUN, "--label", "x" * 201), "--label"),
        ((*RUN, "--model", ""), "--model"),
        ((*RUN, "--api-key", "x", "--api-key-env", ""), "--api-key-env"),
        ((*RUN, "--api-key", "x", "--api-key-env", "A=B"), "--api-key-env"),
        ((*RUN, "--api-key", "ключ"), "--api-key"),
        ((*RUN, "--api-key", "x", "--api-key-file", "y"), "--api-key-file"),
        ((*RUN, "--api-key-file", "/no/such/file"), "--api-key-file"),
        ((*RUN, "--json=yes"), "--json"),
        (("compare",), "--target"),
        (("compare", "--target", "a=http://h"), "--target"),
        (("compare", "--target", "http://h", "--target", "b=http://h"), "--target"),
        (("compare", "--target", "a=http://h", "--target", "a=http://h"), "--target"),
        (("compare", "--target", "a b=http://h", "--target", "b=http://h"), "--target"),
        (("compare", "--target", "a=h", "--target", "b=http://h"), "--target"),
        (("compare", "--target"), "--target"),
        ((*TWO, "--request-rate", "0"), "--request-rate"),
        ((*TWO, "--target-model", "c=m"), "--target-model"),
        ((*TWO, "--target-model", "a="), "--target-model"),
        ((*TWO, "--target-api-key-env", "a=A B"), "--target-api-key-env"),
        ((*RUN, "--api-key", ""), "--api-key"),
        ((*RUN, "--api-key", "", "--service", "http://127.0.0.1:9"), "--api-key"),
        ((*RUN, "--max-concurrency", "9" * 23), "--max-concurrency"),
        ((*RUN, "--max-output-tokens-total", "9" * 23), "--max-output-tokens-total"),
        (("simulate", "--kv-blocks", "9" * 23), "--kv-blocks"),
        (("simulate", "--max-model-len", "9" * 23), "--max-model-len"),
        (("run", "t\udcff.jsonl", "--base-url", "http://h"), "UTF-8"),
        (("runs", "label", "r", "\udcff"), "UTF-8"),
        ((*RUN, "--metrics-host", "a..b", "--metrics-port", "0"), "--metrics-port"),
        ((*RUN, "--no-stream", "--goodput", "tpot:50"), "--goodput"),
        (("sweep", "--base-url", "http://h", "--rates", "1e9"), "--rates"),
        (
            ("capacity", "--base-url", "http://h", "--goodput", "e2el:5", "--max-rate", "1e9"),
            "--max-rate",
        ),
    ],
    ids=lambda value: " ".join(value)[:70] if isinstance(value, tuple) else "",
)
def test_a_wrong_flag_is_named_in_one_line(
    words: tuple[str, ...], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one line on standard error that names the flag as it is typed, no traceback."""
    assert flag in mistake(capsys, *words)


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ((*RUN, "--concurrency", "0"), "concurrency"),
        ((*DRAW, "--request-count", "0"), "--num-prompts"),
        ((*DRAW, "--isl", "0"), "--input-len"),
    ],
    ids=["--concurrency", "--request-count", "--isl"],
)
def test_a_wrong_alias_is_told_by_its_flag(
    words: tuple[str, ...], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value given by an alias is refused under the flag's own name."""
    assert flag in mistake(capsys, *words)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "COMMAND"),
        (("trace",), "ACTION"),
        (("runn",), "runn"),
        (("report",), "RUN_DIR"),
        (("report", "nowhere"), "nowhere: not a run directory"),
        ((*RUN, "nowhere.jsonl"), "nowhere.jsonl: cannot be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_word_is_named_in_one_line(
    words: tuple[str, ...], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing command, a wrong one, and files that are not there are told in one line."""
    assert part in mistake(capsys, *words)


def test_a_bad_trace_is_named_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A trace that cannot be used gives file and line, before any request."""
    Path("bad.jsonl").write_text('{"timestamp":0,"input_length":1,"output_length":1}\n{oops\n')
    assert "bad.jsonl:2: not JSON" in mistake(capsys, *RUN, "bad.jsonl")


def test_a_trace_and_laws_contradict(capsys: pytest.CaptureFixture[str]) -> None:
    """A trace file and a flag that draws one cannot both hold."""
    assert "--seed: the trace is given by t.jsonl" in mistake(
        capsys, *RUN, "t.jsonl", "--seed", "1"
    )


def test_help_is_pointed_at_for_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown flag of a command points at that command's own help."""
    assert "loadgen run --help" in mistake(capsys, *RUN, "--colour", "red")


@pytest.mark.parametrize(
    "words",
    [
        (*RUN, "--header", f"Authorization=Bearer {CANARY}", "trace.jsonl"),
        (*RUN, "--header", CANARY),
        (*RUN, "--header", f"X-Über={CANARY}"),
        (*RUN, "--extra-body", f'{{"key": {CANARY}'),
        (*RUN, "--api-key", CANARY, "--api-key-env", ""),
        (*RUN, "--api-key", CANARY, "--num-prompts", "0"),
        ("run", "--base-url", f"user:{CANARY}@h"),
        ("run", "--base-url", f"ftp://user:{CANARY}@h"),
        ("run", "--base-url", f"http://user:{CANARY}@h:port"),
        ("compare", "--target", f"http://user:{CANARY}@h", "--target", "b=http://h"),
    ],
    ids=["swallowed trace", "no value", "header name", "JSON", "env", "key", "no scheme", "ftp",
         "port", "no name"],
)  # fmt: skip
def test_a_mistake_does_not_print_a_secret(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Error lines end in logs: what may be a secret is not repeated in them."""
    assert CANARY not in mistake(capsys, *words)


@pytest.mark.parametrize(
    ("words", "model", "expected"),
    [
        (("--concurrency", "4"), LoadConfig, {"max_concurrency": 4}),
        (("--max-concurrency", "4"), LoadConfig, {"max_concurrency": 4}),
        (("--request-count", "7"), GeneratorConfig, {"num_prompts": 7}),
        (("--num-prompts", "7"), GeneratorConfig, {"num_prompts": 7}),
        (("--isl", "5"), GeneratorConfig, {"input_len": 5}),
        (("--osl", "5"), GeneratorConfig, {"output_len": 5}),
        (("--random-input-len", "5"), GeneratorConfig, {"input_len": 5}),
        (("--random-output-len", "5"), GeneratorConfig, {"output_len": 5}),
        (("--request-rate", "inf"), GeneratorConfig, {"request_rate": math.inf}),
        (("--burstiness", "0.5"), GeneratorConfig, {"burstiness": 0.5}),
        (("--seed", "3"), GeneratorConfig, {"seed": 3}),
        (("--served-model-name", "m"), RequestConfig, {"model": "m"}),
        (("--tokenizer", "x"), RequestConfig, {"tokenizer": Path("x")}),
        (("--endpoint", "/v1/completions"), RequestConfig, {"endpoint": "/v1/completions"}),
        (("--endpoint", "chat"), RequestConfig, {"endpoint": "/v1/chat/completions"}),
        (("--endpoint", "completions"), RequestConfig, {"endpoint": "/v1/completions"}),
        (("--header", "A: b=c"), RequestConfig, {"header": {"A": "b=c"}}),
        (("--metadata", "url=a:b"), OutputConfig, {"metadata": {"url": "a:b"}}),
        (("--goodput", "ttft:2", "e2el:5e3"), OutputConfig, {"goodput": {"ttft": 2, "e2el": 5000}}),
        (("--metrics-port", "0"), OutputConfig, {"metrics_port": 0}),
        (("--metrics-port", "1", "--linger"), OutputConfig, {"linger": True, "metrics_port": 1}),
        (("--no-stream",), RequestConfig, {"stream": False}),
        (("--ignore-eos",), RequestConfig, {"ignore_eos": True}),
        (("--no-ignore-eos",), RequestConfig, {"ignore_eos": False}),
        (("--insecure",), RequestConfig, {"insecure": True}),
        (("--temperature", "0.7"), RequestConfig, {"temperature": 0.7}),
        (("--top-p", "0.95"), RequestConfig, {"top_p": 0.95}),
        (("--extra-body", '{"a":1}'), RequestConfig, {"extra_body": {"a": 1}}),
        (("--header", "A=1", "B=2"), RequestConfig, {"header": {"A": "1", "B": "2"}}),
        (("--header", "A=1", "--header", "B=2"), RequestConfig, {"header": {"A": "1", "B": "2"}}),
        (("--num-warmups", "0"), LoadConfig, {"num_warmups": 0}),
        (("--metadata", "a=b", "c=d"), OutputConfig, {"metadata": {"a": "b", "c": "d"}}),
        (("--label", "x"), OutputConfig, {"label": "x"}),
        (("--result-dir", "x"), OutputConfig, {"result_dir": Path("x")}),
        (("--metric-percentiles", "25,75"), OutputConfig, {"metric_percentiles": (25.0, 75.0)}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
@pytest.mark.parametrize("command", [RUN, TWO], ids=["run", "compare"])
def test_flags_and_aliases(
    command: tuple[str, ...], words: tuple[str, ...], model: Any, expected: dict[str, Any]
) -> None:
    """The names that other tools use mean the same here, for a run and for a comparison."""
    given = take(model, build_parser().parse_args([*command, *words]))
    made = validate(model, given)
    assert {name: getattr(made, name) for name in expected} == expected
    assert made.model_fields_set == set(expected)


def test_url_is_base_url() -> None:
    """--url is another name of --base-url."""
    assert build_parser().parse_args(["run", "--url", "http://h"]).base_url == "http://h"


def test_abbreviations_are_no_flags(capsys: pytest.CaptureFixture[str]) -> None:
    """A beginning of a flag is not the flag: it might become ambiguous tomorrow."""
    assert "--num" in mistake(capsys, *DRAW, "--num", "3")


def commands(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """The words of every command."""
    yield words
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from commands(child, (*words, name))


@pytest.mark.parametrize("words", list(commands(build_parser())), ids=" ".join)
def test_every_command_has_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """--help exits with 0 and explains the command."""
    with pytest.raises(SystemExit) as caught:
        main([*words, "--help"])
    assert caught.value.code == 0
    assert "usage: loadgen" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints name and version."""
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"loadgen {__version__}\n"


def test_trace_generate(capsys: pytest.CaptureFixture[str]) -> None:
    """The command writes the file and its sidecar, and says what was drawn."""
    assert main([*DRAW, "--preset", "lesson1", "--num-prompts", "100"]) == 0
    out = capsys.readouterr().out
    assert "output tokens: 3,748 in all, mean 37.5" in out
    assert sorted(path.name for path in Path().iterdir()) == ["t.jsonl", "t.meta.json"]


def test_trace_generate_json(capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints the same as JSON, and nothing else."""
    assert main([*DRAW, "--preset", "lesson1", "--num-prompts", "64", "--json"]) == 0
    found = orjson.loads(capsys.readouterr().out)
    assert found["path"] == "t.jsonl"
    assert found["drawn"]["output_tokens"]["total"] == 2435
    assert orjson.loads(Path("t.meta.json").read_bytes())["sha256"] == found["sha256"]


def test_trace_generate_of_an_infinite_rate(capsys: pytest.CaptureFixture[str]) -> None:
    """The sidecar tells that an infinite rate was asked, which JSON has no number for."""
    assert main([*DRAW, "--request-rate", "inf", "--num-prompts", "3"]) == 0
    assert orjson.loads(Path("t.meta.json").read_bytes())["asked"]["request_rate"] is not None


@pytest.mark.parametrize("form", ["table", "JSON"])
def test_report(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`report` makes a run's results anew and prints them; SUSPECT is no error."""
    made_run(Path("run"), made_header("a"), [made_record(0, chunks=(1.0, 2.0), asked=2)])
    assert main(["report", "run", *(["--json"] if form == "JSON" else [])]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    if form == "JSON":
        found = orjson.loads(out)
        assert found["verdict"] == "SUSPECT"
        assert found["targets"]["a"]["output_tokens"] == 2
    else:
        assert "Verdict: SUSPECT" in out
        assert "run/report.html" in out


def test_report_of_an_invalid_run_exits_with_4(capsys: pytest.CaptureFixture[str]) -> None:
    """A verdict of INVALID is told by the exit code."""
    made_run(Path("run"), made_header("a", requests=9), [])
    assert main(["report", "run"]) == 4
    assert "Verdict: INVALID" in capsys.readouterr().out


def test_report_of_a_header_without_its_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    """A header that lacks what the report needs is a broken run directory, told in one line."""
    made_run(Path("run"), made_header("a", config={}), [made_record(0, chunks=(1.0,))])
    assert "header.json" in mistake(capsys, "report", "run")


def test_a_dry_run_sends_nothing_and_says_what_it_would(capsys: pytest.CaptureFixture[str]) -> None:
    """--dry-run needs no target: it prints requests, tokens and duration, and writes nothing."""
    words = ("--preset", "lesson1", "--num-prompts", "64", "--request-rate", "inf", "--dry-run")
    assert main([*TWO, *words, "--json"]) == 0
    found = orjson.loads(capsys.readouterr().out)
    assert found["requests"] == 2 * 64
    assert found["output_tokens"] == 2 * 2435
    assert found["duration_s"] == 0
    assert main([*TWO, *words]) == 0
    assert "4,870" in capsys.readouterr().out
    assert list(Path().iterdir()) == []


def test_a_dry_run_shows_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed of a target is its cleaned URL."""
    assert main(["run", "--base-url", f"http://user:{CANARY}@h", "--dry-run"]) == 0
    assert CANARY not in capsys.readouterr().out


def test_a_dry_run_finds_a_tokenizer_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """What would stop a run stops its rehearsal."""
    assert "--tokenizer" in mistake(capsys, *RUN, "--dry-run", "--tokenizer", "/no/such/file")


def test_the_report_of_a_comparison_prints_it_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """--json of several targets holds their ratios, as comparison.json does."""
    records = [made_record(0, target=name, chunks=(1.0, 2.0), asked=2) for name in ("a", "b")]
    made_run(Path("run"), made_header("a", "b"), records)
    main(["report", "run", "--json"])
    found = orjson.loads(capsys.readouterr().out)
    assert found["comparison"]["ratio"]["output_tokens"] == 1.0


_CTRL_C_AS_IT_LOADS = """
import sys
class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "loadgen.report":
            raise KeyboardInterrupt
sys.meta_path.insert(0, CtrlC())
from loadgen.__main__ import main
sys.exit(main())
"""


def test_ctrl_c_while_it_loads() -> None:
    """Its modules take a second to load, and Ctrl-C then is Ctrl-C as ever: a line, and 130."""
    words = [sys.executable, "-c", _CTRL_C_AS_IT_LOADS, "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "loadgen: interrupted\n")
