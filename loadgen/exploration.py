"""The directory of a sweep or a search: its state, and the runs that are its points.

    <result-dir>/20261129T140301Z-sweep-5f3a/
        search.json            what was asked, and a row for each point that is done
        trace.jsonl            the one trace that all points are cut from
        20261129T…-run-91c2/   a point: an ordinary run directory
        sweep.json, report.html (capacity.json)   made at the end, and when it is stopped

`search.json` is written whole after each point, so a kill loses the point under way and no other:
what is not in it is done again. Secrets are in none of it. It does not know which point is next.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import orjson

from loadgen import __version__
from loadgen.capacity import Look, look_at
from loadgen.client.client import redactor_of
from loadgen.config import LoadConfig, RunConfig
from loadgen.errors import ConfigError, LoadgenError, RunDirectoryError
from loadgen.explore_config import PointsConfig, SweepConfig, requests_for
from loadgen.exporter import Exporter
from loadgen.flags import flag_of, validate
from loadgen.journal import TRACE, new_run_path, write_whole
from loadgen.locks import hold
from loadgen.plan import Workload, workload_of
from loadgen.points import Axis, Point, point_of
from loadgen.progress import Progress
from loadgen.report import rebuild
from loadgen.run import run
from loadgen.search_files import SEARCH
from loadgen.secrets import STRUCK, clean_command, clean_config, clean_url
from loadgen.trace import Trace
from loadgen.trace.scaling import at_rate, part_of
from loadgen.trace.trace import parse_trace, sha256_of

SCHEMA_VERSION: Final = 1

Config = TypeVar("Config", bound=PointsConfig)


@dataclass(slots=True)
class Exploration(Generic[Config]):
    """One directory; `points` grows as they are done."""

    path: Path
    kind: str
    config: Config
    command: tuple[str, ...]
    trace: Trace
    trace_name: str
    trace_sha256: str
    started_at: str | None
    points: list[Point]
    under_way: tuple[float, int] | None = None
    """(load, look) of the point that is measured now."""

    @staticmethod
    def begin(
        kind: str, config: Config, command: Sequence[str], axis: Axis, requests: int
    ) -> Exploration[Config]:
        """A new directory, for a trace that is drawn with so many requests where it is drawn.

        Raises LoadgenError, and then leaves nothing behind.
        """
        drawn = config.run.generate.model_copy(update={"num_prompts": requests})
        workload = workload_of(config.run.model_copy(update={"generate": drawn}))
        if axis is Axis.RATE:
            at_rate(workload.trace, 1.0)  # or this says that there is nothing to scale
        redactor = redactor_of(config.run.targets, config.run.request)
        output, started = config.run.output, datetime.now(UTC)
        found = Exploration(
            path=output.run_dir or new_run_path(output.result_dir, kind, started),
            kind=kind,
            config=config,
            command=clean_command(command, redactor),
            trace=workload.trace,
            trace_name=workload.name,
            trace_sha256=sha256_of(workload.data),
            started_at=started.isoformat(timespec="milliseconds"),
            points=[],
        )
        write_whole(found.path / TRACE, workload.data)
        found.save()
        return found

    @staticmethod
    def go_on(kind: str, config: Config, path: Path) -> Exploration[Config]:
        """What stands at `path`, to be gone on with by the same configuration.

        Raises ConfigError where it is another, and RunDirectoryError where the directory is none.
        """
        state = read_search(kind, path)
        _check_same(type(config).model_validate(state["config"]), config)
        try:
            data = (path / TRACE).read_bytes()
        except OSError as error:
            raise RunDirectoryError(f"{path / TRACE}: cannot be read: {error.strerror}") from None
        if sha256_of(data) != state["trace_sha256"]:
            raise RunDirectoryError(f"{path / TRACE}: is not the trace that this was begun with")
        points = [Point.of_json(row) for row in state["points"]]
        return Exploration(
            path=path,
            kind=kind,
            config=config,
            command=tuple(state["command"]),
            trace=parse_trace(data, state["trace"]),
            trace_name=state["trace"],
            trace_sha256=state["trace_sha256"],
            started_at=state.get("started_at"),
            points=[point for point in points if (path / point.run / "summary.json").exists()],
        )

    def keep(self, point: Point) -> None:
        """The point is done: it is in the directory from now on."""
        self.points.append(point)
        self.under_way = None
        self.save()

    def save(self) -> None:
        """Write the state, whole."""
        state = {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "loadgen": __version__,
            "command": self.command,
            "config": _shown(self.config, exclude_unset=True),
            "trace": self.trace_name,
            "trace_sha256": self.trace_sha256,
            "started_at": self.started_at,
            "under_way": self.under_way,
            "points_in_all": self.config.points_in_all,
            "points": [point.as_json() for point in self.points],
        }
        option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        write_whole(self.path / SEARCH, orjson.dumps(state, option=option))

    @contextmanager
    def going_on(self, progress: Progress) -> Iterator[None]:
        """Held, so that nobody goes on with it meanwhile; raises RunDirectoryError where one does.

        Whatever ends what is inside before its end, the user is told what to do next. Where not
        even one run could begin there is nothing to go on with, and nothing is left.
        """
        with self._held():
            try:
                yield
            except LoadgenError:
                self._leave(progress)
                raise
            except BaseException:
                self.say_how_to_go_on(progress)
                raise

    def _leave(self, progress: Progress) -> None:
        if any(path.is_dir() for path in self.path.iterdir()):
            self.say_how_to_go_on(progress)
        elif self.config.run.output.run_dir is None:
            shutil.rmtree(self.path)
        else:  # the folder is somebody else's
            for name in (SEARCH, TRACE):
                (self.path / name).unlink(missing_ok=True)

    @contextmanager
    def _held(self) -> Iterator[None]:
        with (self.path / TRACE).open("rb") as trace:
            try:
                hold(trace.fileno())
            except BlockingIOError:
                raise RunDirectoryError(
                    f"--resume: {self.path}: another process goes on with it"
                ) from None
            except OSError:  # some file systems have no locks
                pass
            yield

    def say_how_to_go_on(self, progress: Progress) -> None:
        """What is done is kept, and this goes on with the rest."""
        progress.say(f"go on with: loadgen {self.kind} --resume {shlex.quote(str(self.path))}")

    async def measure(
        self,
        axis: Axis,
        load: float,
        look: int,
        progress: Progress,
        exporter: Exporter | None,
    ) -> Point | None:
        """Do the run of one point, which is not kept yet; None where it was interrupted."""
        requests = requests_for(self.config, axis, load)
        name = f"{load:g} {axis.in_words}"
        progress.say(f"{name}: {requests} requests" + (f", look {look + 1}" if look else ""))
        self.under_way = (load, look)
        self.save()
        config, workload = self._run_of(axis, load, look, requests, name)
        try:
            if self.points and self.config.rest:
                await asyncio.sleep(self.config.rest)
            finished = await run(config, self.command, progress, exporter, workload)
        except asyncio.CancelledError:  # Ctrl-C before the point had begun to send
            return None
        result = rebuild(finished.path)
        finished.live.judged(result.verdict.grade)
        if finished.was_interrupted:
            return None
        (target,) = result.summaries
        evidence: Look | None = None
        if axis is Axis.RATE and result.slo is not None:
            evidence = look_at(result.columns[target], result.slo, requests)
        return point_of(
            load,
            look,
            finished.path.name,
            requests,
            result.summaries[target],
            result.verdict,
            result.run.stopped,
            evidence,
        )

    def _run_of(
        self, axis: Axis, load: float, look: int, requests: int, name: str
    ) -> tuple[RunConfig, Workload]:
        """The run of one point, and what it sends."""
        shared = self.config.run
        # What was cut off counts as well: its prompts may be in the target's cache.
        before = sum(path.is_dir() for path in self.path.iterdir())
        said = shared.load.model_dump(exclude_unset=True)
        if self.config.fresh_text:
            said["prompt_seed"] = (shared.load.prompt_seed + before) % 2**32
        if axis is Axis.CONCURRENCY:
            said |= {"closed_loop": True, "max_concurrency": round(load)}
        elif axis is Axis.BATCH_SIZE:
            said |= {"gang": round(load), "gang_pad": getattr(self.config, "gang_pad", False)}
        label = name if shared.output.label is None else f"{shared.output.label}, {name}"
        output = shared.output.model_copy(
            update={"result_dir": self.path, "run_dir": None, "label": label[:200]}
        )
        config = shared.model_copy(
            update={"load": LoadConfig.model_validate(said), "output": output}
        )
        trace = part_of(self.trace, look, requests)
        if axis is Axis.RATE:
            trace = at_rate(trace, load)
        return config, Workload.of(trace, f"{self.trace_name}, {name}")


def describe_points(config: PointsConfig) -> dict[str, Any]:
    """What a sweep or a search would send, without sending anything; raises LoadgenError.

    Of a search nobody knows how many probes it will need: it tells the first.
    """
    workload = workload_of(config.run)
    axis, loads = Axis.RATE, [getattr(config, "start_rate", 0.0)]
    if isinstance(config, SweepConfig):
        axis, loads = config.axis, config.loads
    if axis is Axis.RATE:
        at_rate(workload.trace, 1.0)
    requests = [requests_for(config, axis, load) for load in loads]
    trace = workload.trace
    return {
        "targets": {t.name: clean_url(t.base_url) for t in config.run.targets},
        "trace": workload.name,
        "axis": str(axis),
        "points": [
            {"load": load, "requests": count} for load, count in zip(loads, requests, strict=True)
        ],
        "points_in_all": config.points_in_all,
        "requests": sum(requests),
        "warm_up_requests": config.run.load.num_warmups * len(loads),
        "prompt_tokens": round(float(trace.input_length.mean()) * sum(requests)),
        "output_tokens": round(float(trace.output_length.mean()) * sum(requests)),
        "duration_s": sum(n / load for n, load in zip(requests, loads, strict=True))
        if axis is Axis.RATE
        else None,
    }


def read_search(kind: str, path: Path) -> dict[str, Any]:
    """The state in a directory; raises RunDirectoryError where it is none of that kind."""
    file = path / SEARCH
    try:
        state = orjson.loads(file.read_bytes())
        known = {"schema_version", "kind", "config", "command", "trace", "trace_sha256", "points"}
        if not known <= state.keys():
            raise ValueError("keys are missing")
        [Point.of_json(row) for row in state["points"]]
        _ = state["config"]["run"]["targets"][0]["base_url"]
    except OSError as error:
        raise RunDirectoryError(f"--resume: {file}: {error.strerror}") from None
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise RunDirectoryError(f"--resume: {file}: not the state of one ({error!r})") from None
    if state["kind"] != kind:
        raise RunDirectoryError(f"--resume: {path} holds a {state['kind']}, and not a {kind}")
    if (version := state.get("loadgen")) != __version__:
        raise RunDirectoryError(
            f"--resume: {path} was begun by loadgen {version}, this is {__version__}; begin anew"
        )
    return dict(state)


def _shown(config: PointsConfig, *, exclude_unset: bool = False) -> dict[str, Any]:
    """The configuration as JSON, without secrets."""
    shown = config.model_dump(mode="json", exclude_unset=exclude_unset)
    redactor = redactor_of(config.run.targets, config.run.request)
    return shown | {"run": clean_config(shown["run"], redactor)}


def _check_same(before: PointsConfig, now: PointsConfig) -> None:
    """Raises ConfigError at the first difference, and at a secret that has to be given again."""
    for name, was, is_now in _differences(_shown(before), _shown(now)):
        if name in ("header", "extra_body", "base_url"):
            said = "it is not what this was begun with"
        else:
            said = f"this was begun with {_told(was)}, and not with {_told(is_now)}"
        raise ConfigError(f"{flag_of(name)}: {said}; leave it out, or begin anew")
    request = now.run.request
    secret: dict[str, Any] = {
        "header": request.header.values(),
        "extra_body": (request.extra_body or {}).values(),
        "base_url": [clean_url(t.base_url) for t in now.run.targets if STRUCK in t.base_url],
    }
    for name, values in secret.items():
        if any(value == STRUCK or name == "base_url" for value in values):
            raise ConfigError(f"{flag_of(name)}: secrets are not kept; give it again to go on")


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, object, object]]:
    """(name, before, now) of each field that differs, inside models too."""
    found: list[tuple[str, object, object]] = []
    for name, is_now in now.items():
        was = before.get(name)
        if was == is_now:
            continue
        if name == "targets":
            found += _differences(was[0], is_now[0])  # type: ignore[index]  # one each
        elif isinstance(was, dict) and isinstance(is_now, dict) and name not in _MAPPINGS:
            found += _differences(was, is_now)
        else:
            found.append((name, was, is_now))
    return found


_MAPPINGS: Final = ("header", "extra_body", "goodput", "metadata")


def _told(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return ",".join(f"{part:g}" if isinstance(part, float) else str(part) for part in value)
    if isinstance(value, dict):
        return (
            " ".join(
                f"{key}:{part:g}" if isinstance(part, float) else f"{key}={part}"
                for key, part in value.items()
            )
            or "none"
        )
    return f"{value:g}" if isinstance(value, float) else str(value)


def read_config(
    kind: str, model: type[Config], path: Path, given: dict[str, Any], base_url: str | None = None
) -> Config:
    """The stored configuration, with what the command line gave over it; raises ConfigError."""
    config = _over(read_search(kind, path)["config"], given)
    if base_url is not None:
        config["run"]["targets"][0] |= {"base_url": base_url}
    return validate(model, config)


def _over(stored: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Nested fields of `stored`, with those of `given` in their place."""
    return stored | {
        name: _over(stored[name], value)
        if isinstance(value, dict) and isinstance(stored.get(name), dict) and name not in _MAPPINGS
        else value
        for name, value in given.items()
    }
