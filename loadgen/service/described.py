"""What the OpenAPI document says of routes beside their signatures: bodies, answers, examples."""

from __future__ import annotations

from typing import Any, Final

from loadgen.service.spec import KINDS, schema

Answers = dict[int | str, dict[str, Any]]

EXAMPLE: Final = {
    "kind": "run",
    "targets": [{"name": "mine", "base_url": "http://127.0.0.1:8000"}],
    "generate": {"num_prompts": 100, "request_rate": 4.0},
    "request": {"model": "my-model"},
    "output": {"label": "nightly", "goodput": {"ttft": 500, "e2el": 5000}},
}
_COMPARE: Final = {
    "kind": "compare",
    "targets": [
        {"name": "static", "base_url": "http://127.0.0.1:8001"},
        {"name": "vllm", "base_url": "http://127.0.0.1:8002"},
    ],
    "generate": {"preset": "lesson1", "num_prompts": 64, "request_rate": 8.0},
    "compare": {"blocks": 4},
}
_SWEEP: Final = {
    "kind": "sweep",
    "targets": [{"name": "mine", "base_url": "http://127.0.0.1:8000"}],
    "generate": {"preset": "lesson1"},
    "sweep": {"rates": [1, 2, 4, 8], "seconds_per_point": 30},
    "output": {"label": "how it bends"},
}
_CAPACITY: Final = {
    "kind": "capacity",
    "targets": [{"name": "mine", "base_url": "http://127.0.0.1:8000"}],
    "capacity": {"share": 0.95, "start_rate": 1, "max_rate": 64},
    "output": {"goodput": {"ttft": 500, "tpot": 50}},
}
_SIMULATE: Final = {
    "kind": "simulate",
    "generate": {"preset": "lesson1", "num_prompts": 1000, "request_rate": 2.0},
    "policies": {"policy": ["static", "continuous"], "batch_size": 16},
}
EXAMPLES: Final = (EXAMPLE, _COMPARE, _SWEEP, _CAPACITY, _SIMULATE)
_ID: Final = "20261129T140301Z-run-5f3a"
_TRACE: Final = {
    "id": "8c6f2d1e" * 8,
    "bytes": 8526,
    "requests": 100,
    "duration_s": 4.2,
    "prompt_tokens": 2000,
    "output_tokens": 2000,
}
_ROW: Final = {
    "id": _ID,
    "kind": "run",
    "state": "finished",
    "label": "nightly",
    "created_at": "2026-11-29T14:03:01.000000+00:00",
    "started_at": "2026-11-29T14:03:02.100+00:00",
    "targets": ["mine"],
    "requests": 100,
    "trace_sha256": _TRACE["id"],
    "verdict": "VALID",
    "output_tokens_per_s": {"mine": 463.5},
    "ttft_p50_ms": {"mine": 20.4},
    "exit_code": 0,
    "error": None,
    "answer": None,
    "keep": False,
    "repeat": False,
    "is_ours": True,
    "bytes": 303104,
}


def _json(description: str, example: Any = None, required: tuple[str, ...] = ()) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": {"type": "object", "required": list(required)}}
    if example is not None:
        content["example"] = example
    return {"description": description, "content": {"application/json": content}}


def _body(content_type: str, schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    content = {content_type: {"schema": schema, **more}}
    return {"requestBody": {"required": True, "content": content}}


def _bytes(description: str, *kinds: str) -> dict[str, Any]:
    return {"description": description, "content": {kind: {} for kind in kinds}}


ERRORS: Final[Answers] = {
    "4XX": {
        "description": "Refused: one line that says why",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {
                        "error": {
                            "type": "object",
                            "required": ["message"],
                            "properties": {"message": {"type": "string"}},
                        }
                    },
                },
                "example": {"error": {"message": "kind: must be one of " + ", ".join(KINDS)}},
            }
        },
    },
    507: _json("No disk for another run", required=("error",)),
}
STARTED: Final[Answers] = {
    200: _json("With `dry_run`: what would be sent", {"requests": 100, "output_tokens": 3412}),
    202: _json(
        "In line", {"id": _ID, "state": "queued", "url": f"/api/runs/{_ID}"}, ("id", "state", "url")
    ),
}
RUN: Final = _body(
    "application/json",
    schema(),
    examples={example["kind"]: {"value": example} for example in EXAMPLES},
)
LIST: Final[Answers] = {
    200: _json(
        "A page of runs",
        {"runs": [_ROW], "total": 1, "offset": 0, "limit": 50, "waiting": [], "running": []},
        ("runs", "total", "offset", "limit", "waiting", "running"),
    )
}
COMPARED: Final[Answers] = {
    200: _json("Figures of both, ratios b / a", {"same_trace": True, "pairs": []}, ("pairs",))
}
DETAIL: Final[Answers] = {
    200: _json("The run", {**_ROW, "summary": {"verdict": "VALID"}}, ("id", "state", "summary"))
}
KEEP: Final = _body(
    "application/json",
    {
        "type": "object",
        "required": ["keep"],
        "additionalProperties": False,
        "properties": {"keep": {"type": "boolean"}},
    },
    example={"keep": True},
)
STOPPED: Final[Answers] = {202: _json("It stops", {"id": _ID, "state": "running"}, ("id", "state"))}
EVENTS: Final[Answers] = {
    200: {
        "description": "Events until the run ends",
        "content": {
            "text/event-stream": {
                "example": 'event: live\ndata: {"state":"running","elapsed_s":3.1}\n\n'
            }
        },
    }
}
REPORT: Final[Answers] = {200: _bytes("The report", "text/html", "text/plain")}
POINT: Final[Answers] = {200: _bytes("The point's report", "text/html")}
RECORDS: Final[Answers] = {
    200: _bytes("One row a request", "application/vnd.apache.parquet", "text/csv")
}
VLLM: Final[Answers] = {200: _json("vLLM's own form")}
TRACE: Final[Answers] = {201: _json("Kept", _TRACE, ("id", "requests"))}
ROWS: Final = _body(
    "application/jsonl",
    {"type": "string"},
    example='{"timestamp":0,"input_length":20,"output_length":20,"hash_ids":[0]}\n',
)
TRACES: Final[Answers] = {200: _json("Traces", {"traces": [_TRACE]}, ("traces",))}
HEALTH: Final[Answers] = {
    200: _json("It answers", {"status": "ok"}, ("status",)),
    503: _json("Its queue stands still", required=("error",)),
}
METRICS: Final[Answers] = {200: _bytes("Prometheus's text format", "text/plain")}
SETTINGS: Final[Answers] = {200: _json("Settings", {"kinds": list(KINDS)}, ("kinds", "version"))}
LOGIN: Final[Answers] = {204: {"description": "The cookie is set"}}
TOKEN: Final = _body(
    "application/json",
    {"type": "object", "required": ["token"], "properties": {"token": {"type": "string"}}},
    example={"token": "the value of LOADGEN_API_TOKEN"},
)
