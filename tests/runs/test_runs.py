"""What a whole run sends, keeps and says."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from tests.runs.conftest import call, events_of, recorder, records_of, truth

pytestmark = pytest.mark.slow

MEASURED = (0, 4)
"""The run was made; on a busy machine its verdict may well be INVALID."""
DRAW = ("--request-rate", "100", "--output-len", "6", "--json", "--quiet")


@pytest.mark.parametrize("workers", ["1", "2", "3"])
def test_the_union_of_what_workers_send_is_the_trace(
    quick: str, tmp_path: Path, workers: str
) -> None:
    """Each row is sent once, by one worker, at its own due time, whatever their number."""
    words = ("--num-prompts", "50", "--workers", workers, "--result-dir", str(tmp_path))
    done = call("run", "--base-url", quick, *DRAW, *words)
    assert done.code in MEASURED, done.stderr
    records = sorted(records_of(done.path), key=lambda record: record["seq"])
    trace = [json.loads(line) for line in (done.path / "trace.jsonl").read_bytes().splitlines()]
    assert [r["seq"] for r in records] == list(range(50))
    assert [r["prompt_tokens_asked"] for r in records] == [row["input_length"] for row in trace]
    assert {r["worker"] for r in records} == set(range(int(workers)))
    (turn,) = [event for event in events_of(done.path) if event["event"] == "turn"]
    for record, row in zip(records, trace, strict=True):
        due_s = record["due_s"] - turn["origin_s"]
        assert due_s == pytest.approx(row["timestamp"] / 1000, abs=2e-6)
    assert len([e for e in events_of(done.path) if e["event"] == "worker"]) == int(workers)


def test_both_targets_of_a_comparison_get_the_same_bytes(tmp_path: Path) -> None:
    """The same trace and seed give the same requests, to each target and in each run."""
    with recorder() as (first, first_bodies), recorder() as (second, second_bodies):
        for _ in range(2):
            done = call(
                *("compare", "--target", f"a={first}", "--target", f"b={second}"),
                *("--num-prompts", "12", "--model", "m", "--result-dir", str(tmp_path)),
                *("--request-rate", "inf", "--output-len", "4", "--json", "--quiet"),
            )
            assert done.code in MEASURED, done.stderr
    ours, theirs = sorted(first_bodies()), sorted(second_bodies())
    assert ours == theirs
    assert len(ours) >= 24


def test_a_closed_loop_keeps_its_width(quick: str, tmp_path: Path) -> None:
    """Never more than --max-concurrency in flight, and never fewer while shots are left."""
    done = call(
        *("run", "--base-url", quick, "--num-prompts", "40", "--closed-loop", *DRAW),
        *("--max-concurrency", "5", "--result-dir", str(tmp_path)),
    )
    assert done.code in MEASURED, done.stderr
    records = records_of(done.path)
    moments = sorted([(r["start_s"], 1) for r in records] + [(r["end_s"], -1) for r in records])
    now, most = 0, 0
    for _, step in moments:
        now += step
        most = max(most, now)
    assert most == 5
    assert all(r["start_s"] - r["due_s"] < 0.5 for r in records)
    assert done.summary["targets"]["target"]["completed"] == 40


def test_a_gang_waits_for_its_longest_member(quick: str, tmp_path: Path) -> None:
    """Gangs are sent together, and the next not before the last of the one before has ended."""
    done = call(
        *("run", "--base-url", quick, "--num-prompts", "12", "--gang", "4", "--gang-pad"),
        *("--output-min", "3", "--output-max", "30", "--json", "--quiet"),
        *("--result-dir", str(tmp_path)),
    )
    assert done.code in MEASURED, done.stderr
    records = records_of(done.path)
    gangs = [[r for r in records if r["gang"] == gang] for gang in range(3)]
    assert [len(gang) for gang in gangs] == [4, 4, 4]
    for before, after in itertools.pairwise(gangs):
        assert min(r["start_s"] for r in after) >= max(r["end_s"] for r in before)
    for gang in gangs:
        assert len({r["output_tokens_asked"] for r in gang}) == 1


@pytest.mark.parametrize(
    ("stop", "word"),
    [
        (("--max-duration", "0.5"), "--max-duration"),
        (("--max-output-tokens-total", "60"), "--max-output-tokens-total"),
    ],
    ids=["duration", "tokens"],
)
def test_a_hard_stop(quick: str, tmp_path: Path, stop: tuple[str, ...], word: str) -> None:
    """The run sends nothing more, waits for what is in flight, and says why it stopped."""
    done = call(
        *("run", "--base-url", quick, "--num-prompts", "400", *DRAW, *stop),
        *("--result-dir", str(tmp_path)),
    )
    target = done.summary["targets"]["target"]
    assert 0 < target["requests"] < 400
    assert target["completed"] > 0
    assert set(target["outcomes"]) <= {"ok", "dropped"}
    assert word in done.summary["stopped"]
    assert any(word in reason["text"] for reason in done.summary["reasons"])


def test_a_storm_of_errors_stops_the_run(tmp_path: Path) -> None:
    """--max-error-share ends a run whose requests fail, and the exit code says so."""
    with truth("--fault", '{"kind":"status","status":503}', "--fault-from", "8") as url:
        done = call(
            *("run", "--base-url", url, "--num-prompts", "400", *DRAW),
            *("--max-error-share", "0.2", "--result-dir", str(tmp_path)),
        )
    target = done.summary["targets"]["target"]
    assert done.code == 4
    assert target["requests"] < 400
    assert target["outcomes"]["http_5xx"] > 0
    assert "--max-error-share" in done.summary["stopped"]


def test_targets_have_keys_and_models_of_their_own(tmp_path: Path) -> None:
    """Each is asked with its own, and neither sees the other's."""
    with (
        truth("--api-key", "key-of-a", "--model", "one") as a,
        truth("--api-key", "key-of-b", "--model", "two") as b,
    ):
        done = call(
            *("compare", "--target", f"a={a}", "--target", f"b={b}", "--num-prompts", "5"),
            *("--request-rate", "50", "--output-len", "3", "--model", "one"),
            *("--target-model", "b=two", "--target-api-key-env", "b=KEY_B"),
            *("--result-dir", str(tmp_path), "--json", "--quiet"),
            OPENAI_API_KEY="key-of-a",
            KEY_B="key-of-b",
        )
    assert done.code in (0, 4), done.stderr
    header = json.loads((done.path / "header.json").read_bytes())
    assert [target["model"] for target in header["targets"]] == ["one", "two"]
    assert {t["completed"] for t in done.summary["targets"].values()} == {5}
    files = [path.read_bytes() for path in done.path.iterdir()]
    assert not any(key in data for data in files for key in (b"key-of-a", b"key-of-b"))


def test_a_key_is_found_in_no_artefact(tmp_path: Path) -> None:
    """Keys in the environment, a header, a URL and a body field reach the server and no file."""
    keys = [f"canary-{n}-0123456789abcdef" for n in range(4)]
    with truth("--api-key", keys[0], "--ttft-ms", "5", "--itl-ms", "1") as url:
        done = call(
            *("run", "--base-url", f"{url}/v1?token={keys[1]}", "--num-prompts", "5", "--json"),
            *("--request-rate", "inf", "--output-len", "3", "--header", f"X-Secret={keys[2]}"),
            *("--extra-body", json.dumps({"api_key": keys[3]}), "--label", f"run {keys[0]}"),
            *("--result-dir", str(tmp_path)),
            OPENAI_API_KEY=keys[0],
        )
    assert done.code in MEASURED, done.stderr
    assert done.summary["targets"]["target"]["completed"] == 5
    artefacts = {file.name: file.read_bytes() for file in done.path.iterdir()}
    artefacts |= {"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}
    assert {"header.json", "report.html", "records.parquet", "summary.json"} <= set(artefacts)
    found = [
        (name, key) for name, data in artefacts.items() for key in keys if key.encode() in data
    ]
    assert found == []


@pytest.mark.parametrize(("key", "completed"), [("sk-right\n", 3), ("sk-wrong", 0)])
def test_a_key_from_a_file(tmp_path: Path, key: str, completed: int) -> None:
    """--api-key-file gives the key that the file holds, without the line's end."""
    file = tmp_path / "key"
    file.write_text(key)
    with truth("--api-key", "sk-right", "--ttft-ms", "5", "--itl-ms", "1") as url:
        done = call(
            *("run", "--base-url", url, "--api-key-file", str(file), "--num-prompts", "3"),
            *(
                "--output-len",
                "3",
                "--request-rate",
                "inf",
                "--result-dir",
                str(tmp_path),
                "--json",
            ),
            *("--model", "m"),
        )
    if completed:
        assert done.summary["targets"]["target"]["completed"] == completed
    else:
        assert done.code == 2
        assert "401" in done.stderr


def test_what_was_due_and_never_sent_is_dropped(tmp_path: Path) -> None:
    """Under a cap, a hard stop leaves a record for each request that was due and still waited."""
    with truth("--ttft-ms", "400", "--itl-ms", "1") as url:
        done = call(
            *("run", "--base-url", url, "--num-prompts", "50", "--request-rate", "inf"),
            *("--max-concurrency", "2", "--max-duration", "0.5", "--output-len", "2"),
            *("--json", "--quiet", "--num-warmups", "0", "--result-dir", str(tmp_path)),
        )
    outcomes = done.summary["targets"]["target"]["outcomes"]
    assert outcomes["ok"] >= 2
    assert outcomes["dropped"] >= 40
    assert sum(outcomes.values()) == 50
    assert len(records_of(done.path)) == 50


@pytest.mark.parametrize("held", [True, False], ids=["held", "refused"])
def test_lengths_are_held_where_they_can_be(tmp_path: Path, held: bool) -> None:
    """Answers that would end early have their asked length; where the fields are refused they end
    early, are no failures, and the verdict says what is missing."""
    refused = () if held else ("--reject", "ignore_eos,min_tokens")
    with truth("--ttft-ms", "5", "--itl-ms", "1", "--eos-after", "4", *refused) as url:
        words = ("--num-prompts", "10", "--result-dir", str(tmp_path))
        done = call("run", "--base-url", url, *DRAW, *words)
    assert done.code in MEASURED, done.stderr
    records = records_of(done.path)
    assert {r["outcome"] for r in records} == {"ok"}
    assert {r["output_tokens_asked"] for r in records} == {6}
    assert {r["output_tokens_served"] for r in records} == {6 if held else 4}
    rules = {reason["rule"] for reason in done.summary["reasons"]}
    assert ("length_shortfall" in rules) is not held


def test_a_held_length_that_falls_short_is_a_failure(tmp_path: Path) -> None:
    """Once lengths are agreed on, an answer with fewer tokens has the outcome `short`."""
    fault = ("--fault", '{"kind":"short","after_tokens":2}', "--fault-from", "12")
    with truth("--ttft-ms", "5", "--itl-ms", "1", *fault) as url:
        words = ("--num-prompts", "20", "--result-dir", str(tmp_path))
        done = call("run", "--base-url", url, *DRAW, *words)
    outcomes = done.summary["targets"]["target"]["outcomes"]
    assert outcomes["short"] > 5
    assert set(outcomes) <= {"ok", "short"}


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("with_tokenizer", [True, False], ids=["tokenizer", "probes"])
def test_prompts_have_the_asked_tokens_by_the_servers_count(
    tmp_path: Path, endpoint: str, with_tokenizer: bool
) -> None:
    """A chat template and special tokens are counted in, and the report says how many they are."""
    from tests.unit.test_prompts import with_special_tokens

    with_special_tokens().save(str(tmp_path / "tokenizer.json"))
    given = ("--tokenizer", str(tmp_path)) if with_tokenizer else ()
    words = ("--ttft-ms", "5", "--itl-ms", "1", "--special-tokens", "2", "--template-tokens", "31")
    with truth(*words) as url:
        done = call(
            *("run", "--base-url", url, "--num-prompts", "30", "--request-rate", "200"),
            *("--input-min", "40", "--input-max", "900", "--output-len", "3", *given),
            *(
                "--endpoint",
                endpoint,
                "--result-dir",
                str(tmp_path / "runs"),
                "--quiet",
                "--workers",
                "2",
            ),
        )
    assert done.code in MEASURED, done.stderr
    (path,) = (tmp_path / "runs").iterdir()
    records = records_of(path)
    assert [r["prompt_tokens_served"] - r["prompt_tokens_asked"] for r in records] == [0] * 30
    header = json.loads((path / "header.json").read_bytes())
    fixed = 2 if endpoint == "completions" else 31
    assert header["targets"][0]["fixed_prompt_tokens"] == fixed
    assert header["prompts"]["made_with"] == ("tokenizer" if with_tokenizer else "calibration")
    assert f"counts {fixed} tokens in every prompt" in done.stdout
    assert re.search(r"prompt tokens off, mean / max +0\.0 / 0", done.stdout)
    assert f"counts {fixed} tokens in every prompt" in (path / "report.html").read_text()


def test_token_ids_are_sent(tmp_path: Path) -> None:
    """--token-ids sends lists of ids, the tokenizer found in the directory that --model names."""
    from tests.unit.test_prompts import word_level

    word_level().save(str(tmp_path / "tokenizer.json"))
    with recorder() as (url, bodies):
        done = call(
            *("run", "--base-url", url, "--num-prompts", "5", "--model", str(tmp_path)),
            *("--request-rate", "inf", "--output-len", "2", "--input-len", "20", "--token-ids"),
            *("--json", "--quiet", "--result-dir", str(tmp_path / "runs")),
        )
        assert done.code == 2
        assert "--token-ids: target does not take" in done.stderr, "it counts all as one token"
        sent = json.loads(bodies()[-1])["prompt"]
    assert len(sent) == 48
    assert all(type(token) is int for token in sent)
    with truth("--ttft-ms", "5", "--itl-ms", "1", "--special-tokens", "9") as url:
        done = call(
            *("run", "--base-url", url, "--num-prompts", "9", "--model", str(tmp_path), *DRAW),
            *("--token-ids", "--result-dir", str(tmp_path / "runs")),
        )
    assert done.code in MEASURED, done.stderr
    records = records_of(done.path)
    assert all(r["prompt_tokens_served"] == r["prompt_tokens_asked"] for r in records)


def test_the_tokenizer_of_a_model_that_is_a_directory(tmp_path: Path) -> None:
    """Where the model that is served is a local directory, its tokenizer is used unasked; where two
    targets serve models with different ones, neither is."""
    from tests.unit.test_prompts import bytes_alone, word_level

    for name, build in (("one", word_level), ("two", bytes_alone)):
        (tmp_path / name).mkdir()
        build().save(str(tmp_path / name / "tokenizer.json"))
    timing = ("--ttft-ms", "5", "--itl-ms", "1", "--model")
    results = ("--num-prompts", "4", "--result-dir", str(tmp_path / "runs"))
    with truth(*timing, str(tmp_path / "one")) as one, truth(*timing, str(tmp_path / "two")) as two:
        alone = call("run", "--base-url", one, *DRAW, *results)
        both = call("compare", "--target", f"a={one}", "--target", f"b={two}", *DRAW, *results)
    for done, made_with in ((alone, "tokenizer"), (both, "calibration")):
        assert done.code in MEASURED, done.stderr
        header = json.loads((done.path / "header.json").read_bytes())
        assert header["prompts"]["made_with"] == made_with
        assert ("tokenizer_sha256" in header["prompts"]) is (made_with == "tokenizer")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--token-ids",), "--token-ids: needs a tokenizer"),
        (("--token-ids", "--endpoint", "chat"), "--token-ids: goes to /v1/completions only"),
    ],
    ids=["no tokenizer", "chat"],
)
def test_token_ids_that_cannot_be_made(
    quick: str, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    """Ids need a tokenizer and the completions endpoint: one line, and nothing is sent."""
    done = call("run", "--base-url", quick, *words, "--result-dir", str(tmp_path / "runs"))
    assert done.code == 2
    assert said in done.stderr
    assert not (tmp_path / "runs").exists()
