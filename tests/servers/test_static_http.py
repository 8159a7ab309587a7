"""The static server over HTTP: shapes, limits, errors."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from running import MODEL_NAME, Static

from servers.static.prompts import Prompts

CAPTURES = Path(__file__).parent / "captures"
USER = [{"role": "user", "content": "Say something."}]


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON events of a stream, which must end in [DONE]."""
    *data, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in data]


def shape(value: Any) -> Any:
    """The keys of a JSON value in their order, without its values."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return [shape(inner) for inner in value] if isinstance(value, list) else None


def captured(name: str) -> list[dict[str, Any]]:
    """The events that a real vLLM sent."""
    text = (CAPTURES / name).read_text()
    return [json.loads(found) for found in re.findall(r"^data: (\{.*\})$", text, re.MULTILINE)]


@pytest.mark.parametrize(
    ("capture", "options"),
    [
        pytest.param("completions_plain", None, id="completions"),
        pytest.param("completions_include_usage", {"include_usage": True}, id="completions-usage"),
        pytest.param(
            "completions_continuous_usage",
            {"include_usage": True, "continuous_usage_stats": True},
            id="completions-continuous",
        ),
        pytest.param("chat_include_usage", {"include_usage": True}, id="chat-usage"),
        pytest.param(
            "chat_continuous_usage",
            {"include_usage": True, "continuous_usage_stats": True},
            id="chat-continuous",
        ),
    ],
)
def test_chunks_have_vllms_shape(
    static: Static, capture: str, options: dict[str, bool] | None
) -> None:
    """First, middle, finish and usage chunks have the keys of vLLM's, in the same order."""
    theirs = captured(f"sse_{capture}.txt")
    body: dict[str, Any] = {"stream": True, "max_tokens": 6, "ignore_eos": True}
    if options:
        body["stream_options"] = options
    if capture.startswith("chat"):
        response = static.chat(messages=USER, **body)
    else:
        response = static.completion(prompt="Once", **body)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    ours = events(response)
    tail = 2 if options else 1
    for mine, vllms in [(ours[:2], theirs[:2]), (ours[-tail:], theirs[-tail:])]:
        assert json.dumps(shape(mine)) == json.dumps(shape(vllms))
    role_chunks = 1 if capture.startswith("chat") else 0
    assert len(ours) == role_chunks + 6 + (tail - 1)


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_whole_answers_have_vllms_keys(static: Static, chat: bool) -> None:
    """An answer without streaming has the keys of vLLM's, but those of features it alone has."""
    name = "json_chat.txt" if chat else "json_completions.txt"
    theirs = shape(json.loads((CAPTURES / name).read_text()))
    response = static.chat(messages=USER) if chat else static.completion(prompt="Once")
    ours = shape(response.json())
    for only_vllm in ("kv_transfer_params", "ec_transfer_params", "metrics"):
        del theirs[only_vllm]
    del theirs["choices"][0]["routed_experts"]
    assert ours == theirs


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_streaming_equals_not_streaming(static: Static, chat: bool) -> None:
    """The pieces of a stream add up to the answer without streaming, usage and reason included."""
    ask = static.chat if chat else static.completion
    body: dict[str, Any] = {"messages": USER} if chat else {"prompt": "Once upon a time"}
    body |= {"max_tokens": 40, "ignore_eos": True, "temperature": 0.9, "seed": 5}
    whole = ask(**body).json()
    pieces = events(ask(**body, stream=True, stream_options={"include_usage": True}))
    choices = [event["choices"][0] for event in pieces[:-1]]
    if chat:
        text = "".join(choice["delta"]["content"] for choice in choices)
        assert text == whole["choices"][0]["message"]["content"]
    else:
        assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    assert pieces[-1]["usage"].items() <= whole["usage"].items()


def test_usage_counts_tokens(static: Static) -> None:
    """Usage counts the prompt's ids and one completion token a step, in every chunk if asked."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": [5, 6, 7], "max_tokens": 9, "ignore_eos": True}
    pieces = events(static.completion(**body, stream=True, stream_options=options))
    counts = [event["usage"]["completion_tokens"] for event in pieces]
    assert counts == [*range(1, 10), 9]
    assert {event["usage"]["prompt_tokens"] for event in pieces} == {3}
    assert pieces[-1]["usage"]["total_tokens"] == 12


def test_chat_uses_the_models_template(static: Static, small_model: Path) -> None:
    """A chat is the completion of the conversation under the model's own template."""
    text = "<|im_start|>user\nSay something.<|im_end|>\n<|im_start|>assistant\n"
    ids = Prompts(str(small_model), None).encode(text, special=False, param="prompt")
    chat = static.chat(messages=USER, max_tokens=12).json()
    completion = static.completion(prompt=ids, max_tokens=12).json()
    assert chat["choices"][0]["message"]["content"] == completion["choices"][0]["text"]
    assert chat["usage"]["prompt_tokens"] == len(ids)


def test_stop_strings_end_a_row(static: Static) -> None:
    """A stop string ends the answer before it, names itself, and frees the model for the next."""
    whole = static.completion(prompt="Once", max_tokens=60, ignore_eos=True).json()
    text = whole["choices"][0]["text"]
    stop = text[20:23]
    body = {"prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stop": [stop]}
    choice = static.completion(**body).json()["choices"][0]
    assert choice["text"] == text[: text.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    included = static.completion(**body, include_stop_str_in_output=True).json()["choices"][0]
    assert included["text"] == text[: text.index(stop)] + stop


def test_models_and_health(static: Static) -> None:
    """The model is listed under its served name with its context, and a ready server says 200."""
    card = static.client.get("/v1/models").json()["data"][0]
    assert (card["id"], card["object"], card["max_model_len"]) == (MODEL_NAME, "model", 2048)
    health = static.client.get("/health")
    assert (health.status_code, health.json()["status"]) == (200, "ready")


@pytest.mark.parametrize(
    ("fields", "status", "kind", "param"),
    [
        ({"model": "nope"}, 404, "NotFoundError", "model"),
        ({"max_tokens": 5000}, 400, "BadRequestError", "max_tokens"),
        ({"max_tokens": 2048}, 400, "BadRequestError", "max_tokens"),
        ({"max_tokens": "many"}, 400, "BadRequestError", "max_tokens"),
        ({"temperature": -1}, 400, "BadRequestError", "temperature"),
        ({"n": 2}, 400, "BadRequestError", "n"),
        ({"prompt": None}, 400, "BadRequestError", "prompt"),
        ({"prompt": [10**6]}, 400, "BadRequestError", "prompt"),
        ({"prompt": [-1]}, 400, "BadRequestError", "prompt"),
        ({"prompt": [5] * 2048}, 400, "BadRequestError", "prompt"),
        ({"prompt": "word " * 200_000}, 400, "BadRequestError", "prompt"),
        ({"prompt": "\ud800"}, 400, "BadRequestError", "prompt"),
        ({"stream_options": {"include_usage": True}}, 400, "BadRequestError", "stream_options"),
        ({"stream_options": 3, "stream": True}, 400, "BadRequestError", "stream_options"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_clients_mistake(
    static: Static, fields: dict[str, Any], status: int, kind: str, param: str
) -> None:
    """A wrong field gets OpenAI's error JSON with the status and the field's name."""
    content = json.dumps({"prompt": "a", **fields})
    headers = {"content-type": "application/json"}
    response = static.client.post("/v1/completions", content=content, headers=headers)
    error = response.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert (response.status_code, error["code"], error["type"], error["param"]) == (
        status,
        status,
        kind,
        param,
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"\xff\xfe",
        b'{"prompt": "a", "prompt": ',
        b"[" * 100_000,
        b'{"prompt":"a","temperature":1e999}',
        b'{"prompt":"a","max_tokens":' + b"9" * 5000 + b"}",
    ],
    ids=lambda content: repr(content[:12]),
)
@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_malformed_bodies(static: Static, path: str, content: bytes) -> None:
    """A body that is not the right JSON is the client's mistake, whatever it holds."""
    headers = {"content-type": "application/json"}
    response = static.client.post(f"/v1/{path}", content=content, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


@pytest.mark.parametrize(
    "messages",
    [[], [{"content": "a"}], [{"role": "user", "content": [{"type": "image_url"}]}], "hello", None],
    ids=str,
)
def test_wrong_messages(static: Static, messages: Any) -> None:
    """Messages that are none get a 400 that names them."""
    response = static.chat(messages=messages)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")


def test_unknown_routes_and_methods(static: Static) -> None:
    """What does not exist is a 404, a wrong method a 405, both as error JSON."""
    for method, path, status in [("GET", "/v1/nope", 404), ("GET", "/v1/completions", 405)]:
        response = static.client.request(method, path)
        assert (response.status_code, response.json()["error"]["code"]) == (status, status)
