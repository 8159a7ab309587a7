"""The CPU stack and the external one, run for real on a Docker engine and looked at from outside.

Everything that the project ships is used unchanged: compose files, Dockerfiles, rules, dashboards.
Grafana is left out, since its image may not be within reach. It prints a line a check, and fails
with the first that does not hold; both stacks are taken down however it ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from dashboards.queries import instant_query, panel_queries

ROOT: Final = Path(__file__).resolve().parent.parent
DASHBOARDS: Final = ROOT / "dashboards" / "grafana" / "json"
PORTS: Final = {"STATIC_PORT": "18001", "VLLM_PORT": "18002", "LOADGEN_PORT": "19464"}
PROMETHEUS_PORT: Final = "19090"
PROMETHEUS: Final = f"http://127.0.0.1:{PROMETHEUS_PORT}"
HEALTHY_S: Final = 600
ROUND_S: Final = 900
CANARY: Final = "sk-canary-7b1f0c2e9d"
TRUTH: Final = "loadgen-external-test-truth"


class CheckFailedError(Exception):
    """What was looked at is not as it must be."""


def main() -> int:
    """Both stacks; returns the exit code."""
    try:
        with stack("loadgen-stack-test", "docker-compose.yml", "compose.cpu.yml") as compose:
            check_cpu_stack(compose)
        check_external_stack()
    except (CheckFailedError, subprocess.CalledProcessError) as error:
        print(f"stack-test: FAILED: {error}", file=sys.stderr)
        return 1
    say("passed")
    return 0


class Compose:
    """`docker compose` of one project."""

    def __init__(self, project: str, files: Sequence[str], **environment: str) -> None:
        self._words = ["docker", "compose", "-p", project]
        for file in files:
            self._words += ["-f", file]
        self._environment = os.environ | PORTS | {"PROMETHEUS_PORT": PROMETHEUS_PORT} | environment

    def __call__(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            [*self._words, *words],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=self._environment,
            check=False,
        )
        if check and done.returncode:
            raise CheckFailedError(f"compose {' '.join(words)}: {done.stderr[-2000:]}")
        return done.stdout + done.stderr


@contextmanager
def stack(project: str, *files: str, **environment: str) -> Iterator[Compose]:
    """A project that is taken down at the end, with its volumes."""
    compose = Compose(project, files, **environment)
    compose("down", "--volumes", "--remove-orphans")
    try:
        yield compose
    except BaseException:
        print(compose("logs", "--tail", "30", check=False), file=sys.stderr)
        raise
    finally:
        compose("down", "--volumes", "--remove-orphans", "--timeout", "10", check=False)


def check_cpu_stack(compose: Compose) -> None:
    services = ("static", "vllm", "loadgen", "prometheus")
    began_s = time.monotonic()
    compose("build", "static", "vllm", "loadgen")
    say(f"built in {time.monotonic() - began_s:.0f} s: {sizes()}")
    began_s = time.monotonic()
    compose("up", "--detach", "--wait", "--wait-timeout", str(HEALTHY_S), *services)
    say(f"healthy after {time.monotonic() - began_s:.0f} s")
    check_users(compose, services)

    require("the page's API wants its token", status_of("/api/runs") == 401)
    require("the page itself answers", status_of("/") == 200)
    for job in ("loadgen", "static", "vllm"):
        is_up = f'up{{job="{job}"}} == 1'
        wait(f"Prometheus scrapes {job}", partial(has_series, is_up), 60)
    wait(
        "a comparison has a verdict", lambda: (value("max(loadgen_run_verdict)") or 0) == 1, ROUND_S
    )
    for target in ("static", "vllm"):
        ok = f'sum(max_over_time(loadgen_requests_total{{target="{target}",outcome="ok"}}[15m]))'
        require(f"{target} answered requests", (value(ok) or 0) > 0)
    check_panels()

    turn = 'loadgen_turn_active{target="static"} == 1'
    wait("the static server has its turn", partial(has_series, turn), ROUND_S)
    compose("kill", "static")
    failed = 'sum(max_over_time(loadgen_requests_total{target="static",outcome!="ok"}[15m]))'
    wait("its end shows in loadgen's outcomes", lambda: (value(failed) or 0) > 0, 120)
    alert = 'ALERTS{alertname="TargetDown",alertstate="firing",job="static"}'
    wait("its end fires an alert", partial(has_series, alert), 120)


def check_users(compose: Compose, services: Sequence[str]) -> None:
    """No process of ours has root's rights, and no root file system can be written."""
    for service in services:
        container = compose("ps", "--quiet", service).strip()
        uid = subprocess.run(
            ["docker", "exec", container, "cat", "/proc/self/status"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        rows = {
            name: text.split() for name, _, text in (r.partition(":") for r in uid.splitlines())
        }
        require(f"{service} runs without root (uid {rows['Uid'][0]})", rows["Uid"][0] != "0")
        require(f"{service} has no capability", int(rows["CapEff"][0], 16) == 0)
        (info,) = json.loads(
            subprocess.run(["docker", "inspect", container], capture_output=True, check=True).stdout
        )
        require(f"{service}'s root is read-only", info["HostConfig"]["ReadonlyRootfs"])


def check_panels() -> None:
    """Every panel's query (the GPU's apart) has series, over the last quarter of an hour."""
    variables = {"run": ".*", "target": ".*", "__rate_interval": "5m", "__interval": "2s"}
    variables |= {"__range": "15m", "__range_s": "900"}
    empty, asked = [], 0
    for path in sorted(DASHBOARDS.glob("*.json")):
        if "gpu" in path.stem:
            continue
        for title, expression in panel_queries(json.loads(path.read_text()), variables):
            asked += 1
            if not query(expression):
                empty.append(f"{path.stem}: {title}: {expression}")
    require(f"all {asked} queries of panels have series", not empty, "\n".join(empty))


def check_external_stack() -> None:
    """Against a truth server in a container of its own, which wants a key."""
    project = "loadgen-external-test"
    environment = {
        "TARGET_URL": f"http://{TRUTH}:8000/v1",
        "TARGET_MODEL": "truth",
        "RATE": "20",
        "N": "200",
        "MAX_OUTPUT_TOKENS": "1500",
        "OPENAI_API_KEY": CANARY,
    }
    with stack(project, "compose.external.yml", **environment) as compose:
        compose("build", "loadgen")
        compose("create", "loadgen", "prometheus")
        subprocess.run(
            [
                *("docker", "run", "--detach", "--rm", "--name", TRUTH),
                *("--network", f"{project}_default", "--entrypoint", "python3", "loadgen"),
                *("-m", "loadgen.truth", "--host", "0.0.0.0", "--port", "8000"),
                *("--api-key", CANARY, "--ttft-ms", "30", "--itl-ms", "5"),
            ],
            check=True,
            capture_output=True,
        )
        try:
            compose("up", "--detach", "prometheus", "loadgen")
            stopped = "sum(max_over_time(loadgen_output_tokens_total[10m])) >= 1500"
            wait("the hard stop was reached", partial(has_series, stopped), 180)
            container = compose("ps", "--all", "--quiet", "loadgen").strip()
            wait("loadgen has ended", lambda: state(container) == "exited", 60)
            check_canary(compose, container)
        finally:
            subprocess.run(["docker", "kill", TRUTH], capture_output=True, check=False)


def check_canary(compose: Compose, container: str) -> None:
    """The key is in no log, no metric, no file of the run and no image."""
    logs = compose("logs")
    require("the run said why it ended", "--max-output-tokens-total" in logs, logs[-1000:])
    require("the key is in no log", CANARY not in logs)
    everything = query('last_over_time({__name__=~".+"}[15m])')
    require(f"the key is in none of {len(everything)} series", CANARY not in json.dumps(everything))
    files = subprocess.run(
        ["docker", "cp", f"{container}:/runs", "-"], capture_output=True, check=True
    ).stdout
    require("there are results", b"report.html" in files)
    require("the key is in no file of the run", CANARY.encode() not in files)
    history = subprocess.run(
        ["docker", "history", "--no-trunc", "loadgen"], capture_output=True, check=True
    ).stdout
    require("the key is in no layer of the image", CANARY.encode() not in history)


def state(container: str) -> str:
    words = ["docker", "inspect", "--format", "{{.State.Status}}", container]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def sizes() -> str:
    words = ["docker", "images", "--format", "{{.Repository}} {{.Size}}"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    return ", ".join(sorted(line for line in lines if line.startswith("loadgen")))


def status_of(path: str) -> int:
    """Of loadgen's answer to a request without a token."""
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{PORTS['LOADGEN_PORT']}{path}", timeout=10
        ) as page:
            return int(page.status)
    except urllib.error.HTTPError as error:
        return error.code


def query(expression: str) -> list[dict[str, Any]]:
    """The series of an instant query, now."""
    try:
        return instant_query(PROMETHEUS, expression)
    except OSError as error:
        raise CheckFailedError(f"{expression}: {error}") from None


def has_series(expression: str) -> bool:
    return bool(query(expression))


def value(expression: str) -> float | None:
    """Of an expression's first series; None where it has none."""
    series = query(expression)
    return float(series[0]["value"][1]) if series else None


def wait(what: str, holds: Callable[[], bool], seconds: float) -> None:
    """Until it holds."""
    began_s = time.monotonic()
    while not holds():
        if time.monotonic() - began_s > seconds:
            raise CheckFailedError(f"{what}: not within {seconds:.0f} s")
        time.sleep(1)
    say(f"{what} ({time.monotonic() - began_s:.0f} s)")


def require(what: str, holds: bool, more: str = "") -> None:
    if not holds:
        raise CheckFailedError(f"not so: {what} {more}".rstrip())
    say(what)


def say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
