"""The page in a real browser, with toy servers as targets: start, watch, stop, compare, report; by
keyboard, by axe, on a phone.

Needs Chromium (Debian's package `chromium`), which CI installs; without one, these tests skip.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from servers.local import start_toy
from tests.runs.conftest import call
from tests.service.conftest import ENVIRONMENT, TOKEN, Serving, service

pytestmark = pytest.mark.slow

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
WIDE: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 400, "height": 800}
SHOTS = os.environ.get("LOADGEN_SCREENSHOTS")
"""A folder that screenshots are written to, for people to look at."""


@contextmanager
def toy(folder: Path, iteration_us: int) -> Iterator[str]:
    """The URL of a toy server whose every iteration takes so long, whatever is in it."""
    costs = ("--fixed-us", str(iteration_us), "--prefill-token-us", "0", "--decode-row-us", "0")
    flags = ("--policy", "continuous", "--batch-size", "256", *costs)
    with start_toy(folder / "toy.log", flags) as server:
        yield server.wait_ready(30).base_url


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A toy of 5 ms a token."""
    with toy(tmp_path_factory.mktemp("quick"), 5_000) as url:
        yield url


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A toy of 200 ms a token."""
    with toy(tmp_path_factory.mktemp("slow"), 200_000) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Headless Chromium."""
    if not CHROMIUM:
        pytest.skip("no Chromium on PATH: apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser, serving: Serving) -> Iterator[Page]:
    """A page of the service; what its console says, or its policy refuses, fails the test."""
    context = browser.new_context(viewport=WIDE, base_url=serving.url)
    opened = context.new_page()
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    yield opened
    context.close()
    assert [text for text in said if not re.search("403|404|422|429", text)] == []


@pytest.fixture(scope="module")
def two(serving: Serving, quick: str, slow: str) -> list[str]:
    """Two runs that have finished, of two targets each."""
    ids = []
    for seed in (1, 2):
        answer = serving.post(
            kind="compare",
            targets=[{"name": "static", "base_url": slow}, {"name": "vllm", "base_url": quick}],
            generate={
                "num_prompts": 30, "request_rate": 15, "output_len": 6, "input_len": 5,
                "seed": seed,
            },
            compare={"blocks": 2},
            output={"label": f"two targets, seed {seed}", "goodput": {"ttft": 40}},
        )  # fmt: skip
        ids.append(serving.wait(answer.json()["id"], limit_s=120)["id"])
    return ids


def test_from_the_form_to_the_report(page: Page, serving: Serving, quick: str) -> None:
    """A run is filled in, told, started, watched to its end, and its report read."""
    page.goto("/")
    page.get_by_role("link", name="New run").last.click()
    expect(page.get_by_role("heading", name="New run")).to_be_focused()
    page.get_by_label("Endpoint", exact=True).fill(quick)
    page.get_by_label("fixed lengths").check()
    page.get_by_label("Requests", exact=True).fill("150")
    page.get_by_label("Arrivals a second").fill("30")
    page.get_by_label("Prompt tokens").fill("6")
    page.get_by_label("Output tokens").fill("7")
    page.get_by_label("Label").fill("from the page <b>")
    told = page.get_by_role("status", name="What will be sent")
    expect(told).to_contain_text(
        f"Will send 150 requests (and 1 of warm-up) to {quick}", timeout=20_000
    )
    expect(told).to_contain_text("1,050 output tokens")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", name="from the page <b>")).to_be_visible()
    plots = page.get_by_role("img")
    expect(plots).to_have_count(4)
    expect(plots.first).to_have_attribute("aria-label", re.compile(r"target [1-9]"), timeout=20_000)
    expect(page.locator(".counts")).to_contain_text("of 150 requests")
    expect(page.locator(".state")).to_contain_text("finished", timeout=60_000)
    expect(page.get_by_role("heading", name="Results")).to_be_visible()
    expect(page.get_by_role("row", name="Requests ok 150")).to_be_visible()
    with page.expect_popup() as popup:
        page.get_by_role("link", name="Report", exact=True).click()
    expect(popup.value.get_by_role("heading", level=1)).to_contain_text("from the page <b>")


def test_plots_move_while_it_runs(page: Page, serving: Serving, quick: str) -> None:
    """Several times a second, without a scroll and without the page being asked again."""
    run_id = serving.start(quick, requests=400, rate=50)
    serving.wait_for_records(run_id, 5)
    page.goto(f"/#/run/{run_id}")
    line = page.locator("path.line").first
    expect(line).to_have_attribute("d", re.compile(r"L.*L"), timeout=20_000)
    seen = set()
    for _ in range(8):
        seen.add(line.get_attribute("d"))
        page.wait_for_timeout(250)
    assert len(seen) >= 4
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".state")).to_contain_text("stopped", timeout=30_000)
    assert serving.get(run_id)["state"] == "stopped"


def test_a_run_is_stopped_from_the_page(page: Page, serving: Serving, slow: str) -> None:
    """Stop drains; its second press cuts off; the page says so to a screen reader."""
    run_id = serving.start(slow, requests=500, rate=20, tokens=100)
    page.goto(f"/#/run/{run_id}")
    expect(page.locator(".counts")).to_contain_text("in flight", timeout=30_000)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#said")).to_contain_text("Stopping")
    page.get_by_role("button", name="Cut off what is in flight").click()
    expect(page.locator(".state")).to_contain_text("stopped", timeout=60_000)


def test_refused_events_are_asked_for_again(page: Page, serving: Serving, quick: str) -> None:
    """Until they come the figures are called old, and a run that ends meanwhile is seen to end."""
    run_id = serving.start(quick, requests=2000, rate=20)
    serving.wait(run_id, "running")
    problem = page.get_by_role("alert")
    page.route("**/events", lambda route: route.fulfill(status=429))
    page.goto(f"/#/run/{run_id}")
    expect(problem).to_contain_text("Live figures are interrupted")
    page.unroute("**/events")
    expect(problem).to_be_empty(timeout=20_000)
    plot = page.get_by_role("img").first
    expect(plot).to_have_attribute("aria-label", re.compile(r"target [1-9]"), timeout=20_000)
    page.route("**/events", lambda route: route.fulfill(status=429))
    page.reload()
    expect(problem).to_contain_text("Live figures are interrupted")
    serving.client.delete(f"/api/runs/{run_id}")
    expect(page.locator(".state")).to_contain_text("stopped", timeout=30_000)
    expect(problem).not_to_contain_text("Live figures")


def test_a_page_whose_first_answers_fail(page: Page, serving: Serving, quick: str) -> None:
    """It says so, goes on trying, and has the whole run once the service answers; of a run that is
    not there it asks no more."""
    run_id = serving.start(quick, requests=2000, rate=20)
    serving.wait(run_id, "running")
    page.route(f"**/api/runs/{run_id}**", lambda route: route.fulfill(status=429))
    page.goto(f"/#/run/{run_id}")
    expect(page.get_by_role("alert")).to_contain_text("The service answers 429")
    page.unroute(f"**/api/runs/{run_id}**")
    expect(page.locator(".facts")).to_contain_text(quick, timeout=30_000)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    expect(page.get_by_role("alert")).to_be_empty()
    serving.client.delete(f"/api/runs/{run_id}")
    expect(page.locator(".state")).to_contain_text("stopped", timeout=30_000)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto("/#/run/20260101T000000Z-run-0000")
    expect(page.get_by_role("alert")).to_contain_text("no such run")
    page.wait_for_timeout(3000)
    assert len([url for url in asked if "0000Z-run-0000" in url and "/api/" in url]) == 1


def test_a_run_of_the_command_line_has_no_stop(page: Page, serving: Serving, slow: str) -> None:
    """The service cannot stop what it did not start, so its page does not offer it, whatever the
    events tell."""
    run_dir = serving.runs / "20260101T000000Z-run-c0de"
    words = ["run", "--base-url", slow, "--num-prompts", "200", "--request-rate", "10"]
    words += ["--output-len", "3", "--quiet", "--run-dir", str(run_dir)]
    with subprocess.Popen(
        [sys.executable, "-m", "loadgen", *words], stdout=subprocess.DEVNULL, env=ENVIRONMENT
    ) as process:
        try:
            serving.wait_for_records(run_dir.name, 2)
            page.goto(f"/#/run/{run_dir.name}")
            expect(page.locator("#said")).to_contain_text("The run is running", timeout=20_000)
            expect(page.locator(".counts")).to_contain_text("in flight")
            expect(page.get_by_role("button", name="Stop")).to_be_hidden()
        finally:
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGINT)


def test_two_runs_are_compared_from_the_list(page: Page, two: list[str]) -> None:
    """Two ticks and a button; each figure of both, and b / a."""
    page.goto("/")
    button = page.get_by_role("button", name=re.compile(r"Compare \("))
    expect(button).to_be_disabled()
    for seed in (1, 2):
        page.get_by_role("checkbox", name=f"Compare two targets, seed {seed}").check()
    button.click()
    expect(page.get_by_role("heading", name="Two runs compared")).to_be_visible()
    expect(page.get_by_role("heading", name="vllm")).to_be_visible(timeout=30_000)
    expect(page.get_by_text("different traces")).to_be_visible()
    row = page.get_by_role("row", name=re.compile("TTFT p50, ms"))
    expect(row.first).to_contain_text("×")


def test_a_renamed_run_is_compared(page: Page, serving: Serving, quick: str) -> None:
    """A comparison links to the runs by the ids that they have now."""
    run_id = serving.start(quick, rate=100)
    serving.wait(run_id)
    assert call("runs", "rename", str(serving.runs / run_id), "renamed").code == 0
    page.goto("/#/compare/renamed/renamed")
    page.get_by_role("link", name="renamed").first.click()
    expect(page.locator(".state")).to_contain_text("finished")


def test_pages_are_turned_by_keyboard(page: Page, serving: Serving) -> None:
    """The focus stays where it can, and where a page's runs are removed the last one is shown."""
    folders = [serving.runs / f"of-many-{place}" for place in range(60)]
    for folder in folders:
        folder.mkdir()
        (folder / "header.json").write_text('{"label": "of many"}')
    page.goto("/")
    page.get_by_label("Label").fill("of many")
    expect(page.get_by_text("1 to 25 of 60")).to_be_visible()
    older = page.get_by_role("button", name="Older")
    newer = page.get_by_role("button", name="Newer")
    older.press("Enter")
    expect(page.get_by_text("26 to 50 of 60")).to_be_visible()
    expect(older).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_text("51 to 60 of 60")).to_be_visible()
    expect(newer).to_be_focused()
    for folder in folders[30:]:
        shutil.rmtree(folder)
    expect(page.get_by_text("26 to 30 of 30")).to_be_visible()
    for folder in folders[:30]:
        shutil.rmtree(folder)
    expect(page.get_by_text("No run is like that.")).to_be_visible()
    expect(page.get_by_role("heading", name="Runs")).to_be_focused()


def test_the_list_is_filtered(page: Page, two: list[str]) -> None:
    """By label, state and verdict, without a reload."""
    page.goto("/")
    rows = page.locator("tbody").get_by_role("row")
    page.get_by_label("Label").fill("seed 2")
    expect(rows).to_have_count(1)
    page.get_by_label("State").select_option("queued")
    expect(rows).to_have_count(0)
    expect(page.get_by_text("No run is like that.")).to_be_visible()


def test_what_is_wrong_is_told(page: Page) -> None:
    """A target that may not be asked: the form says so before anything is sent."""
    page.goto("/#/new")
    page.get_by_label("Endpoint", exact=True).fill("http://169.254.169.254/")
    told = page.get_by_role("status", name="What will be sent")
    expect(told).to_contain_text("no load test may reach", timeout=20_000)
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("alert")).to_contain_text("no load test may reach")


def test_by_keyboard_alone(page: Page, two: list[str]) -> None:
    """Tab and Enter lead from the skip link to a run and its report."""
    page.goto("/")
    expect(page.locator("tbody").get_by_role("row").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    reached = None
    for _ in range(30):
        page.keyboard.press("Tab")
        reached = page.evaluate("document.activeElement.getAttribute('href')")
        if reached and reached.startswith("#/run/"):
            break
    assert reached is not None
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Report":
            return
    raise AssertionError("the report is not reached")


def test_the_skip_link_leaves_the_address(page: Page) -> None:
    """It moves the focus alone; an address that names nothing shows the list."""
    page.goto("/#/new")
    expect(page.get_by_role("heading", name="New run")).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    assert page.url.endswith("/#/new")
    page.goto("/#main")
    page.reload()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()


def test_a_key_is_sent_and_forgotten(page: Page, serving: Serving, quick: str) -> None:
    """The field is emptied, and the request that is shown never holds it."""
    page.goto("/#/new")
    page.get_by_label("Endpoint", exact=True).fill(quick)
    page.get_by_label("Requests", exact=True).fill("2")
    page.get_by_label("Arrivals a second").fill("100")
    page.get_by_label("API key").fill("sk-canary-of-the-page")
    assert "sk-canary" not in page.content()
    page.get_by_role("button", name="Start").click()
    expect(page.locator(".state")).to_contain_text("finished", timeout=60_000)
    assert "sk-canary" not in page.content()
    for file in serving.runs.rglob("*"):
        assert not file.is_file() or b"sk-canary-of-the-page" not in file.read_bytes(), file


def test_a_capacity_from_the_form(page: Page, serving: Serving, quick: str) -> None:
    """The kind shows its own fields; probes are told as they are done, and then the answer."""
    page.goto("/#/new")
    expect(page.get_by_label("Highest rate to probe")).to_be_hidden()
    page.get_by_label("Kind").select_option("capacity")
    expect(page.get_by_label("Arrivals a second")).to_be_hidden()
    expect(page.get_by_label("TTFT within, ms")).to_have_value("500")
    page.get_by_label("Endpoint", exact=True).fill(quick)
    page.get_by_label("First rate to probe").fill("20")
    page.get_by_label("Highest rate to probe").fill("40")
    page.get_by_label("Requests a point, at least").fill("40")
    page.get_by_label("Seconds a point, at least").fill("0")
    page.get_by_label("fixed lengths").check()
    page.get_by_label("Prompt tokens").fill("5")
    page.get_by_label("Output tokens").fill("4")
    page.get_by_label("TTFT within, ms").fill("2000")
    page.get_by_label("Label").fill("how much from the page")
    told = page.get_by_role("status", name="What will be sent")
    expect(told).to_contain_text("Will probe 20 requests/s first", timeout=20_000)
    shot(page, "capacity-form")
    page.get_by_role("button", name="Start").click()
    expect(page.locator(".counts")).to_contain_text("Point 1, load 20:", timeout=30_000)
    table = page.get_by_role("region", name="Table of points")
    expect(table.get_by_role("row").nth(1)).to_contain_text("20", timeout=30_000)
    shot(page, "capacity-runs")
    expect(page.locator(".state")).to_contain_text("finished", timeout=120_000)
    expect(page.locator(".answer")).to_contain_text(re.compile("Under ttft|No capacity was found"))
    shot(page, "capacity-done")
    with page.expect_popup() as popup:
        page.get_by_role("link", name="Report", exact=True).click()
    expect(popup.value.get_by_role("heading", level=1)).to_contain_text("Capacity")
    popup.value.get_by_text("The runs").click()
    popup.value.get_by_role("link", name=re.compile(r"-run-")).first.click()
    expect(popup.value.get_by_role("heading", level=1)).to_contain_text("20 requests/s asked")
    page.goto("/")
    page.get_by_label("Kind").select_option("capacity")
    row = page.locator("tbody").get_by_role("row").first
    expect(row).to_contain_text("how much from the page")
    expect(row.get_by_role("checkbox")).to_be_disabled()


def test_a_simulation_from_the_form(page: Page) -> None:
    """It asks for no endpoint, sends nothing, and ends in the figures of two targets."""
    page.goto("/#/new")
    page.get_by_label("Kind").select_option("simulate")
    expect(page.get_by_label("Endpoint", exact=True)).to_be_hidden()
    page.get_by_label("Batch size").fill("8")
    page.get_by_label("Requests", exact=True).fill("64")
    told = page.get_by_role("status", name="What will be sent")
    expect(told).to_contain_text("Will simulate 64 requests on static and", timeout=20_000)
    expect(told).to_contain_text("Nothing is sent")
    page.get_by_role("button", name="Start").click()
    expect(page.locator(".state")).to_contain_text("finished", timeout=60_000)
    figures = page.get_by_role("region", name="Figures")
    expect(figures.get_by_role("columnheader", name="continuous")).to_be_visible()
    expect(figures.get_by_role("row", name="Requests ok 64 64")).to_be_visible()
    expect(figures.get_by_role("rowheader", name="TTFT p50, iterations")).to_be_visible()
    expect(figures.get_by_role("rowheader", name="Output tokens/iteration")).to_be_visible()
    one = page.url.rpartition("/")[2]
    page.goto(f"/#/compare/{one}/{one}")
    expect(page.get_by_text("Both simulated the same requests")).to_be_visible(timeout=30_000)
    expect(page.get_by_text("time counts iterations").first).to_be_visible()
    expect(page.get_by_role("rowheader", name="E2E p99, iterations").first).to_be_visible()


def test_a_sweep_from_the_form(page: Page, serving: Serving, quick: str) -> None:
    """Its points are a list; a mistake in it is told before anything is sent."""
    page.goto("/#/new")
    page.get_by_label("Kind").select_option("sweep")
    page.get_by_label("Endpoint", exact=True).fill(quick)
    page.get_by_label("Points", exact=True).fill("1,two")
    told = page.get_by_role("status", name="What will be sent")
    expect(told).to_contain_text("rates", timeout=20_000)
    page.get_by_label("Points differ in").select_option("concurrencies")
    page.get_by_label("Points", exact=True).fill("2, 4")
    page.get_by_label("Requests a point, at least").fill("16")
    expect(told).to_contain_text("Will measure 2 points, 2, 4,", timeout=20_000)
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text("2 of 2 points are done.")).to_be_visible(timeout=120_000)
    expect(page.locator(".state")).to_contain_text("finished", timeout=60_000)


def shot(page: Page, name: str) -> None:
    """For people to look at, wide and narrow; and axe finds nothing in this state either."""
    for size in (PHONE, WIDE):
        page.set_viewport_size(size)
        if SHOTS:
            page.screenshot(path=Path(SHOTS) / f"{name}-{size['width']}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], name
    violations = Axe().run(page).response["violations"]
    assert [(v["id"], v["nodes"][0]["html"]) for v in violations] == [], name


KINDS = ("run", "compare", "capacity", "sweep", "simulate")


@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        pytest.param(WIDE, "light", id="wide, light"),
        pytest.param(PHONE, "dark", id="phone, dark"),
        pytest.param(WIDE, "dark", id="wide, dark", marks=pytest.mark.long),
        pytest.param(PHONE, "light", id="phone, light", marks=pytest.mark.long),
    ],
)
def test_axe_finds_nothing(
    browser: Browser, serving: Serving, two: list[str], size: ViewportSize, scheme: Any
) -> None:
    """On every part of the page, wide and narrow, light and dark; nothing scrolls sideways."""
    failed = serving.start("http://127.0.0.1:9", load={"ready_timeout": 0})
    serving.wait(failed)
    parts = {
        "list": ("#/", None),
        **{f"new {kind}": ("#/new", kind) for kind in KINDS},
        "run": (f"#/run/{two[0]}", None),
        "compare": (f"#/compare/{two[0]}/{two[1]}", None),
        "failed": (f"#/run/{failed}", None),
    }
    context = browser.new_context(viewport=size, color_scheme=scheme, base_url=serving.url)
    opened = context.new_page()
    for part, (place, kind) in parts.items():
        opened.goto("about:blank")
        opened.goto(f"/{place}")
        expect(opened.get_by_role("heading", level=1)).to_be_visible()
        if kind is not None:
            opened.get_by_label("Kind").select_option(kind)
        opened.wait_for_load_state("networkidle") if part in ("list", "compare") else None
        opened.wait_for_timeout(700)
        if SHOTS:
            name = f"{part}-{size['width']}-{scheme}.png"
            opened.screenshot(path=Path(SHOTS) / name, full_page=True)
        violations = Axe().run(opened).response["violations"]
        assert [(v["id"], v["nodes"][0]["html"]) for v in violations] == [], part
        width = opened.evaluate("document.documentElement.scrollWidth")
        assert width <= size["width"], part
    context.close()


def test_the_token_is_asked_for(browser: Browser, tmp_path: Path) -> None:
    """Without the cookie the page is its login; the wrong token is told, the right one opens
    what the address names."""
    with service(tmp_path / "runs", LOADGEN_API_TOKEN=TOKEN) as found:
        context = browser.new_context(base_url=found.url)
        opened = context.new_page()
        opened.goto("/#/new")
        field = opened.get_by_label("LOADGEN_API_TOKEN")
        field.fill("not the token, by far")
        opened.get_by_role("button", name="Open").click()
        expect(opened.get_by_role("alert")).to_contain_text("not the token")
        assert Axe().run(opened).response["violations"] == []
        field.fill(TOKEN)
        opened.get_by_role("button", name="Open").click()
        expect(opened.get_by_role("heading", name="New run")).to_be_visible()
        assert opened.evaluate("document.cookie") == ""
        assert TOKEN not in opened.content()
        context.close()
