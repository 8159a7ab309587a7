"""Gates: what they read, what they hold, and what is noise."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from made_records import made_header, made_record, made_run

from loadgen.cli import main
from loadgen.columns import Columns
from loadgen.errors import ConfigError
from loadgen.gate import Finding, judge_gates, read_gate
from loadgen.record import Outcome, RequestRecord
from loadgen.report.gates import as_junit, as_markdown
from loadgen.slo import Slo
from loadgen.verdict import Grade


def drawn(seed: int, *, slower: float = 1.0, requests: int = 200, blocks: int = 5) -> Columns:
    """Requests of 8 tokens with log-normal times of their own."""
    rng = np.random.default_rng(seed)
    records = []
    for n in range(requests):
        start = float(n) + 500.0 * (n * blocks // requests)
        gap = 0.05 * slower * math.exp(0.3 * float(rng.normal()))
        chunks = tuple(start + gap * (k + 1) for k in range(8))
        records.append(
            made_record(n, due=start, chunks=chunks, asked=8, block=n * blocks // requests)
        )
    return Columns.of(records)


def found(
    text: str, run: Columns, baseline: Columns | None = None, slo: Slo | None = None
) -> Finding:
    (finding,) = judge_gates([read_gate(text)], run, baseline, slo)
    return finding


KNOWN: list[RequestRecord] = [
    made_record(n, due=n, start=n + 0.001, chunks=(n + 0.1, n + 0.2, n + 0.3)) for n in range(9)
] + [made_record(9, due=9, end=9.5, outcome=Outcome.HTTP_5XX)]


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("ttft_p50<100ms", True),
        ("ttft_p50<0.1s", True),
        ("ttft_p50<99ms", False),
        ("ttft_p50>98ms", True),
        ("ttft_from_due_mean<101ms", True),
        ("ttft_from_due_mean<99ms", False),
        ("tpot_p99.9<=101ms", True),
        ("itl_median>90ms", True),
        ("e2e_p90<300ms", True),
        ("e2el_p90<298ms", False),
        ("e2e_from_due_p99<300ms", False),
        ("schedule_lag_p99<2ms", True),
        ("error_share<=10%", True),
        ("error_share<10%", False),
        ("error_share<0.2", True),
        ("good_share>=0.9", True),
        ("output_throughput>2.8", True),
        ("output_throughput>3", False),
        ("request_throughput>0.9", True),
        ("goodput>0.9", True),
        (" ttft_p50 < 100 ms ", True),
    ],
)
def test_absolute_gates(text: str, passes: bool) -> None:
    """Each metric by its own formula, on records whose figures are known by hand."""
    finding = found(text, Columns.of(KNOWN), slo=Slo())
    assert finding.passed is passes, finding.text


def test_goodput_is_that_of_the_objectives() -> None:
    """A limit that the run was given decides what is good."""
    run = Columns.of(KNOWN)
    assert found("good_share<1%", run, slo=Slo(ttft_s=0.05)).passed
    assert found("good_share>89%", run, slo=Slo(ttft_s=0.15)).passed


@pytest.mark.parametrize("percent", range(101))
def test_a_share_of_exactly_the_limit_is_met(percent: int) -> None:
    """So many of 100 requests are so many per cent, whatever floating point makes of them."""
    assert read_gate(f"good_share>={percent}%").limit == percent / 100


@pytest.mark.parametrize("text", ["goodput>0", "good_share>=0%", "goodput>-5%"])
def test_without_objectives_nothing_is_good(text: str) -> None:
    """A run that was given no --goodput has none: its gate fails, and says what to give."""
    finding = found(text, Columns.of(KNOWN), Columns.of(KNOWN))
    assert not finding.passed
    assert "--goodput" in finding.text


@pytest.mark.parametrize(
    ("text", "before", "now", "passes"),
    [
        ("error_share<=+10%", 0, 0, True),
        ("error_share<+10%", 0, 0, True),
        ("error_share<=+10%", 0, 60, False),
        ("error_share<=+10%", 60, 0, True),
        ("error_share>=-10%", 0, 0, True),
    ],
)
def test_a_change_from_zero(text: str, before: int, now: int, passes: bool) -> None:
    """No errors before and now is no change; some where there were none are more than any share."""
    run, baseline = (
        Columns.of(
            made_record(n, due=n, outcome=Outcome.OK if n % 200 >= bad else Outcome.HTTP_5XX)
            for n in range(200)
        )
        for bad in (now, before)
    )
    finding = found(text, run, baseline)
    assert finding.passed is passes, finding.text
    assert "has no" not in finding.text


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("ttft_p99", "not an expression"),
        ("ttft_p99<", "not an expression"),
        ("ttft_p99=5ms", "not an expression"),
        ("ttft_p99<5", "ms or s"),
        ("ttft_p99<5%", "ms or s"),
        ("ttft_p99<+5ms", "a sign and a %"),
        ("error_share<5ms", "no unit"),
        ("ttft<5ms", "no such metric"),
        ("speed_p99<5ms", "no such metric"),
        ("ttft_p100<5ms", "between 0 and 100"),
        ("ttft_p0<5ms", "between 0 and 100"),
    ],
)
def test_what_cannot_be_read(text: str, part: str) -> None:
    """One line that says what is wrong with which expression."""
    with pytest.raises(ConfigError, match=part):
        read_gate(text)


def test_a_change_needs_a_baseline() -> None:
    """And says so."""
    with pytest.raises(ConfigError, match="--baseline"):
        found("e2e_p50<+5%", drawn(1))


def test_a_change_that_is_none_does_not_fail() -> None:
    """Two runs that differ by chance alone pass a tight gate in at least 19 of 20 pairs."""
    passed = [found("e2e_mean<+0.1%", drawn(2 * n), drawn(2 * n + 1)).passed for n in range(20)]
    assert sum(passed) >= 19


@pytest.mark.parametrize("text", ["e2e_mean<+3%", "ttft_p50<+3%", "tpot_mean<+3%"])
def test_a_change_that_is_one_fails(text: str) -> None:
    """A run of 600 that is 15 % slower fails a gate of 3 % in at least 19 of 20 pairs."""
    passed = []
    for n in range(20):
        run, before = drawn(2 * n, slower=1.15, requests=600), drawn(2 * n + 1, requests=600)
        passed.append(found(text, run, before).passed)
    assert sum(passed) <= 1


def test_noise_is_called_noise() -> None:
    """A change beyond the limit that chance could have made passes, and the text says why."""
    limits = [found("e2e_mean<+0.0001%", drawn(2 * n), drawn(2 * n + 1)) for n in range(10)]
    assert any("within the noise" in one.text for one in limits)


def test_what_the_run_does_not_have_fails() -> None:
    """A run without successes has no TTFT: its gate fails, and is no crash."""
    dead = Columns.of([made_record(n, due=n, outcome=Outcome.CONNECT) for n in range(5)])
    finding = found("ttft_p99<5s", dead)
    assert not finding.passed
    assert finding.value is None
    assert not found("ttft_p99<+5%", drawn(1), dead).passed


def test_tokens_that_nobody_told_are_no_throughput() -> None:
    """A gate on them fails, and does not hold because it is 0."""
    untold = Columns.of(made_record(n, due=n, end=n + 1.0) for n in range(5))
    finding = found("output_throughput<5", untold)
    assert (finding.passed, finding.value) == (False, None)


def test_the_same_records_give_the_same_findings() -> None:
    """The bootstrap is seeded."""
    first, second = (found("e2e_p99<+1%", drawn(1), drawn(2)) for _ in range(2))
    assert first == second


def test_junit() -> None:
    """A test case a gate; failures carry their reason."""
    findings = judge_gates(
        [read_gate("error_share<1%"), read_gate("ttft_p50<5s")], Columns.of(KNOWN), None, None
    )
    suite = ET.fromstring(as_junit("r1", findings, Grade.VALID))
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("2", "1")
    (failure,) = suite.iter("failure")
    assert "10.00%" in failure.attrib["message"]


def test_markdown_has_the_failures_first() -> None:
    """What a reader of a pull request looks for stands on top."""
    findings = judge_gates(
        [read_gate("ttft_p50<5s"), read_gate("error_share<1%")], Columns.of(KNOWN), None, None
    )
    lines = as_markdown("r1", findings, Grade.VALID).splitlines()
    assert "1 of 2 gates failed" in lines[0]
    assert "error_share" in lines[2]


def whole(count: int, slower: float = 1.0) -> list[RequestRecord]:
    return [
        made_record(n, due=n, chunks=tuple(n + 0.05 * slower * (k + 1) for k in range(4)))
        for n in range(count)
    ]


def run_of(path: Path, slower: float = 1.0) -> Path:
    return made_run(path, made_header("a", requests=150), whole(150, slower))


def test_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 where all hold, 3 where one fails, 2 for what cannot be read or is not there."""
    run, slow = str(run_of(tmp_path / "new")), str(run_of(tmp_path / "slow", 2.0))
    assert main(["check", run, "ttft_p99<500ms", "error_share<1%"]) == 0
    assert main(["check", run, "ttft_p99<5ms", "error_share<1%"]) == 3
    assert "FAILED" in capsys.readouterr().out
    assert main(["check", slow, "e2e_p50<+5%", "--baseline", run]) == 3
    assert main(["check", run, "e2e_p50<+5%", "--baseline", slow]) == 0
    assert main(["check", run, "e2e_p50<+5%"]) == 2
    assert main(["check", run, "nonsense"]) == 2
    assert main(["check", str(tmp_path), "error_share<1%"]) == 2
    assert main(["check", run, "error_share<1%", "--target", "b"]) == 2


def test_an_invalid_run_passes_no_gate(tmp_path: Path) -> None:
    """INVALID goes before a gate's own answer, whichever that is."""
    records = [made_record(n, due=n, outcome=Outcome.HTTP_5XX, end=n + 1.0) for n in range(150)]
    run = str(made_run(tmp_path / "run", made_header("a", requests=150), records))
    assert main(["check", run, "error_share<=100%"]) == 4
    assert main(["check", run, "error_share<1%"]) == 4


def test_an_invalid_run_fails_in_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JUnit has a failed case for the verdict, and Markdown says it in its heading."""
    run = str(made_run(tmp_path / "torn", made_header("a", requests=1000), whole(101)))
    junit, page = tmp_path / "junit.xml", tmp_path / "page.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    words = ("--junit", str(junit), "--github-summary")
    assert main(["check", run, "error_share<=1%", *words]) == 4
    (suites,) = ET.parse(junit).iter("testsuites")
    assert (suites.attrib["tests"], suites.attrib["failures"]) == ("2", "1")
    assert [
        case.attrib["name"] for case in suites.iter("testcase") if len(case.findall("failure"))
    ] == ["verdict"]
    heading, text = page.read_text().split("\n", 1)
    assert heading.endswith("the run is INVALID: its gates say nothing")
    assert "899 of 1000 requests have no record" in text
    assert "899 of 1000 requests have no record" in junit.read_text()


def test_an_unfinished_run_passes_with_its_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was killed may pass, and what its verdict says of it is printed."""
    run = str(made_run(tmp_path / "killed", made_header("a", requests=200), whole(101)))
    assert main(["check", run, "error_share<=1%"]) == 0
    assert "SUSPECT a: 99 of 200 requests have no" in capsys.readouterr().out


def test_an_invalid_baseline_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No change is measured from a run that says nothing; the line says why."""
    torn = str(made_run(tmp_path / "torn", made_header("a", requests=1000), whole(101)))
    run = str(run_of(tmp_path / "new"))
    assert main(["check", run, "e2e_p50<+5%", "--baseline", torn]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--baseline" in line
    assert "899 of 1000" in line


def test_a_baseline_of_another_trace_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The change may be the trace's: printed, and in the files; one trace says nothing."""
    run, junit = str(run_of(tmp_path / "new")), tmp_path / "junit.xml"
    other = made_header("a", requests=150, trace_sha256="1" * 64)
    before = str(made_run(tmp_path / "other", other, whole(150)))
    assert main(["check", run, "e2e_p50<+5%", "--baseline", before, "--junit", str(junit)]) == 0
    said = "the baseline's trace is another (111111111111, not 000000000000)"
    assert said in capsys.readouterr().out
    assert said in junit.read_text()
    assert main(["check", run, "e2e_p50<+5%", "--baseline", run]) == 0
    assert "another" not in capsys.readouterr().out


def test_a_simulation_is_checked_in_iterations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second of it is an iteration, and no message tells ms of it; beside a measurement it is
    told."""
    config = made_header().config | {"costs": {"a": "iterations"}}
    header = made_header("a", requests=150, kind="simulate", config=config)
    path = str(made_run(tmp_path / "simulated", header, whole(150, 20.0)))
    assert main(["check", path, "e2e_p50<3s", "output_throughput>1"]) == 3
    shown = capsys.readouterr().out
    assert "e2e_p50<3s: FAILED: it is 4.0 iterations" in shown
    assert "/iteration" in shown
    assert "simulated, not measured" in shown
    before = str(run_of(tmp_path / "measured"))
    assert main(["check", path, "e2e_p50<+5%", "--baseline", before]) == 3
    assert "one is simulated and the other measured" in capsys.readouterr().out


def test_files_for_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JUnit XML where it was asked for, and Markdown appended to what the CI names."""
    run, page = str(run_of(tmp_path / "run")), tmp_path / "page.md"
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert main(["check", run, "error_share<1%", "--github-summary"]) == 2
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    page.write_text("before\n")
    words = ("--github-summary", "--junit", str(tmp_path / "junit.xml"))
    assert main(["check", run, "error_share<1%", *words]) == 0
    assert page.read_text().startswith("before\n### loadgen")
    assert (tmp_path / "junit.xml").read_bytes().startswith(b"<?xml")
    assert main(["check", run, "error_share<1%", "--junit", str(tmp_path / "no" / "j.xml")]) == 2
