"""schemathesis on the service's own OpenAPI document: what it allows, and what it forbids."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from tests.service.conftest import Serving, service

pytestmark = pytest.mark.slow

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
ROUTES = (
    ("POST", "/api/runs"),
    ("GET", "/api/runs"),
    ("GET", "/api/runs/compare"),
    ("GET", "/api/runs/{run_id}"),
    ("PATCH", "/api/runs/{run_id}"),
    ("DELETE", "/api/runs/{run_id}"),
    ("GET", "/api/runs/{run_id}/events"),
    ("GET", "/api/runs/{run_id}/report"),
    ("GET", "/api/runs/{run_id}/{point}/report.html"),
    ("GET", "/api/runs/{run_id}/records"),
    ("GET", "/api/runs/{run_id}/export/vllm"),
    ("POST", "/api/traces"),
    ("GET", "/api/traces"),
    ("GET", "/api/settings"),
    ("POST", "/api/login"),
    ("GET", "/health"),
    ("GET", "/metrics"),
)
every_route = pytest.mark.parametrize(("method", "path"), ROUTES, ids=lambda text: text)


@schemathesis.serializer("application/jsonl")
def as_text(ctx: Any, value: Any) -> Any:
    """A trace's lines, or whatever was made in their place."""
    return value.encode(errors="replace") if isinstance(value, str) else json.dumps(value).encode()


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory, quick: str) -> Iterator[tuple[Serving, str]]:
    """A service with one finished run, whose targets are two alone; and the run's id."""
    folder = tmp_path_factory.mktemp("explored") / "runs"
    with service(folder, "--max-queue", "5", LOADGEN_ALLOWED_TARGETS="127.0.0.1") as found:
        run_id = found.start(quick, requests=5)
        found.wait(run_id)
        yield found, run_id


def explore(explored: tuple[Serving, str], method: str, path: str, cases: int) -> None:
    """Send generated requests; each answer must be one that the document knows, and no 5xx."""
    found, run_id = explored
    schema = schemathesis.openapi.from_url(f"{found.url}/openapi.json")
    route = schema[path][method]
    strategy = st.one_of(
        route.as_strategy(generation_mode=GenerationMode.POSITIVE),
        route.as_strategy(generation_mode=GenerationMode.NEGATIVE)
        if method in ("POST", "PATCH")
        else route.as_strategy(generation_mode=GenerationMode.POSITIVE),
    )
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=cases,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy, is_known=st.booleans())
    def answered(case: Case, is_known: bool) -> None:
        if is_known and case.path_parameters and "run_id" in case.path_parameters:
            case.path_parameters["run_id"] = run_id
        if method == "POST" and path == "/api/runs" and isinstance(case.body, dict) and is_known:
            case.body["targets"] = [{"base_url": "http://127.0.0.1:9"}]
        response = case.call_and_validate(checks=CHECKS, timeout=120)
        statuses[response.status_code] += 1

    answered()
    print(method, path, dict(statuses))
    assert found.client.get("/health").status_code == 200


@every_route
def test_generated_requests(explored: tuple[Serving, str], method: str, path: str) -> None:
    """Requests that the document allows or forbids get no 5xx, and only answers that it knows."""
    explore(explored, method, path, 15)


@pytest.mark.long
@every_route
def test_many_generated_requests(explored: tuple[Serving, str], method: str, path: str) -> None:
    """The same holds for 500 requests of each route."""
    explore(explored, method, path, 500)


def test_every_route_is_explored(explored: tuple[Serving, str]) -> None:
    """The list above is that of the document."""
    paths = explored[0].client.get("/openapi.json").json()["paths"]
    told = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert told == set(ROUTES)


def test_every_route_is_described(explored: tuple[Serving, str]) -> None:
    """Each says what it does, and each body has an example."""
    paths = explored[0].client.get("/openapi.json").json()["paths"]
    for path, methods in paths.items():
        for method, route in methods.items():
            assert route["description"], (method, path)
            for content in route.get("requestBody", {}).get("content", {}).values():
                assert "example" in content or "examples" in content, (method, path)
