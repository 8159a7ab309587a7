"""The official `openai` Python client against the static server."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from running import MODEL_NAME, Start, Static, wait_until

USER: Any = [{"role": "user", "content": "Say something."}]
KEY = "a-key"


def connect(static: Static, **options: Any) -> OpenAI:
    """A client that tries once, so that a refusal is what a test sees."""
    options = {"api_key": KEY, "max_retries": 0, "timeout": 60, **options}
    return OpenAI(base_url=f"{static.process.base_url}/v1", **options)


@pytest.fixture(scope="module")
def client(static: Static) -> Iterator[OpenAI]:
    """The official client of the shared server."""
    with connect(static) as client:
        yield client


def test_completion(client: OpenAI) -> None:
    """A completion has its text, finish reason and usage, and a seed gives the same text again."""
    answers = [
        client.completions.create(
            model=MODEL_NAME,
            prompt="Once",
            max_tokens=12,
            seed=seed,
            extra_body={"ignore_eos": True},
        )
        for seed in (3, 3, 4)
    ]
    first, again, other = (answer.choices[0] for answer in answers)
    assert first.text == again.text != other.text
    assert first.finish_reason == "length"
    usage = answers[0].usage
    assert usage is not None
    assert usage.completion_tokens == 12
    assert usage.total_tokens == usage.prompt_tokens + 12


def test_chat(client: OpenAI) -> None:
    """A chat answer has the assistant's message, finish reason and usage."""
    answer = client.chat.completions.create(
        model=MODEL_NAME,
        messages=USER,
        max_completion_tokens=9,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 9


def test_streamed_completion(client: OpenAI) -> None:
    """A streamed completion adds up to the whole one and ends in a chunk with the usage."""
    asked: Any = {
        "model": MODEL_NAME,
        "prompt": "Once",
        "max_tokens": 15,
        "seed": 5,
        "extra_body": {"ignore_eos": True},
    }
    whole = client.completions.create(**asked)
    options = {"include_usage": True}
    chunks = list(client.completions.create(**asked, stream=True, stream_options=options))
    *pieces, last = chunks
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    assert [piece.choices[0].finish_reason for piece in pieces][-2:] == [None, "length"]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == len(pieces) == 15


@pytest.mark.parametrize("usage", [False, True], ids=["plain", "usage"])
def test_streamed_chat(client: OpenAI, usage: bool) -> None:
    """A streamed chat adds up to the whole one; usage comes in a last chunk where it is asked for,
    else nowhere.
    """
    asked: Any = {
        "model": MODEL_NAME,
        "messages": USER,
        "max_tokens": 15,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }
    whole = client.chat.completions.create(**asked)
    options: Any = {"stream_options": {"include_usage": True}} if usage else {}
    chunks = list(client.chat.completions.create(**asked, stream=True, **options))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    text = "".join(delta.content or "" for delta in deltas)
    assert text == whole.choices[0].message.content
    told = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None]
    assert told == ([15] if usage else [])


def test_the_clients_own_stream_helper(client: OpenAI) -> None:
    """The client's accumulating stream reads our events and gives the final completion."""
    asked: Any = {
        "model": MODEL_NAME,
        "messages": USER,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }
    text = client.chat.completions.create(**asked, max_tokens=60).choices[0].message.content
    assert text is not None
    # It takes an answer that reached its length for a mistake, so this one ends at a stop string.
    stop = text[20:23]
    with client.chat.completions.stream(**asked, max_tokens=500, stop=stop) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].finish_reason == "stop"
    assert final.choices[0].message.content == text[: text.index(stop)]


def test_the_asynchronous_client(static: Static) -> None:
    """Requests of the asynchronous client that are sent together are all answered."""

    async def ask() -> list[int]:
        address = f"{static.process.base_url}/v1"
        async with openai.AsyncOpenAI(base_url=address, api_key=KEY, timeout=60) as client:
            answers = await asyncio.gather(
                *[
                    client.completions.create(
                        model=MODEL_NAME,
                        prompt="Once",
                        max_tokens=tokens,
                        extra_body={"ignore_eos": True},
                    )
                    for tokens in (3, 6, 9, 12, 15)
                ]
            )
        return [answer.usage.completion_tokens for answer in answers if answer.usage]

    assert asyncio.run(ask()) == [3, 6, 9, 12, 15]


def test_stop_strings(client: OpenAI) -> None:
    """A stop string ends the answer before it, with the reason `stop`."""
    asked: Any = {
        "model": MODEL_NAME,
        "prompt": "Once",
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }
    text = client.completions.create(**asked, max_tokens=60).choices[0].text
    stop = text[20:23]
    choice = client.completions.create(**asked, max_tokens=500, stop=[stop]).choices[0]
    assert (choice.text, choice.finish_reason) == (text[: text.index(stop)], "stop")


def test_models(client: OpenAI) -> None:
    """The model is listed."""
    assert [model.id for model in client.models.list()] == [MODEL_NAME]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": 3}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_requests(client: OpenAI, fields: Any, param: str) -> None:
    """What is wrong or not supported is the client's BadRequestError, which names the parameter."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL_NAME, prompt="Once", **fields)
    assert (caught.value.status_code, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"n": 2}, "n"), ({"logprobs": True}, "logprobs"), ({"tools": [{}]}, "tools")],
    ids=["n", "logprobs", "tools"],
)
def test_bad_chats(client: OpenAI, fields: Any, param: str) -> None:
    """A chat is refused in the same way, streamed or not."""
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=MODEL_NAME, messages=USER, stream=stream, **fields)
        assert caught.value.param == param


def test_an_unknown_model_and_route(client: OpenAI) -> None:
    """An unknown model, and a route that is not there, are the client's NotFoundError."""
    with pytest.raises(openai.NotFoundError, match="does not exist") as caught:
        client.completions.create(model="nope", prompt="Once")
    assert caught.value.param == "model"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL_NAME, input="Once")


@pytest.fixture(scope="module")
def narrow(start: Start) -> Static:
    """A server with a key, one row a batch and room for one to wait."""
    static = start("--max-queue", "1", "--api-key", KEY, batch_size=1)
    static.client.headers["authorization"] = f"Bearer {KEY}"
    return static


def test_a_wrong_key(narrow: Static) -> None:
    """A wrong key is the client's AuthenticationError; the right one is let in."""
    with connect(narrow, api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    with connect(narrow) as client:
        assert [model.id for model in client.models.list()] == [MODEL_NAME]


def test_a_full_queue(narrow: Static) -> None:
    """A full queue is the client's RateLimitError with Retry-After, and its own retries get in."""
    asked: Any = {"model": MODEL_NAME, "prompt": "Once", "extra_body": {"ignore_eos": True}}
    held: list[int] = []

    def hold() -> None:
        with connect(narrow) as client:
            usage = client.completions.create(**asked, max_tokens=400).usage
            held.append(usage.completion_tokens if usage else 0)

    threads = [threading.Thread(target=hold) for _ in range(2)]
    threads[0].start()
    wait_until(lambda: narrow.metric("static_batch_slots_held") == 1, "the first is running")
    threads[1].start()
    wait_until(lambda: narrow.metric("static_num_requests_waiting") == 1, "the second waits")
    with connect(narrow) as client:
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(**asked, max_tokens=2)
        assert int(caught.value.response.headers["retry-after"]) >= 1
        patient = client.with_options(max_retries=30)
        assert patient.completions.create(**asked, max_tokens=2).choices[0].finish_reason
    for thread in threads:
        thread.join(60)
    assert held == [400, 400]
    assert narrow.metric("static_request_refused_total", status="429") >= 2


def test_a_model_that_is_not_ready(start: Start) -> None:
    """A server whose model is not ready yet answers 503 with Retry-After, as the client's
    InternalServerError.
    """
    static = start(wait=False)
    wait_until(lambda: static.process.health()[0] == 503, "it listens while the model loads")
    with connect(static) as client, pytest.raises(openai.InternalServerError) as caught:
        client.completions.create(model=MODEL_NAME, prompt="Once")
    assert caught.value.status_code == 503
    assert int(caught.value.response.headers["retry-after"]) >= 1
    static.process.wait_ready(120)
