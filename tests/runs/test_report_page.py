"""Pages of real runs in a real browser: wide and narrow, light and dark, by keyboard, by axe.

Needs Chromium (Debian's package `chromium`), which CI installs; without one, these tests skip.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from tests.runs.conftest import call, truth

pytestmark = pytest.mark.slow

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
WIDE: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 400, "height": 800}
SIZES = pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
SCHEMES = pytest.mark.parametrize("scheme", ["light", "dark"])


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two truth servers of different timing, in blocks, with failures."""
    folder = tmp_path_factory.mktemp("runs")
    slow = ("--ttft-ms", "60", "--itl-ms", "8", "--ttft-dist", "lognormal", "--ttft-cv", "0.8")
    fast = ("--ttft-ms", "15", "--itl-ms", "3", "--itl-dist", "lognormal", "--itl-cv", "0.5")
    fault = ("--fault", '{"kind": "truncate", "after_tokens": 3}', "--fault-from", "70")
    with truth(*slow) as first, truth(*fast, *fault) as second:
        done = call(
            "compare", "--target", f"static={first}",
            "--target", f"vllm={second}", "--blocks", "4", "--num-prompts", "80",
            "--request-rate", "40", "--goodput", "ttft:50", "--result-dir", str(folder), "--json",
            "--label", "two servers of different timing",
        )  # fmt: skip
    assert done.code in (0, 4), done.stderr
    return done.path / "report.html"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of a truth server with four slots."""
    folder = tmp_path_factory.mktemp("sweeps")
    with truth("--ttft-ms", "40", "--itl-ms", "5", "--slots", "4") as url:
        done = call(
            "sweep", "--base-url", url, "--concurrencies", "1,2,4,8", "--num-prompts", "20",
            "--seconds-per-point", "0", "--input-len", "10", "--output-len", "4",
            "--goodput", "ttft:60", "--result-dir", str(folder), "--json",
        )  # fmt: skip
    assert done.code in (0, 4), done.stderr
    return Path(done.summary["directory"]) / "report.html"


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a simulation, with the page of --plots in a folder beside it."""
    folder = tmp_path_factory.mktemp("simulations")
    done = call(
        "simulate", "--num-prompts", "80", "--request-rate", "inf", "--json",
        "--result-dir", str(folder), "--plots", str(folder / "plots"),
    )  # fmt: skip
    assert done.code == 0, done.stderr
    return done.path / "report.html"


@pytest.fixture(scope="module")
def policies(simulation: Path) -> Path:
    """The page of --plots."""
    return simulation.parents[1] / "plots" / "index.html"


PLOTS = {"report": 10, "sweep": 4, "simulation": 12, "policies": 6}
"""Of each page, by the fixture that makes it."""


@pytest.fixture(params=PLOTS)
def page_file(request: pytest.FixtureRequest) -> Path:
    """Each of the pages."""
    file: Path = request.getfixturevalue(request.param)
    return file


@pytest.fixture
def plots(request: pytest.FixtureRequest, page_file: Path) -> int:
    """How many it has."""
    return PLOTS[request.node.callspec.params["page_file"]]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Headless Chromium."""
    if not CHROMIUM:
        pytest.skip("no Chromium on PATH: apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def opened(browser: Browser, report: Path, size: ViewportSize, scheme: str, **more: bool) -> Page:
    assert scheme in ("light", "dark")
    page = browser.new_context(
        viewport=size, color_scheme="dark" if scheme == "dark" else "light", **more
    ).new_page()
    page.goto(report.as_uri())
    return page


@SIZES
@SCHEMES
def test_axe_finds_nothing(
    browser: Browser, page_file: Path, size: ViewportSize, scheme: str
) -> None:
    """No violation of any weight, with every table of values opened."""
    page = opened(browser, page_file, size, scheme)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    found = Axe().run(page).response["violations"]
    assert [(rule["id"], rule["impact"], rule["nodes"][0]["html"]) for rule in found] == []
    page.context.close()


def test_axe_would_find_something(browser: Browser, report: Path) -> None:
    """The check can fail: a page without a language and with faint text is not passed."""
    page = opened(browser, report, WIDE, "light")
    page.evaluate("document.documentElement.removeAttribute('lang')")
    page.add_style_tag(content=".soft { color: #bbbbbb !important }")
    found = {rule["id"] for rule in Axe().run(page).response["violations"]}
    assert {"html-has-lang", "color-contrast"} <= found
    page.context.close()


@pytest.mark.parametrize("width", [320, 400, 640, 833, 1280])
def test_the_page_never_scrolls_sideways(
    browser: Browser, page_file: Path, plots: int, width: int
) -> None:
    """At no width, and one drawing of each plot is seen, its letters of at least 9 pixels."""
    page = opened(browser, page_file, {"width": width, "height": 800}, "light")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("figure").count() == plots
    assert page.locator("figure svg:visible").count() == plots
    for drawing in page.locator("figure svg:visible").all():
        box = drawing.bounding_box()
        drawn = re.match(r"0 0 (\d+)", drawing.get_attribute("viewBox") or "")
        assert box is not None
        assert drawn is not None
        assert 12 * box["width"] / int(drawn[1]) >= 9
    page.context.close()


def test_nothing_is_fetched_and_no_script_is_needed(
    browser: Browser, page_file: Path, plots: int
) -> None:
    """The file alone is read, nothing is logged, and it is whole with scripts switched off."""
    page = browser.new_context(java_script_enabled=False).new_page()
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.goto(page_file.as_uri())
    assert asked == [page_file.as_uri()]
    assert said == []
    assert page.locator("figure svg:visible").count() == plots
    summary = page.locator("figure summary").first
    summary.click()
    assert page.locator("figure table:visible").count() == 1
    page.context.close()


def test_a_keyboard_reaches_everything(browser: Browser, report: Path) -> None:
    """The skip link is first; what has the focus shows it."""
    page = opened(browser, report, WIDE, "light")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    seen: set[str] = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "(() => { const e = document.activeElement; return [e.tagName, e.className,"
            " getComputedStyle(e).outlineStyle]; })()"
        )
        if focused[0] == "BODY":
            break
        seen.add(focused[0])
        assert focused[2] != "none", focused
    assert {"A", "DIV", "SUMMARY"} <= seen
    page.context.close()


def test_a_formula_is_one_click_away(browser: Browser, report: Path) -> None:
    """A figure's name leads to its definition, also when the skip link had the focus before."""
    page = opened(browser, report, PHONE, "light")
    page.keyboard.press("Tab")
    page.get_by_role("link", name="ITL p99, ms").click()
    assert page.locator(":target").inner_text() == "ITL"
    assert page.locator(":target").is_visible()
    page.context.close()


def test_marks_tell_their_values_to_a_mouse(browser: Browser, report: Path) -> None:
    """The uppermost element at a dot is the dot, and its title holds target and values."""
    page = opened(browser, report, WIDE, "light")
    dot = page.locator("#plot-end-to-end-latency-by-output-length ~ .wide path:has(title)").last
    dot.scroll_into_view_if_needed()
    title = dot.evaluate(
        "dot => { const b = dot.getBoundingClientRect();"
        " return document.elementFromPoint(b.x + b.width / 2, b.y + b.height / 2)"
        ".querySelector('title').textContent }"
    )
    assert re.match(r"(static|vllm): output tokens \d+, E2E, seconds [\d.]+$", title)
    page.context.close()
