"""schemathesis on the server's own OpenAPI document: what it allows, and what it forbids."""

from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from running import MODEL_NAME, Start, Static
from schemathesis import Case, GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
CONTEXT_TOKENS = 48
# allowed: as the document says; served: the same with the model's name and lengths that fit, which
# no document can say, so that more than their refusal is reached; forbidden: against the document.
KINDS = ("allowed", "served", "forbidden")
GENERATING = ("/v1/completions", "/v1/chat/completions")
READING = ("/v1/models", "/health", "/metrics")
every_kind = pytest.mark.parametrize(
    ("method", "path", "kind"),
    [("POST", path, kind) for path in GENERATING for kind in KINDS]
    + [("GET", path, "allowed") for path in READING],
    ids=lambda text: text,
)


@pytest.fixture(scope="module")
def short(start: Start) -> Static:
    """A server with a small context: answers that are allowed any length are short."""
    return start("--max-wait", "0", "--max-model-len", str(CONTEXT_TOKENS), batch_size=1)


def tame(case: Case) -> Case:
    """The case with the right model and with lengths that leave room for its prompt."""
    body = case.body
    if isinstance(body, dict):
        body["model"] = MODEL_NAME
        for name in ("max_tokens", "max_completion_tokens"):
            if body.get(name) is not None:
                body[name] = body[name] % 8 + 1
        if body.get("min_tokens") is not None:
            body["min_tokens"] = 0
        body["stream_options"] = body.get("stream_options") if body.get("stream") else None
        if isinstance(body.get("prompt"), list):
            body["prompt"] = body["prompt"][:1]
        elif not body.get("prompt"):
            body["prompt"] = "a"
    return case


def explore(static: Static, method: str, path: str, kind: str, cases: int) -> None:
    """Send generated requests; each answer must be one that the document knows, and no 5xx."""
    schema = schemathesis.openapi.from_url(f"{static.process.base_url}/openapi.json")
    mode = GenerationMode.NEGATIVE if kind == "forbidden" else GenerationMode.POSITIVE
    strategy = schema[path][method].as_strategy(generation_mode=mode)
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=cases,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy.map(tame) if kind == "served" else strategy)
    def answered(case: Case) -> None:
        response = case.call_and_validate(checks=CHECKS, timeout=60)
        statuses[response.status_code] += 1

    answered()
    print(method, path, kind, dict(statuses))
    assert kind != "served" or statuses[200] > 0
    assert static.client.get("/health").json() == {"status": "ready", "restarts": 0}
    assert static.metric("static_batches_total", result="failed") == 0


@pytest.mark.slow
@every_kind
def test_generated_requests(short: Static, method: str, path: str, kind: str) -> None:
    """Requests that the document allows or forbids get no 5xx and only answers that it knows."""
    explore(short, method, path, kind, 30)


@pytest.mark.long
@every_kind
def test_many_generated_requests(short: Static, method: str, path: str, kind: str) -> None:
    """The same holds for 500 requests of each kind."""
    explore(short, method, path, kind, 500)
