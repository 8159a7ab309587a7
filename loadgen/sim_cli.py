"""The command `simulate`: its flags, and what it prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from loadgen.config import GeneratorConfig
from loadgen.config_file import read_config, trace_and_laws, under_flags
from loadgen.errors import ConfigError
from loadgen.exporter import Exporter
from loadgen.flags import add_flags, flag_of, take, validate
from loadgen.report import rebuild
from loadgen.report_cli import print_json, show
from loadgen.run_flags import add_config_flag
from loadgen.sim.config import (
    SECTIONS,
    ArrivalConfig,
    FleetConfig,
    PolicyConfig,
    SimResultConfig,
    SimulateConfig,
)
from loadgen.sim.lesson import (
    BATCH_SIZE,
    REQUESTS,
    SEED,
    WHY_THEY_DIFFER,
    Counted,
    Lesson,
    Waits,
    lesson1,
    lesson1_policies,
)
from loadgen.sim.plots import make_folder, write_plots
from loadgen.sim.simulate import Simulation, Tried, describe_simulation, find_replicas, simulate
from loadgen.status import make_run_dir, status_in

_COLUMNS: Final = 100
_PRESETS: Final = ("lesson1", "lesson1-policies")
_OF_THE_LESSON: Final = {"num_prompts", "seed", "batch_size"}


def simulate_trace(arguments: argparse.Namespace) -> int:
    """Serve a trace by simulated policies, or do a lesson."""
    if arguments.lesson is not None:
        return _do_lesson(arguments)
    config = _config(arguments)
    if config.fleet.find_replicas:
        _check_find(config, arguments)
    if arguments.dry_run:
        print_json(describe_simulation(config))
        return 0
    run_dir = config.output.run_dir
    if run_dir is not None:
        if not config.output.records:
            raise ConfigError("--run-dir: holds records; leave it out, or --no-records")
        make_run_dir(run_dir)
    if arguments.plots is not None:
        make_folder(arguments.plots)
    with status_in(run_dir, Exporter()) as status:
        code = _simulate(config, arguments)
        if status is not None:
            status.end(code)
    return code


def _check_find(config: SimulateConfig, arguments: argparse.Namespace) -> None:
    """Raises ConfigError where something is said that --find-replicas does not heed."""
    said = config.output.model_fields_set & {"label", "metadata", "result_dir", "run_dir"}
    said |= config.fleet.model_fields_set & {"replicas"}
    if arguments.plots is not None:
        said.add("plots")
    if said:
        flags = ", ".join(flag_of(name) for name in sorted(said))
        raise ConfigError(f"{flags}: --find-replicas finds a number and keeps no run; leave it out")


def _simulate(config: SimulateConfig, arguments: argparse.Namespace) -> int:
    if config.fleet.find_replicas:
        return _find(config, as_json=arguments.json)
    simulation = simulate(config, arguments.command_line)
    _show_simulation(simulation, as_json=arguments.json)
    if arguments.plots is not None:
        write_plots(config, arguments.plots)
        if not arguments.json:
            print(f"plots: {arguments.plots / 'index.html'}")
    return 0


def _show_simulation(simulation: Simulation, *, as_json: bool) -> None:
    if simulation.path is not None:
        result = rebuild(simulation.path)
        if as_json:
            shown = {"run_directory": str(simulation.path), **result.as_json()}
            if len(result.summaries) > 1:
                shown["comparison"] = result.comparison()
            print_json(shown | {"simulation": simulation.work_done})
            return
        show(result, as_json=False)
    elif as_json:
        print_json({"targets": simulation.figures, "simulation": simulation.work_done})
        return
    else:
        _console().print(_statistics(simulation.figures))
    _console().print(_work(simulation.work_done))
    for note in simulation.notes:
        print(note)


def _config(arguments: argparse.Namespace) -> SimulateConfig:
    content = read_config(arguments.config, SECTIONS)
    given = {key: take(model, arguments) for key, model in SECTIONS.items()}
    trace, drawn = trace_and_laws(arguments.trace, given["generate"], content)
    parts: dict[str, Any] = {
        key: validate(model, drawn if key == "generate" else under_flags(content, key, given[key]))
        for key, model in SECTIONS.items()
    }
    return validate(SimulateConfig, {"trace": trace, **parts})


def _do_lesson(arguments: argparse.Namespace) -> int:
    given: dict[str, Any] = {}
    for model in SECTIONS.values():
        given |= take(model, arguments)
    wrong = sorted(given.keys() - _OF_THE_LESSON)
    if wrong or arguments.trace or arguments.plots or arguments.config or arguments.dry_run:
        flag = flag_of(wrong[0]) if wrong else "TRACE, --plots, --config and --dry-run"
        raise ConfigError(
            f"--preset: leave out {flag}; a lesson takes --num-prompts, --seed and --batch-size"
        )
    drawn = validate(GeneratorConfig, {k: given[k] for k in given if k != "batch_size"})
    size = validate(PolicyConfig, {k: given[k] for k in given if k == "batch_size"}).batch_size
    requests = drawn.num_prompts if "num_prompts" in given else REQUESTS
    seed = drawn.seed if "seed" in given else SEED
    size = size if "batch_size" in given else BATCH_SIZE
    if arguments.lesson == "lesson1":
        lesson = lesson1(requests, seed, size)
        if arguments.json:
            print_json(lesson.as_json())
        else:
            _print_lesson(lesson)
        return 0
    waits = lesson1_policies(requests, seed, size)
    if arguments.json:
        print_json({str(one.order): one.as_json() for one in waits})
    else:
        _print_waits(waits)
    return 0


def _print_lesson(lesson: Lesson) -> None:
    table = Table(title=f"Lesson 1: {lesson.continuous.requests} requests, in iterations")
    for heading in ("", "iterations", "output tokens", "tokens/iter.", "requests/iter.", "gain"):
        table.add_column(heading, justify="left" if not heading else "right")

    def row(name: str, counted: Counted, gain: float | None) -> None:
        table.add_row(
            name,
            f"{counted.iterations:,}",
            f"{counted.output_tokens:,}",
            f"{counted.tokens_per_iteration:.4f}",
            f"{counted.requests_per_iteration:.4f}",
            "–" if gain is None else f"{gain:.2f}x",
        )

    row("static, lesson's prefill", lesson.static_lesson, lesson.gain_lesson)
    row("static, fair prefill", lesson.static_fair, lesson.gain_fair)
    row("continuous", lesson.continuous, None)
    console = _console()
    console.print(table)
    console.print(f"Gain: tokens/iter. of continuous over this row's. {WHY_THEY_DIFFER}")


def _print_waits(waits: list[Waits]) -> None:
    table = Table(title="Lesson 1: orders of the queue, continuous batching, in iterations")
    table.add_column("order")
    for heading in ("TTFT mean", "p50", "p99", "latency mean", "p99", "iterations"):
        table.add_column(heading, justify="right")
    for one in waits:
        figures = (one.ttft_mean, one.ttft_p50, one.ttft_p99, one.latency_mean, one.latency_p99)
        table.add_row(one.order, *(f"{value:.1f}" for value in figures), f"{one.iterations}")
    console = _console()
    console.print(table)
    console.print(
        "A prompt of any length costs one iteration here, so that sorting by prompts can only "
        "change the order; sof knows output lengths, which no server does."
    )


def _find(config: SimulateConfig, *, as_json: bool) -> int:
    found: dict[str, Any] = {}
    for name in config.policies.policy:

        def tell(step: Tried, name: str = name) -> None:
            line = f"{name}: {step.replicas:>5} replicas: {step.good_share:.2%} good"
            print(line, file=sys.stderr if as_json else sys.stdout, flush=True)

        replicas, tried = find_replicas(config, name, tell)
        found[str(name)] = {
            "replicas": replicas,
            "tried": [{"replicas": t.replicas, "good_share": t.good_share} for t in tried],
        }
    if as_json:
        print_json(found)
        return 0
    for policy, one in found.items():
        share = f"{config.fleet.good_share:.2%} of requests"
        if not one["tried"]:
            print(f"{policy}: no number of replicas makes {share} good, nor one for each alone")
        elif one["replicas"] is None:
            print(f"{policy}: no number of replicas makes {share} good")
        else:
            print(f"{policy}: {one['replicas']} replicas are the fewest that make {share} good")
    return 0


def _statistics(figures: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(title="Statistics (seconds, or iterations; percentiles within 0.5 %)")
    table.add_column("")
    for name in figures:
        table.add_column(name, justify="right")
    first = next(iter(figures.values()))
    for key, value in first.items():
        if not isinstance(value, dict):
            table.add_row(key, *(_told(own[key]) for own in figures.values()))
            continue
        for part in value:
            table.add_row(f"{key} {part}", *(_told(own[key][part]) for own in figures.values()))
    return table


def _work(done: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(title="What was computed")
    table.add_column("")
    for name in done:
        table.add_column(name, justify="right")
    for key in (
        "iterations",
        "tokens_per_iteration",
        "busy_share",
        "wasted_row_share",
        "padding_share",
        "wasted_share",
        "preemptions",
    ):
        table.add_row(key.replace("_", " "), *(_told(own[key]) for own in done.values()))
    return table


def _told(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _COLUMNS, highlight=False)


def add_simulate(commands: Any) -> None:
    """Give the command line `loadgen simulate`."""
    command = commands.add_parser(
        "simulate",
        help="serve a trace by simulated servers",
        description="Serve a trace by static and continuous batching in virtual time, and report "
        "it as a run is reported. Costs are iterations, or seconds by a model of an iteration.",
        epilog="example: loadgen simulate --preset lesson1",
    )
    command.add_argument(
        "trace",
        nargs="?",
        type=Path,
        metavar="TRACE",
        help="trace file (JSONL); without it, one is drawn by the trace flags",
    )
    command.add_argument(
        "--preset",
        dest="lesson",
        choices=_PRESETS,
        help="lesson1: the batching lesson's table; lesson1-policies: orders of its queue",
    )
    add_config_flag(command)
    command.add_argument("--json", action="store_true", help="print JSON instead of tables")
    command.add_argument(
        "--dry-run", action="store_true", help="say as JSON what would be simulated, and end"
    )
    command.add_argument("--quiet", action="store_true", help="as for a run; it shows no progress")
    command.add_argument(
        "--plots", type=Path, metavar="DIR", help="write plots of slots, throughput and waste"
    )
    add_flags(command, "policies", PolicyConfig)
    add_flags(command, "requests", ArrivalConfig)
    add_flags(command, "replicas", FleetConfig)
    add_flags(command, "results", SimResultConfig)
    add_flags(command, "trace, where no file is given", GeneratorConfig, without={"preset"})
    command.set_defaults(call=simulate_trace)
