"""The command line: one short function a command, and the exit code.

    0 finished (failed requests and SUSPECT included)   1 our own bug
    2 bad usage, config or input, or a target not ready   3 a gate failed   4 verdict INVALID
    130 interrupted

A user's mistake gives one line on standard error, never a traceback.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

from loadgen import __version__
from loadgen.ceiling import save
from loadgen.config import (
    CompareConfig,
    GeneratorConfig,
    LoadConfig,
    OutputConfig,
    RequestConfig,
    RoundsConfig,
    RunConfig,
    TargetConfig,
)
from loadgen.config_file import read_config
from loadgen.errors import ConfigError, LoadgenError
from loadgen.explore_cli import add_explore
from loadgen.exporter import Exporter
from loadgen.flags import Parser, add_flags, take, validate
from loadgen.model_cli import add_calibrate, add_predict
from loadgen.plan import describe_load
from loadgen.progress import Progress
from loadgen.report import rebuild
from loadgen.report_cli import INVALID, add_check, add_report, print_json, show
from loadgen.run import Finished, run
from loadgen.run_flags import (
    add_api_key_flags,
    add_config_flag,
    exporting,
    linger,
    run_config,
    targets_of_file,
)
from loadgen.runs_cli import add_runs
from loadgen.secrets import one_line
from loadgen.selfcheck import check
from loadgen.serve_cli import add_serve
from loadgen.service_cli import run_at_service
from loadgen.sim_cli import add_simulate
from loadgen.status import make_run_dir, status_in
from loadgen.strict import is_text
from loadgen.trace_cli import add_trace
from loadgen.verdict import Grade

USAGE: Final = 2
INTERRUPTED: Final = 130

_AWAY_S: Final = 5.0
"""After a round that could not begin."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        for word in words:
            if not is_text(word):
                raise ConfigError(f"{word!r}: is not UTF-8, which names and texts must be here")
        parsed = build_parser().parse_args(words)
        parsed.command_line = ["loadgen", *words]
        code: int = parsed.call(parsed)
        return code
    except LoadgenError as error:
        print(f"loadgen: {one_line(str(error))}", file=sys.stderr)  # it may hold a server's words
        return USAGE
    except BrokenPipeError:  # whoever read our output has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a folder of somebody else's
        if error.strerror is None:
            raise
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"loadgen: {where}{error.strerror}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("loadgen: interrupted", file=sys.stderr)
        return INTERRUPTED


def build_parser() -> argparse.ArgumentParser:
    """All commands with their flags; the tests compare it with the documentation."""
    parser = Parser(
        prog="loadgen",
        description="Load tests for OpenAI-compatible LLM endpoints.",
        epilog="example: loadgen run --base-url http://127.0.0.1:8000 --num-prompts 50",
    )
    parser.add_argument("--version", action="version", version=f"loadgen {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_trace(commands)
    _add_run(commands)
    _add_compare(commands)
    add_explore(commands)
    add_report(commands)
    add_check(commands)
    add_simulate(commands)
    add_calibrate(commands)
    add_predict(commands)
    add_runs(commands)
    _add_selfcheck(commands)
    add_serve(commands)
    return parser


def run_one(arguments: argparse.Namespace) -> int:
    """Replay a trace on one target."""
    content = read_config(arguments.config)
    if arguments.base_url is None:
        targets = targets_of_file(arguments, content)
        if len(targets) != 1:
            raise ConfigError("--base-url: give the endpoint, or one of `targets` in --config FILE")
        return _finish(arguments, content, targets)
    target = {"name": "target", "base_url": arguments.base_url}
    return _finish(arguments, content, [validate(TargetConfig, target)])


def compare(arguments: argparse.Namespace) -> int:
    """Replay one trace on several targets, in turn."""
    content = read_config(arguments.config)
    targets = [_target_of(text) for text in arguments.target]
    targets = targets or targets_of_file(arguments, content)
    for flag, field in (("--target-model", "model"), ("--target-api-key-env", "api_key_env")):
        targets = _with_own(targets, flag, field, getattr(arguments, f"target_{field}"))
    if len(targets) < 2:
        raise ConfigError("--target: a comparison needs two or more; for one, `loadgen run`")
    return _finish(arguments, content, targets)


def _target_of(text: str) -> TargetConfig:
    name, separator, url = text.partition("=")
    if not separator or "://" in name:
        raise ConfigError("--target: each must be NAME=URL, as in vllm=http://127.0.0.1:8000")
    try:
        return validate(TargetConfig, {"name": name, "base_url": url})
    except ConfigError as error:
        raise ConfigError(f"--target NAME=URL: {error}") from None


def selfcheck(arguments: argparse.Namespace) -> int:
    """Measure this machine's ceiling and error, and keep the result for later runs."""
    result = check(Progress(quiet=arguments.quiet))
    path = save(result)
    if arguments.json:
        print_json({"path": str(path), **result})
        return 0
    for name in ("worker", "in all"):
        key = name.replace("worker", "per_worker").replace(" ", "_")
        print(
            f"ceiling {name}: {result[f'events_per_s_{key}']:,} events/s, "
            f"{result[f'requests_per_s_{key}']:,} requests/s of 4 tokens"
        )
    print(
        f"error of TTFT at 10,000 events/s: p50 {result['ttft_err_p50_ms']:.2f} ms, "
        f"p99 {result['ttft_err_p99_ms']:.2f} ms; schedule lag p99 {result['lag_p99_ms']:.2f} ms"
    )
    print(f"kept in {path}: later runs on this machine carry it")
    return 0


def _finish(
    arguments: argparse.Namespace, content: dict[str, Any], targets: list[TargetConfig]
) -> int:
    config = run_config(arguments, targets, content)
    if arguments.service is not None:
        return run_at_service(arguments, config)
    if arguments.dry_run:
        return _say_what_would_be_sent(config, as_json=arguments.json)
    rounds = validate(RoundsConfig, take(RoundsConfig, arguments))
    run_dir = config.output.run_dir
    if run_dir is not None:
        if rounds.rounds != 1:
            raise ConfigError("--run-dir: is the directory of one run; leave out --rounds")
        make_run_dir(run_dir)
    progress = Progress(quiet=arguments.quiet)
    with exporting(config.output, progress) as exporter, status_in(run_dir, exporter) as status:
        code = _do_rounds(config, rounds, arguments, progress, exporter)
        if status is not None:
            status.end(code)
        if config.output.linger and code != INTERRUPTED:
            linger(exporter, progress)
    return code


def _do_rounds(
    config: RunConfig,
    rounds: RoundsConfig,
    arguments: argparse.Namespace,
    progress: Progress,
    exporter: Exporter,
) -> int:
    """All rounds; the exit code is that of the worst. One that cannot begin, because its target is
    away, does not end the others."""
    codes = {0}
    paths: list[Path] = []
    numbers = itertools.count(1) if rounds.rounds == 0 else range(1, rounds.rounds + 1)
    for number in numbers:
        if number > 1:
            time.sleep(rounds.rest)
        try:
            finished: Finished = uvloop.run(run(config, arguments.command_line, progress, exporter))
        except LoadgenError as error:
            if number == 1:
                raise
            progress.say(f"round {number}: {error}")
            codes.add(USAGE)
            time.sleep(_AWAY_S)
            continue
        result = rebuild(finished.path)
        finished.live.judged(result.verdict.grade)
        show(result, as_json=arguments.json)
        paths.append(finished.path)
        if rounds.keep_runs is not None:
            for path in paths[: -rounds.keep_runs]:
                shutil.rmtree(path, ignore_errors=True)
            paths = paths[-rounds.keep_runs :]
        if finished.was_interrupted:
            return INTERRUPTED
        codes.add(INVALID if result.verdict.grade is Grade.INVALID else 0)
    return next(code for code in (USAGE, INVALID, 0) if code in codes)


def _say_what_would_be_sent(config: RunConfig, *, as_json: bool) -> int:
    load = describe_load(config)
    if as_json:
        print_json(load)
        return 0
    for name, url in load.pop("targets").items():
        print(f"target {name}: {url}")
    for name, value in load.items():
        shown = f"{value:,}" if isinstance(value, int) else value
        print(f"{name.replace('_', ' ')}: {'as long as it takes' if value is None else shown}")
    return 0


def _with_own(
    targets: list[TargetConfig], flag: str, field: str, texts: Sequence[str]
) -> list[TargetConfig]:
    """The targets with what each NAME=VALUE says of the one of that name; raises ConfigError."""
    own: dict[str, dict[str, str]] = {target.name: {} for target in targets}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in own or not value:
            raise ConfigError(f"{flag}: each must be NAME=VALUE, of a target ({', '.join(own)})")
        own[name] = {field: value}
    try:
        return [
            validate(TargetConfig, target.model_dump() | own[target.name]) for target in targets
        ]
    except ConfigError as error:
        raise ConfigError(f"{flag} NAME=VALUE: {error}") from None


def _add_run(commands: Any) -> None:
    command = commands.add_parser(
        "run",
        help="replay a trace on one endpoint",
        description="Replay a trace on one endpoint, or draw one from laws and replay that. "
        "An API key is read from OPENAI_API_KEY.",
        epilog="example: loadgen run trace.jsonl --base-url https://llm.example.com/v1 --model m",
    )
    command.add_argument(
        "--base-url",
        "--url",
        metavar="URL",
        help="the endpoint, with or without /v1",
    )
    _add_run_flags(command, run_one)


def _add_compare(commands: Any) -> None:
    command = commands.add_parser(
        "compare",
        help="replay one trace on several endpoints",
        description="Replay one trace on several endpoints in turn; the first is the baseline.",
        epilog="example: loadgen compare trace.jsonl --target static=http://127.0.0.1:8001 "
        "--target vllm=http://127.0.0.1:8002",
    )
    command.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="NAME=URL",
        help="an endpoint; give two or more",
    )
    command.add_argument(
        "--target-model",
        action="append",
        default=[],
        metavar="NAME=MODEL",
        help="model to ask this target for, in place of --model",
    )
    command.add_argument(
        "--target-api-key-env",
        action="append",
        default=[],
        metavar="NAME=VARIABLE",
        help="environment variable that holds this target's API key; without it, a target gets "
        "the key that all get",
    )
    add_flags(command, "order of the targets", CompareConfig)
    _add_run_flags(command, compare)


def _add_run_flags(command: argparse.ArgumentParser, call: Any) -> None:
    command.add_argument(
        "trace",
        nargs="?",
        type=Path,
        metavar="TRACE",
        help="trace file (JSONL); without it, one is drawn by the trace flags",
    )
    add_config_flag(command)
    command.add_argument("--json", action="store_true", help="print JSON instead of the table")
    command.add_argument(
        "--service",
        metavar="URL",
        help="let a `loadgen serve` at this URL do it; its token is read from LOADGEN_API_TOKEN",
    )
    command.add_argument(
        "--dry-run", action="store_true", help="say what would be sent, and send nothing"
    )
    command.add_argument("--quiet", action="store_true", help="show no progress")
    add_api_key_flags(command)
    add_flags(command, "requests", RequestConfig)
    add_flags(command, "load", LoadConfig)
    add_flags(command, "rounds", RoundsConfig)
    add_flags(command, "results", OutputConfig)
    add_flags(command, "trace, where no file is given", GeneratorConfig)
    command.set_defaults(call=call)


def _add_selfcheck(commands: Any) -> None:
    command = commands.add_parser(
        "selfcheck",
        help="measure this machine's ceiling and error",
        description="Measure, in under 20 s, how many events and requests a second this machine's "
        "client can take, and how far its times are off, against a server whose timing is known. "
        "Run it on a quiet machine; later runs carry the result and are judged by it.",
        epilog="example: loadgen selfcheck",
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--quiet", action="store_true", help="show no progress")
    command.set_defaults(call=selfcheck)
