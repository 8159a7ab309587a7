"""The report's page: it renders, it is self-contained, and no text of others becomes mark-up."""

from __future__ import annotations

import html
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_records import made_header, made_record, made_run

from loadgen.record import Outcome, RequestRecord, RunHeader, TargetInfo
from loadgen.report import rebuild
from loadgen.report.figures import rows_of
from loadgen.report.formulas import FORMULAS, formula_of

EVIL = "<script>alert(1)</script>"
QUOTES = "\"'><img src=x onerror=alert(1)>"


def records_of(target: str, *, error: str | None = None) -> list[RequestRecord]:
    good = [
        made_record(n, target=target, due=n * 0.5, chunks=(n + 1.0, n + 1.5, n + 2.0))
        for n in range(6)
    ]
    return [
        *good,
        made_record(6, target=target, due=3.0, end=9.0, outcome=Outcome.HTTP_5XX, error=error),
    ]


def page_of(path: Path, header: RunHeader, records: list[RequestRecord]) -> str:
    rebuild(made_run(path, header, records))
    return (path / "report.html").read_text()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a sound comparison."""
    header = made_header(
        "static", "vllm", requests=7, label="a label", metadata={"gpu": "none"},
        command=("loadgen", "compare", "--label", "a label"),
    )  # fmt: skip
    path = tmp_path_factory.mktemp("runs") / "run"
    return page_of(path, header, records_of("static") + records_of("vllm"))


@pytest.fixture(scope="module")
def evil_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a run in which every text that others wrote is an attack."""
    name, other = f"t{EVIL}", f"u{QUOTES}"
    targets = tuple(
        TargetInfo(
            name=name, base_url=f"http://h/{EVIL}", endpoint=EVIL, model=EVIL + QUOTES,
            features=(EVIL,), server=EVIL,
        )
        for name in (name, other)
    )  # fmt: skip
    header = made_header(
        name, other, targets=targets, requests=7, label=EVIL + QUOTES, run_id=EVIL,
        metadata={EVIL: QUOTES, QUOTES: EVIL}, command=("loadgen", EVIL, QUOTES),
        trace_name=EVIL, transport=EVIL, versions={EVIL: EVIL}, machine={"cpu": EVIL},
        started_at=EVIL, trace_sha256=EVIL,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("runs") / "run"
    records = records_of(name, error=EVIL) + records_of(other, error=QUOTES)
    return page_of(path, header, records)


class Elements(HTMLParser):
    """Every start tag with its attributes, as a browser sees them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_shows_the_run(page: str) -> None:
    """Label, verdict, figures, plots, command and metadata are in it."""
    text = html.unescape(page)
    for part in ("a label", "SUSPECT", "INVALID", "output tokens/s", "TTFT p99, ms",
                 "vllm / static", "1.00x", "<svg", "loadgen compare --label 'a label'", "gpu",
                 "none", "schedule lag p99", "7 requests to each target"):  # fmt: skip
        assert part in text, part
    assert page.count("<svg") == 2 * 10
    assert "Latencies are of the requests that succeeded: static 6 of 7, vllm 6 of 7." in text


def test_the_page_is_closed_html(page: str) -> None:
    """Every element that needs it is closed, in order."""
    void = {"meta", "link", "br", "img", "hr", "input"}
    stack: list[str] = []

    class Check(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in void:
                stack.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert stack.pop() == tag

    Check().feed(page)
    assert stack == []


@pytest.mark.parametrize("which", ["page", "evil_page"])
def test_the_page_runs_no_script(which: str, request: pytest.FixtureRequest) -> None:
    """No script, no event attribute, no frame, no form: not even where a text asks for it."""
    for tag, attributes in Elements(request.getfixturevalue(which)).found:
        assert tag not in ("script", "iframe", "object", "embed", "form", "base", "img")
        assert not [name for name in attributes if name.startswith("on")]


@pytest.mark.parametrize("which", ["page", "evil_page"])
def test_the_page_fetches_nothing(which: str, request: pytest.FixtureRequest) -> None:
    """No attribute and no style names a resource elsewhere: the page opens without a network."""
    page = request.getfixturevalue(which)
    for tag, attributes in Elements(page).found:
        assert tag != "link"
        for name, value in attributes.items():
            if name in ("src", "srcset", "href", "xlink:href", "data", "action", "poster"):
                assert value is not None
                assert value.startswith(("#", "data:")), (tag, name, value)
            if name == "style":
                assert "http" not in (value or "")
    for style in re.findall(r"<style.*?</style>", page, re.DOTALL):
        assert "@import" not in style
        assert "http" not in style
    assert not re.search(r"url\(\s*['\"]?(?!['\"]?(#|data:))", page)
    assert "@import" not in page


def test_the_policy_forbids_what_the_page_does_not_do(page: str) -> None:
    """A browser is told to run and fetch nothing, should a text ever get through."""
    policies = [
        attributes["content"]
        for tag, attributes in Elements(page).found
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policies) == 1
    assert "default-src 'none'" in (policies[0] or "")


def test_no_text_of_others_becomes_markup(evil_page: str) -> None:
    """Names, labels, metadata, commands, models: shown as they are, and never as elements."""
    assert EVIL not in evil_page
    assert "<script" not in evil_page.lower()
    assert "<img" not in evil_page.lower()
    assert EVIL in html.unescape(evil_page)


def test_no_text_of_others_becomes_markup_in_a_plot(evil_page: str) -> None:
    """The plots' legends show target names, escaped."""
    drawings = re.findall(r"<svg.*?</svg>", evil_page, re.DOTALL)
    assert len(drawings) == 2 * 10
    assert sum("&lt;script" in drawing for drawing in drawings) >= 2 * 8
    for drawing in drawings:
        assert "<script" not in drawing


def test_a_page_of_nothing(tmp_path: Path) -> None:
    """A run that was killed before its first answer has a page that says so."""
    page = page_of(tmp_path / "run", made_header("a", requests=5), [])
    assert "no request succeeded" in page
    assert "No request left anything to draw." in page


def test_torn_records_are_told(tmp_path: Path) -> None:
    """The page says how many records a kill cut short."""
    path = made_run(tmp_path / "run", made_header("a", requests=7), records_of("a"))
    with (path / "records-0.jsonl").open("ab") as file:
        file.write(b'{"seq":7,"tar')
    result = rebuild(path)
    assert result.run.torn_lines == 1
    assert "torn records" in (path / "report.html").read_text()


def test_results_are_made_anew_the_same(tmp_path: Path) -> None:
    """Making the results twice gives the same bytes: they hang on the run directory alone."""
    path = made_run(tmp_path / "run", made_header("a", requests=7), records_of("a"))
    rebuild(path)
    first = {file: (path / file).read_bytes() for file in ("summary.json", "report.html")}
    rebuild(path)
    assert {file: (path / file).read_bytes() for file in first} == first
    assert not list(path.glob(".*")), "no partial file is left"


@pytest.mark.parametrize("names", [("a",), ("a", "b"), ("a", "b", "c")], ids=len)
def test_comparison_json_is_there_for_several_targets(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    """One target has a summary; several have a comparison as well."""
    records = [record for name in names for record in records_of(name)]
    path = made_run(tmp_path / "run", made_header(*names, requests=7), records)
    rebuild(path)
    made = {file.name for file in path.iterdir()}
    assert {"summary.json", "report.html", "records.parquet"} <= made
    assert ("comparison.json" in made) is (len(names) > 1)


def test_the_page_is_for_keyboards_and_screen_readers(page: str) -> None:
    """A language, a skip link, headings without gaps, captions and scopes, and links that lead."""
    found = Elements(page).found
    assert ("html", {"lang": "en"}) in found
    levels = [int(tag[1]) for tag, _ in found if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert page.count("<table>") == page.count("<caption")
    assert all(
        attributes.get("scope") in ("row", "col") for tag, attributes in found if tag == "th"
    )
    ids = [attributes["id"] for _, attributes in found if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [str(attributes["href"]) for tag, attributes in found if tag == "a"]
    assert "#main" in links
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_each_row_leads_to_its_formula(tmp_path: Path) -> None:
    """Every figure of the table has a definition, and each definition is in docs/metrics.md."""
    path = made_run(tmp_path / "run", made_header("a", "b", requests=7), records_of("a"))
    config = {"load": {}, "output": {"metric_percentiles": [50], "goodput": {"ttft": 10}}}
    header = made_header("a", requests=7, config=config)
    path = made_run(tmp_path / "run", header, [])
    result = rebuild(path)
    for row in rows_of(result.summaries, result.percentiles):
        assert formula_of(row.title) is not None, row.title
    documented = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text()
    told = dict(re.findall(r"^\| ([^|`]+) \| (.+) \|$", documented.partition("\n\n- ")[0], re.M))
    plain = {name: text.replace("`", "") for name, text in told.items()}
    plain.pop("figure")
    plain.pop("---")
    assert plain == {formula.name: formula.text for formula in FORMULAS}
