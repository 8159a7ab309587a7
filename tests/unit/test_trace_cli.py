"""The commands of `loadgen trace`, from words to files, and what they print."""

from __future__ import annotations

import re
import shlex
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import orjson
import pytest
from rich.console import Console

from loadgen.cli import main
from loadgen.trace import Trace, read_trace, write_trace
from loadgen.trace.inspect import inspect
from loadgen.trace_report import render_page
from loadgen.trace_report.rows import shown
from loadgen.trace_report.text import bars, print_inspection

DRAW = ("trace", "generate", "-o", "t.jsonl")
AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has an empty folder."""
    monkeypatch.chdir(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command that succeeds prints."""
    assert main(list(words)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def mistake(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a mistake gives; it exits with 2 and leaves no new file."""
    before = sorted(Path().rglob("*"))
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("loadgen: ")
    assert sorted(Path().rglob("*")) == before
    return err


def test_generate_tells_asked_and_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    """A table of both, with rate, CV, dispersion, lengths and distances; and what clamping does."""
    out = run(capsys, *DRAW, "--num-prompts", "3000", "--request-rate", "8", "--input-mean", "2048",
              "--input-cv", "0.9")  # fmt: skip
    for line in (
        r"rate, 1/s +8 +\d", r"CV of the gaps +1.5 +\d", r"dispersion at 10 s", r"input p99 +1,024",
        r"output KS distance +under 0.025 +0.0", "from 2,048 to 9",
    ):  # fmt: skip
        assert re.search(line, out), line
    side = orjson.loads(Path("t.meta.json").read_bytes())
    assert side.keys() == {"asked", "law", "drawn", "ks", "sha256"}
    assert side["sha256"] in out


def test_exact_rate(capsys: pytest.CaptureFixture[str]) -> None:
    """--exact-rate: the file itself has the asked rate."""
    run(capsys, *DRAW, "--num-prompts", "64", "--request-rate", "8", "--exact-rate")
    trace, _ = read_trace(Path("t.jsonl"))
    assert 63 / trace.duration_s == pytest.approx(8.0, rel=1e-12)


def test_an_existing_output_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    """A second trace takes the place of the first."""
    run(capsys, *DRAW, "--num-prompts", "9")
    run(capsys, *DRAW, "--num-prompts", "3")
    assert len(read_trace(Path("t.jsonl"))[0]) == 3


def test_import_counts_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """Each row left out or changed is in what is printed, and in the sidecar."""
    Path("a.csv").write_bytes(
        AZURE
        + b"2024-05-10 00:00:00,5,5\noops\n2024-05-10 00:00:01,0,5\n2024-05-10 00:00:02,900,5\n"
        b"2024-05-10 00:00:03,9,5\n2024-05-10 00:00:09,9,5\n"
    )
    words = shlex.split(
        "trace import azure a.csv -o t.jsonl --broken drop --max-context 100 --oversized clamp "
        "--to 5 --speedup 2"
    )
    out = run(capsys, *words)
    assert "rows: 6 read, 3 kept" in out
    for line in (
        "1 left out: cannot be read",
        "1 left out: no prompt or no output tokens",
        "1 shortened: over --max-context",
        "1 left out: outside of the time window",
    ):
        assert f"  {line}\n" in out
    side = orjson.loads(Path("t.meta.json").read_bytes())
    assert side["imported"]["file"] == "a.csv"
    assert side["imported"]["options"]["speedup"] == 2.0
    assert side["imported"]["rows"]["oversized_clamped"] == 1
    assert read_trace(Path("t.jsonl"))[0].timestamp_ms.tolist() == [0.0, 1000.0, 1500.0]
    found = orjson.loads(run(capsys, *words, "--json"))
    assert found["imported"]["rows"]["kept"] == 3
    assert found["sha256"] == side["sha256"]


def test_fit_prints_flags_that_work(capsys: pytest.CaptureFixture[str]) -> None:
    """The last line of `fit` is a command that runs as it stands."""
    run(capsys, *DRAW, "--num-prompts", "3000", "--request-rate", "8")
    out = run(capsys, "trace", "fit", "t.jsonl")
    for name in ("lognormal-2", "gamma", "weibull", "exponential", "lognormal-free"):
        assert name in out
    command = shlex.split(out.splitlines()[-1])
    assert command[:3] == ["loadgen", "trace", "generate"]
    run(capsys, *command[1:])
    found = orjson.loads(run(capsys, "trace", "fit", "t.jsonl", "--json"))
    assert found["flags"] == command[3:-2]
    assert found["fits"]["gaps_s"][0]["law"] == "lognormal"
    assert {"ks", "log_likelihood", "aic", "parameters"} <= found["fits"]["gaps_s"][0].keys()


def test_fit_says_what_no_law_gives(capsys: pytest.CaptureFixture[str]) -> None:
    """A coarse clock and a drifting rate are told."""
    run(capsys, *DRAW, "--num-prompts", "4000", "--rate-profile", "steps:1@100,30@100")
    assert "the rate drifts" in run(capsys, "trace", "fit", "t.jsonl")
    run(capsys, "trace", "export", "t.jsonl", "--format", "csv", "-o", "t.csv")
    rows = Path("t.csv").read_text().splitlines()
    coarse = [rows[0]] + [f"{float(row.split(',')[0]) // 3000 * 3000},1,1" for row in rows[1:]]
    Path("t.csv").write_text("\n".join(coarse))
    run(capsys, "trace", "import", "csv", "t.csv", "-o", "t.jsonl")
    out = run(capsys, "trace", "fit", "t.jsonl")
    assert re.search(r"\d+% of the gaps are 0", out)
    assert "--dither" in out


class Tags(HTMLParser):
    """Collects tags and the values of attributes that may load something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href")
        ]


def test_inspect_writes_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    """A table and histograms in the terminal; a page with three plots, no script and no network."""
    run(capsys, *DRAW, "--num-prompts", "3000", "--request-rate", "8")
    out = run(capsys, "trace", "inspect", "t.jsonl", "--html", "t.html")
    assert re.search(r"requests +3,000", out)
    assert "█" in out
    page = Path("t.html").read_text()
    parsed = Tags()
    parsed.feed(page)
    assert parsed.tags.count("svg") == 2 * 3
    assert "script" not in parsed.tags
    assert all(link.startswith("#") for link in parsed.links)
    assert "://" not in page.replace("http://www.w3.org/", "")
    assert "prefers-color-scheme: dark" in page
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(svg)
    found = orjson.loads(run(capsys, "trace", "inspect", "t.jsonl", "--json"))
    assert sum(found["histograms"]["input_tokens"]["counts"]) == 3000
    assert sum(found["histograms"]["arrivals_s"]["counts"]) == 3000
    assert found["dispersion_by_window_s"]


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("rate", ["1", "inf"])
def test_small_traces_are_shown(capsys: pytest.CaptureFixture[str], n: int, rate: str) -> None:
    """A trace of one row, or one that is all due at once, is shown and fitted without an error."""
    run(capsys, *DRAW, "--num-prompts", str(n), "--request-rate", rate)
    run(capsys, "trace", "inspect", "t.jsonl", "--html", "t.html")
    run(capsys, "trace", "fit", "t.jsonl")
    for form in ("mooncake", "azure", "csv", "parquet"):
        assert main(["trace", "export", "t.jsonl", "--format", form, "-o", "x"]) == 0


def test_the_page_escapes_its_texts() -> None:
    """A file's name is text, whatever it is called."""
    trace = Trace(np.array([0.0, 5.0]), np.array([1, 2]), np.array([3, 4]))
    page = render_page("<script>x</script>.jsonl", "0" * 64, inspect(trace))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_figures_by_hand() -> None:
    """Histogram edges hold every row, and the table says what the trace has."""
    times = np.array([0.0, 0.0, 1000.0, 2000.0, 4000.0])
    found = inspect(Trace(times, np.array([1, 1, 10, 100, 1000]), np.array([5, 5, 5, 5, 5])))
    assert sum(found.arrivals.counts) == sum(found.input_tokens.counts) == 5
    assert found.input_tokens.edges[0] == 1
    assert found.input_tokens.edges[-1] == 1001
    assert (found.output_tokens.edges, found.output_tokens.counts) == ([5.0, 6.0], [5])
    assert found.figures["zero_gaps"] == 0.25
    assert found.figures["gap_ms"]["p50"] == 1000.0
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_inspection(found, console)
    assert re.search(r"gaps of 0, % +25", console.export_text())
    console.file.close()


def test_bars() -> None:
    """The highest bin is full, an empty one is a space, and no more than 60 are shown."""
    assert bars([0, 1, 4, 8]) == " ▂▅█"
    assert len(bars([1] * 1000)) <= 60
    assert bars([5]) == "█"


def test_numbers_as_shown() -> None:
    """Four digits, separators, and a dash for what is not known."""
    assert [shown(value) for value in (None, float("nan"), float("inf"), 0.0, 1234567, 8.0)] == [
        "–", "–", "inf", "0", "1,234,567", "8",
    ]  # fmt: skip
    assert [shown(value) for value in (5.53014, 0.000012345, 2047.8, 12)] == [
        "5.53", "1.23e-05", "2,048", "12",
    ]  # fmt: skip


def test_export_says_what_it_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error; the file's name on standard output."""
    run(capsys, *DRAW, "--num-prompts", "50", "--request-rate", "8")
    assert main(["trace", "export", "t.jsonl", "--format", "burstgpt", "-o", "b.csv"]) == 0
    out, err = capsys.readouterr()
    assert out == "b.csv  50 requests as burstgpt\n"
    assert err.startswith("loadgen: times are rounded to whole seconds: moved by up to ")
    assert run(capsys, "trace", "export", "t.jsonl", "--format", "csv", "-o", "c.csv")
    words = ("trace", "export", "t.jsonl", "--format", "azure", "-o", "a.csv", "--start",
             "2024-01-31 12:00:00")  # fmt: skip
    assert main(list(words)) == 0
    assert Path("a.csv").read_text().splitlines()[1].startswith("2024-01-31 12:00:00.0000000,")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("import",), "FORMAT"),
        (("import", "csvv", "x", "-o", "y"), "csvv"),
        (("import", "azure", "none.csv", "-o", "y.jsonl"), "none.csv: cannot be read"),
        (("import", "azure", "a.csv"), "--output"),
        (("import", "azure", "a.csv", "-o", ""), "--output"),
        (("import", "azure", "a.csv", "-o", "y", "--zero", "keep"), "--zero"),
        (("import", "azure", "a.csv", "-o", "y", "--limit", "0"), "--limit"),
        (("import", "azure", "a.csv", "-o", "y", "--speedup", "0"), "--speedup"),
        (("import", "azure", "a.csv", "-o", "y", "--arrival-cv", "2"), "--arrival-cv"),
        (("import", "azure", "a.csv", "-o", "y", "--oversized", "drop"), "--oversized"),
        (("import", "azure", "a.csv", "-o", "y", "--time-unit", "days"), "--time-unit"),
        (("import", "azure", "a.csv", "-o", "y", "--from", "noon"), "--from"),
        (("import", "sharegpt", "a.csv", "-o", "y"), "--tokenizer"),
        (("import", "sharegpt", "a.csv", "-o", "y", "--tokenizer", "/none"), "--tokenizer"),
        (("import", "burstgpt", "a.csv", "-o", "y"), "a.csv:1: no column 'Request tokens'"),
        (("fit", "none.jsonl"), "none.jsonl: cannot be read"),
        (("inspect", "a.csv"), "a.csv:1: "),
        (("inspect", "none.jsonl", "--html", "x.html"), "none.jsonl"),
        (("inspect", "t.jsonl", "--html", "."), "a file name is needed"),
        (("export", "t.jsonl", "-o", "x"), "--format"),
        (("export", "t.jsonl", "-o", "x", "--format", "xml"), "--format"),
        (("export", "t.jsonl", "-o", "x", "--format", "csv", "--start", "2024-01-01 00:00:00"),
         "--start"),
        (("export", "t.jsonl", "-o", "x", "--format", "azure", "--start", "noon"), "--start"),
        (("generate", "-o", "x", "--rate-profile", "up"), "--rate-profile"),
        (("generate", "-o", "x", "--rate-profile", "trace:none.jsonl"), "none.jsonl"),
        (("generate", "-o", "x", "--lengths-from", "none.jsonl"), "none.jsonl"),
        (("generate", "-o", "x", "--input-mean", "9"), "--input-cv"),
        (("generate", "-o", "x", "--input-law", "gamma"), "--input-law"),
        (("generate", "-o", "x", "--input-mix", "1:2"), "--input-mix"),
    ],
)  # fmt: skip
def test_mistakes(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    """One line that names the flag or the place; nothing is written."""
    Path("a.csv").write_bytes(AZURE + b"2024-05-10 00:00:00,5,5\n")
    write_trace(Path("t.jsonl"), Trace(np.zeros(1), np.ones(1, int), np.ones(1, int)), {})
    assert said in mistake(capsys, "trace", *words)


def test_a_drawn_run_takes_the_new_laws(capsys: pytest.CaptureFixture[str]) -> None:
    """`loadgen run` draws from the same flags: a mistake in one is told before anything is sent."""
    url = ("--base-url", "http://127.0.0.1:9")
    assert "--rate-profile" in mistake(capsys, "run", *url, "--rate-profile", "ramp:1:2")
    assert "none.jsonl" in mistake(capsys, "run", *url, "--lengths-from", "none.jsonl")
