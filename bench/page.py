"""Whether the service's page keeps up with a run, and what watching costs it: `make bench-page`.

A truth server is the target, a service starts the runs, and Chromium has the page of each open, all
on this machine. Its cores are shared by five, so the target sends several events a packet (five by
default): two cores then make 50,000 a second. Each rate is run unwatched and then watched. `delay`
is from the moment that the run wrote down how far it is (`live.json`, four times a second) to the
frame in which the page has drawn it. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import httpx
from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from loadgen.selfcheck import server_process, truth_process

_LIMIT_S: Final = 300.0
_WATCH: Final = """
window.seen = { delays: [], tasks: [], rates: [] };
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) window.seen.tasks.push(task.duration);
}).observe({ entryTypes: ["longtask"] });
const listen = EventSource.prototype.addEventListener;
EventSource.prototype.addEventListener = function (name, listener) {
  if (name !== "live") return listen.call(this, name, listener);
  return listen.call(this, name, (event) => {
    listener(event);
    const live = JSON.parse(event.data);
    if (live.state !== "running") return;
    const told = Object.values(live.targets).map((target) => target.tokens_per_s ?? 0);
    window.seen.rates.push(...told);
    requestAnimationFrame(() => window.seen.delays.push(Date.now() - 1000 * live.at));
  });
};
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What the page did while a run went on; times in milliseconds."""

    looks: int
    looks_per_s: float
    delay_p50_ms: float
    delay_p99_ms: float
    delay_max_ms: float
    late_ms: float
    """Median delay of the last quarter less that of the first: what falls behind grows."""
    longest_task_ms: float
    """Of the page's main thread; tasks under 50 ms count as none."""
    busy: float
    """The share of the run in which the page's main thread worked."""
    peak_events_per_s: float
    """The most that the page told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    asked_events_per_s: float
    events_per_s: float
    """From the first request to the last token, ramp and drain included."""
    failed: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    lag_p99_ms: float
    """Schedule lag."""
    verdict: str
    watched: Watched | None


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--rates", type=int, nargs="+", default=[10_000, 25_000, 55_000])
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run")
    parser.add_argument("--workers", type=int, default=1, help="of loadgen")
    parser.add_argument("--tokens", type=int, default=512, help="of an answer, an event each")
    parser.add_argument("--itl-ms", default="2", help="of the truth server, between tokens")
    parser.add_argument("--tick-ms", default="10", help="what is due within it comes in one packet")
    given = parser.parse_args(words)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("bench.page: no Chromium on PATH; install the package chromium", file=sys.stderr)
        return 2
    rows = []
    with (
        truth_process(
            *("--ttft-ms", "100", "--itl-ms", given.itl_ms, "--tick-ms", given.tick_ms)
        ) as target,
        tempfile.TemporaryDirectory(prefix="loadgen-page-") as folder,
        server_process(
            *("the service", "loadgen", "serve", "--port", "0"),
            *("--result-dir", folder, "--rest", "0"),
        ) as url,
        httpx.Client(base_url=url, timeout=60) as client,
        sync_playwright() as playwright,
    ):
        for rate in given.rates:
            for is_watched in (False, True):
                body = _body(target, rate, given)
                run_id = client.post("/api/runs", json=body).raise_for_status().json()["id"]
                if is_watched:
                    browser = playwright.chromium.launch(
                        executable_path=chromium, args=["--no-sandbox"]
                    )
                    watched = _watch(browser, f"{url}/#/run/{run_id}", client, run_id)
                    browser.close()
                else:
                    watched = None
                row = _row(rate, _ended(client, run_id), watched)
                rows.append(asdict(row))
                print(row, flush=True)
    print(json.dumps(rows))
    return 0


def _body(target: str, rate: float, given: argparse.Namespace) -> dict[str, Any]:
    requests_per_s = rate / given.tokens
    return {
        "targets": [{"name": "truth", "base_url": target}],
        "generate": {
            "num_prompts": math.ceil(requests_per_s * given.seconds),
            "request_rate": requests_per_s,
            "input_len": 20,
            "output_len": given.tokens,
        },
        "load": {"workers": given.workers},
    }


def _ended(client: httpx.Client, run_id: str) -> dict[str, Any]:
    deadline_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline_s:
        found: dict[str, Any] = client.get(f"/api/runs/{run_id}").raise_for_status().json()
        if found["state"] not in ("queued", "running"):
            return found
        time.sleep(1.0)
    raise SystemExit(f"{run_id} has not ended within {_LIMIT_S:.0f} s")


def _watch(browser: Browser, url: str, client: httpx.Client, run_id: str) -> Watched:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.add_init_script(_WATCH)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    page.goto(url)
    _wait_until(page, "window.seen.delays.length > 0")
    began_s, began_busy_s = time.monotonic(), _busy_s(session)
    _wait_until(page, "document.querySelector('.state').textContent.includes('finished')")
    busy_s, passed_s = _busy_s(session) - began_busy_s, time.monotonic() - began_s
    seen: dict[str, list[float]] = page.evaluate("window.seen")
    page.close()
    delays = seen["delays"]
    quarter = max(1, len(delays) // 4)
    ranked = sorted(delays)
    progress = client.get(f"/api/runs/{run_id}").json()["progress"]
    return Watched(
        looks=len(delays),
        looks_per_s=len(delays) / progress["elapsed_s"],
        delay_p50_ms=statistics.median(delays),
        delay_p99_ms=ranked[math.ceil(0.99 * len(ranked)) - 1],
        delay_max_ms=ranked[-1],
        late_ms=statistics.median(delays[-quarter:]) - statistics.median(delays[:quarter]),
        longest_task_ms=max(seen["tasks"], default=0.0),
        busy=busy_s / passed_s,
        peak_events_per_s=max(seen["rates"]),
    )


def _wait_until(page: Page, condition: str) -> None:
    """Asked from outside: the page's own policy lets no text be evaluated."""
    deadline_s = time.monotonic() + _LIMIT_S
    while not page.evaluate(condition):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"not within {_LIMIT_S:.0f} s: {condition}")
        time.sleep(0.5)


def _busy_s(session: CDPSession) -> float:
    """How long the page's main thread has worked since the session began."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(item["value"] for item in metrics if item["name"] == "TaskDuration"))


def _row(rate: float, run: dict[str, Any], watched: Watched | None) -> Row:
    target = run["summary"]["targets"]["truth"]
    return Row(
        asked_events_per_s=rate,
        events_per_s=target["output_tokens_per_s"],
        failed=target["failed"],
        ttft_p50_ms=1000 * target["ttft_s"]["p50"],
        ttft_p99_ms=1000 * target["ttft_s"]["p99"],
        lag_p99_ms=1000 * target["schedule_lag_s"]["p99"],
        verdict=run["verdict"],
        watched=watched,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
