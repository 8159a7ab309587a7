"""How batches form, and what rows in one batch do to each other."""

import asyncio
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from running import Start, Static, wait_until


class Counts:
    """What a server counted since this was made."""

    NAMES = (
        "static_batch_rows_count",
        "static_batch_rows_sum",
        "static_decode_steps_total",
        "static_row_steps_total",
        "static_wasted_row_steps_total",
        "static_prompt_tokens_total",
        "static_padding_tokens_total",
        "static_generation_tokens_total",
    )

    def __init__(self, static: Static) -> None:
        self._static = static
        self._before = self._now()

    def _now(self) -> dict[str, float]:
        return {name: self._static.metric(name) for name in self.NAMES}

    def since(self) -> dict[str, float]:
        """Increments, under the names without prefix."""
        wait_until(lambda: self._static.metric("static_batch_slots_held") == 0, "the batch ends")
        return {
            name.removeprefix("static_"): now - self._before[name]
            for name, now in self._now().items()
        }


def row(prompt: list[int], max_tokens: int) -> dict[str, object]:
    return {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}


def test_a_batch_forms_at_its_size(start: Start) -> None:
    """As many requests as a batch has rows start at once, whatever --max-wait says."""
    static = start("--max-wait", "600000", batch_size=3)
    counts = Counts(static)
    static.together(*[row([5, 6], 4)] * 3)
    assert counts.since()["batch_rows_count"] == 1
    assert static.metric("static_batch_rows_sum") == 3


def test_a_batch_forms_after_the_longest_wait(static: Static) -> None:
    """Fewer requests than rows start together once the oldest has waited its time."""
    before_s = static.metric("static_batch_form_wait_seconds_sum")
    counts = Counts(static)
    static.together(row([5], 4), row([6], 4))
    since = counts.since()
    assert (since["batch_rows_count"], since["batch_rows_sum"]) == (1, 2)
    waited_s = static.metric("static_batch_form_wait_seconds_sum") - before_s
    assert 0.2 < waited_s < 1.0  # --max-wait 300, less what passed before the model was idle


def test_waste_and_padding_are_counted(static: Static) -> None:
    """Steps, rows, rows that had ended, prompt and padding tokens are those of the batch."""
    counts = Counts(static)
    answers = static.together(row([5], 2), row([5] * 7, 10), row([5] * 3, 10), row([5] * 4, 5))
    assert counts.since() == {
        "batch_rows_count": 1,
        "batch_rows_sum": 4,
        "decode_steps_total": 10,
        "row_steps_total": 40,
        "wasted_row_steps_total": 8 + 5,
        "prompt_tokens_total": 15,
        "padding_tokens_total": 4 * 7 - 15,
        "generation_tokens_total": 27,
    }
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [2, 10, 10, 5]


def test_batch_mates_do_not_change_an_answer(static: Static) -> None:
    """Each row of a mixed batch gets the answer that it gets alone, sampled or not."""
    bodies = [
        {**row([40, 41, 42], 24)},
        {**row([50] * 9, 12), "temperature": 1.0, "seed": 7},
        {**row([60] * 5, 30), "temperature": 0.8, "top_p": 0.9, "seed": 8},
        {**row([70, 71], 6), "temperature": 1.2, "top_k": 5, "seed": 9},
    ]
    alone = [static.completion(**body).json()["choices"][0]["text"] for body in bodies]
    counts = Counts(static)
    together = [answer["choices"][0]["text"] for answer in static.together(*bodies)]
    assert counts.since()["batch_rows_count"] == 1
    assert together == alone


def test_seeds_and_their_absence(static: Static) -> None:
    """The same seed gives the same text, another seed another, no seed a fresh one."""
    body = {**row([5, 6, 7], 30), "temperature": 1.0}
    first, again, other, free, free_too = (
        static.completion(**body, **seed).json()["choices"][0]["text"]
        for seed in ({"seed": 1}, {"seed": 1}, {"seed": 2}, {}, {})
    )
    assert first == again
    assert len({first, other, free, free_too}) == 4


def test_top_k_one_is_greedy(static: Static) -> None:
    """Sampling among one token, or with a tiny top_p, is greedy."""
    greedy = static.completion(**row([5, 6, 7], 20)).json()["choices"][0]["text"]
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}):
        answer = static.completion(**{**row([5, 6, 7], 20), "temperature": 2.0, **narrow}).json()
        assert answer["choices"][0]["text"] == greedy


def test_a_client_that_leaves_a_running_batch(static: Static) -> None:
    """A hang-up is noticed in mid-stream; its row runs on, wasted, and leaves with the batch."""
    aborts = partial(static.metric, "static_request_finished_total", finished_reason="abort")
    told_tokens = partial(static.metric, "static_request_generation_tokens_sum")
    before, told_before = aborts(), told_tokens()
    counts = Counts(static)

    async def one_leaves() -> tuple[dict[str, Any], dict[str, Any]]:
        path = "/v1/completions"
        async with httpx.AsyncClient(base_url=static.process.base_url, timeout=60) as client:
            stays = asyncio.create_task(client.post(path, json=row([6], 300)))
            body = {**row([5], 600), "stream": True}
            async with client.stream("POST", path, json=body) as response:
                await anext(response.aiter_raw())
            await asyncio.to_thread(wait_until, lambda: aborts() == before + 1, "it is noticed")
            assert static.metric("static_batch_slots_held") == 2
            assert static.metric("static_num_requests_running") == 1
            next_one = asyncio.create_task(client.post(path, json=row([7], 2)))
            return (await stays).json(), (await next_one).json()

    stayed, after = asyncio.run(one_leaves())
    assert stayed["usage"]["completion_tokens"] == 300
    assert after["usage"]["completion_tokens"] == 2
    since = counts.since()
    assert (since["batch_rows_count"], since["batch_rows_sum"]) == (2, 3)
    steps = since["decode_steps_total"] - 2
    assert 300 <= steps < 400  # it ends with the last that somebody waits for, or soon after
    assert since["row_steps_total"] == 2 * steps + 2
    assert since["generation_tokens_total"] == told_tokens() - told_before < 300 + 300 + 2
    assert since["wasted_row_steps_total"] == 2 * steps - (since["generation_tokens_total"] - 2)


def test_a_batch_that_all_have_left_ends(static: Static) -> None:
    """Nobody waits for the rest of it, so the next batch need not either."""
    counts = Counts(static)

    async def all_leave() -> dict[str, Any]:
        path = "/v1/completions"
        async with httpx.AsyncClient(base_url=static.process.base_url, timeout=60) as client:
            body = {**row([5], 1500), "stream": True}
            async with client.stream("POST", path, json=body) as response:
                await anext(response.aiter_raw())
            return (await client.post(path, json=row([7], 2))).json()

    assert asyncio.run(all_leave())["usage"]["completion_tokens"] == 2
    assert counts.since()["decode_steps_total"] < 700


def test_release_batch_holds_everything_back(start: Start) -> None:
    """Under --release batch no answer comes before the batch's last step."""
    static = start("--release", "batch", "--max-wait", "60000", batch_size=2)
    before = static.metric("static_decode_steps_total")
    short, long = row([5, 6], 3), row([7], 60)
    answers = static.together(short, long)
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [3, 60]
    assert static.metric("static_decode_steps_total") - before == 60
    # Both requests got their first and last token at once, at the batch's end.
    ttft_s = static.metric("static_time_to_first_token_seconds_sum")
    e2e_s = static.metric("static_e2e_request_latency_seconds_sum")
    assert ttft_s == pytest.approx(e2e_s, abs=0.05)


def test_release_finished_lets_tokens_flow(static: Static) -> None:
    """By default each token leaves in a chunk of its own, long before the batch ends."""
    body = {**row([5], 400), "stream": True}
    with static.client.stream("POST", "/v1/completions", json=body) as response:
        chunks = response.iter_raw()
        next(chunks)
        assert static.metric("static_batch_slots_held") == 1
        assert sum(chunk.count(b'"text"') for chunk in chunks) == 399


@pytest.fixture(scope="module")
def terse(start: Start, small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Static:
    """A server whose model ends its sequences soon: half of its vocabulary says so."""
    model = tmp_path_factory.mktemp("terse-model") / "model"
    shutil.copytree(small_model, model)
    config = json.loads((model / "generation_config.json").read_text())
    config["eos_token_id"] = list(range(3, 400, 2))
    (model / "generation_config.json").write_text(json.dumps(config))
    return start(model=model)


@pytest.mark.parametrize("min_tokens", [0, 25], ids=["eos-at-once", "eos-after-min"])
def test_end_of_sequence(terse: Static, min_tokens: int) -> None:
    """The end-of-sequence token ends a row, counts as a token, and waits for min_tokens."""
    body = {"prompt": [5, 6, 7], "max_tokens": 200, "min_tokens": min_tokens}
    answer = terse.completion(**body).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert min_tokens < answer["usage"]["completion_tokens"] < 200
    ignored = terse.completion(**body, ignore_eos=True).json()
    assert ignored["usage"]["completion_tokens"] == 200
    assert ignored["choices"][0]["finish_reason"] == "length"
