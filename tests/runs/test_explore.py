"""`loadgen sweep` and `loadgen capacity` against truth servers, to their end and cut short."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.capacity import MOST, search_truth
from tests.runs.conftest import ENVIRONMENT, call, command, records_of, truth

pytestmark = pytest.mark.slow

MEASURED = (0, 4)
"""4: the machine was so busy that a verdict is INVALID; what is tested here still holds."""

DRAW = ("--num-prompts", "12", "--seconds-per-point", "0", "--input-len", "10", "--output-len", "4")


@pytest.fixture(scope="module")
def four_slots() -> Iterator[str]:
    """16 requests/s: 4 slots of 250 ms, for answers of 4 tokens."""
    with truth("--ttft-ms", "190", "--itl-ms", "20", "--slots", "4") as url:
        yield url


def directory(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def state_of(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((path / "search.json").read_bytes())
    return content


def runs_in(path: Path) -> list[Path]:
    return sorted(run for run in path.iterdir() if run.is_dir())


def test_a_sweep_over_rates(four_slots: str, tmp_path: Path) -> None:
    """A run a rate, ascending, with the same requests in the same order and all gaps scaled; other
    words in each."""
    done = call(
        *("sweep", "--base-url", four_slots, "--rates", "12,5", *DRAW, "--json"),
        *("--goodput", "ttft:400", "--result-dir", str(tmp_path)),
    )
    assert done.code in MEASURED, done.stderr
    content = json.loads(done.stdout)
    assert [point["load"] for point in content["points"]] == [5, 12]
    path = directory(tmp_path)
    assert path == Path(content["directory"])
    assert (path / "report.html").exists()
    assert content == {"directory": str(path)} | json.loads((path / "sweep.json").read_bytes())
    slow, fast = (
        sorted(records_of(path / point["run"]), key=lambda r: r["seq"])
        for point in content["points"]
    )
    for records, rate in ((slow, 5), (fast, 12)):
        span_s = records[-1]["due_s"] - records[0]["due_s"]
        assert 11 / span_s == pytest.approx(rate, rel=1e-3)
    seeds = {json.loads((run / "header.json").read_bytes())["seed"] for run in runs_in(path)}
    assert len(seeds) == 2


def test_a_sweep_over_widths_finds_the_slots(four_slots: str, tmp_path: Path) -> None:
    """Throughput grows up to the server's 4 slots, where the knee is, and not beyond."""
    done = call(
        *("sweep", "--base-url", four_slots, "--concurrencies", "1,2,4,16", *DRAW, "--json"),
        *("--num-prompts", "20", "--result-dir", str(tmp_path)),
    )
    assert done.code in MEASURED, done.stderr
    content = json.loads(done.stdout)
    rates = [point["requests_per_s"] for point in content["points"]]
    assert rates[1] == pytest.approx(2 * rates[0], rel=0.15)
    assert rates[3] == pytest.approx(rates[2], rel=0.15)
    assert content["knee"]["load"] == 4


def test_a_sweep_over_batch_sizes_sends_gangs(four_slots: str, tmp_path: Path) -> None:
    """Each point's requests are in gangs of its size, padded where that is asked."""
    done = call(
        *("sweep", "--base-url", four_slots, "--batch-sizes", "2,3", "--num-prompts", "12"),
        *("--output-min", "2", "--output-max", "6", "--gang-pad", "--json"),
        *("--result-dir", str(tmp_path)),
    )
    assert done.code in MEASURED, done.stderr
    for point in json.loads(done.stdout)["points"]:
        records = records_of(directory(tmp_path) / point["run"])
        gangs = [record["gang"] for record in records]
        assert all(gangs.count(gang) == point["load"] for gang in set(gangs))
        for gang in set(gangs):
            assert len({r["output_tokens_asked"] for r in records if r["gang"] == gang}) == 1


def begin(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(*words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=ENVIRONMENT
    )


def wait_for_points(folder: Path, count: int) -> Path:
    """The directory, once so many points are done and the next one has begun."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        for path in folder.iterdir():
            done = (path / "search.json").exists() and len(state_of(path)["points"]) >= count
            if done and len(list(path.glob("*/events.jsonl"))) > count:
                return path
        time.sleep(0.05)
    raise AssertionError("no points in a minute")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_a_sweep_goes_on_where_it_was_stopped(
    four_slots: str, tmp_path: Path, number: signal.Signals
) -> None:
    """After Ctrl-C or a kill amid a point: what was done is kept, the torn point is done again,
    others are not, and the end is as if nothing had happened."""
    process = begin(
        *("sweep", "--base-url", four_slots, "--rates", "4,5,30", *DRAW),
        *("--result-dir", str(tmp_path)),
    )
    path = wait_for_points(tmp_path, 1)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    if number is signal.SIGINT:
        assert process.returncode == 130, err
        assert f"loadgen sweep --resume {path}".encode() in err
        content = json.loads((path / "sweep.json").read_bytes())
        assert "2 of 3 points are not done" in content["answer"]
    before = state_of(path)
    assert [point["load"] for point in before["points"]] == [4]
    done = call("sweep", "--resume", str(path), "--json")
    assert done.code in MEASURED, done.stderr
    after = state_of(path)
    assert after["points"][0] == before["points"][0]
    assert [point["load"] for point in after["points"]] == [4, 5, 30]
    assert len(runs_in(path)) == 4  # the torn one is there, and counts for nothing
    assert all(point["requests"] == 12 for point in json.loads(done.stdout)["points"])
    before_s = (path / "sweep.json").stat().st_mtime
    assert call("sweep", "--resume", str(path)).code in MEASURED  # nothing is left to do
    assert len(runs_in(path)) == 4
    assert (path / "sweep.json").stat().st_mtime >= before_s


def test_ctrl_c_between_points(four_slots: str, tmp_path: Path) -> None:
    """In the rest after a point Ctrl-C ends it at once, with exit code 130, and says how to go
    on."""
    process = begin(
        *("sweep", "--base-url", four_slots, "--rates", "30,31", *DRAW, "--rest", "600"),
        *("--result-dir", str(tmp_path)),
    )
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        states = [state_of(path) for path in tmp_path.iterdir() if (path / "search.json").exists()]
        if states and states[0]["points"]:
            break
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130, err
    assert b"--resume" in err
    assert b"Traceback" not in err


def test_a_changed_flag_is_refused(four_slots: str, tmp_path: Path) -> None:
    """To go on with another flag is an error that names it, and sends nothing."""
    words = ("sweep", "--base-url", four_slots, "--rates", "30", *DRAW)
    assert call(*words, "--result-dir", str(tmp_path)).code in MEASURED
    path = directory(tmp_path)
    done = call("sweep", "--resume", str(path), "--seed", "7")
    assert done.code == 2
    assert done.stderr == (
        "loadgen: --seed: this was begun with 42, and not with 7; leave it out, or begin anew\n"
    )
    assert len(runs_in(path)) == 1


@pytest.mark.long
def test_a_known_capacity_is_found() -> None:
    """Against 20 slots of 0.5 s and constant gaps it ends within 5 % of 40 requests/s."""
    searched = search_truth("constant")
    assert searched.refused is None
    assert searched.found is not None
    assert searched.found.rate == pytest.approx(MOST, rel=0.05), searched.curve.answer


def test_a_search_goes_on_after_a_kill(four_slots: str, tmp_path: Path) -> None:
    """Killed amid its second probe it comes to its end, with the first probe's records."""
    words = ("capacity", "--base-url", four_slots, "--goodput", "ttft:440", "--start-rate", "10")
    few = ("--num-prompts", "40", "--seconds-per-point", "0", "--tolerance", "0.5")
    more = ("--arrival", "constant", "--input-len", "10", "--output-len", "4", "--max-looks", "1")
    process = begin(*words, *few, *more, "--result-dir", str(tmp_path))
    path = wait_for_points(tmp_path, 1)
    process.kill()
    process.communicate(timeout=30)
    first = state_of(path)["points"][0]
    done = call("capacity", "--resume", str(path), "--json", timeout_s=120)
    assert done.code == 0, done.stderr
    assert state_of(path)["points"][0] == first
    content = json.loads(done.stdout)
    assert content["passed"] <= 16 < content["failed"]
    assert "requests/s" in content["answer"]
    assert content == {"directory": str(path)} | json.loads((path / "capacity.json").read_bytes())


def test_a_probe_that_says_nothing_ends_the_search(tmp_path: Path) -> None:
    """A server that gives less than the trace's work makes INVALID runs: no capacity, the reason,
    exit code 4."""
    with truth(
        "--ttft-ms", "200", "--itl-ms", "1", "--eos-after", "2", "--reject", "ignore_eos,min_tokens"
    ) as url:
        done = call(
            *("capacity", "--base-url", url, "--goodput", "ttft:450", "--start-rate", "20"),
            *("--num-prompts", "20", "--seconds-per-point", "0", "--output-len", "10"),
            *("--result-dir", str(tmp_path)),
        )
    assert done.code == 4, done.stderr
    assert "No capacity was found" in done.stdout.replace("\n", " ")
    assert "lack 80.0% of the output tokens" in " ".join(done.stdout.split())
    path = directory(tmp_path)
    assert json.loads((path / "capacity.json").read_bytes())["rate"] is None


def test_a_target_that_goes_away_can_be_gone_on_with(tmp_path: Path) -> None:
    """A target that is down between points is one line, exit code 2, and how to go on."""
    with truth("--ttft-ms", "5", "--itl-ms", "1") as url:
        words = ("sweep", "--base-url", url, "--rates", "30,31", *DRAW, "--rest", "2")
        process = begin(*words, "--ready-timeout", "0.2", "--result-dir", str(tmp_path))
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            found = [path for path in tmp_path.iterdir() if (path / "search.json").exists()]
            if found and state_of(found[0])["points"]:
                break
            time.sleep(0.02)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 2, err
    assert b"--resume" in err
    assert b"Traceback" not in err
