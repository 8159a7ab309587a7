"""The commands of a server's model, `calibrate` and `predict`: their flags, and what they print."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
from pydantic import Field
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadgen.archive import Run, read_run
from loadgen.config import RequestConfig
from loadgen.errors import ConfigError
from loadgen.flags import add_flags, take, validate
from loadgen.journal import write_whole
from loadgen.probe import probe
from loadgen.progress import Progress
from loadgen.report_cli import print_json
from loadgen.sim.calibrate import Calibration, calibrate, write_model
from loadgen.sim.config import PolicyConfig, PolicyName
from loadgen.sim.cost import MOST_NAME, MOST_ORIGIN, CostFile, read_cost
from loadgen.sim.predict import Prediction, predict
from loadgen.strict import Strict

PREDICTION: Final = "prediction.json"
_COLUMNS: Final = 100
_RUNS_NAMED: Final = 16
_OF_PROBES: Final = {"model", "endpoint", "tokenizer", "header", "api_key_env", "insecure"}
_POLICY: Final = {"batch_size", "max_wait", "release", "token_budget", "kv_blocks", "block_size"}
_POLICY_LEFT: Final = PolicyConfig.model_fields.keys() - _POLICY - {"schedule", "order"}


class ProbeConfig(Strict):
    """The probes of a live endpoint."""

    probe_prompt_tokens: Annotated[int, Field(ge=16, le=1_000_000)] = Field(
        512, description="longest prompt of the probes"
    )
    probe_output_tokens: Annotated[int, Field(ge=4, le=100_000)] = Field(
        24, description="outputs of the probes: from half of it to twice"
    )


def calibrate_server(arguments: argparse.Namespace) -> int:
    """Fit a server's costs to runs of it, or to probes; write them, and say how well they fit."""
    config = validate(PolicyConfig, take(PolicyConfig, arguments) | {"policy": arguments.policy})
    if bool(arguments.run_directory) == (arguments.base_url is not None):
        raise ConfigError("calibrate: give run directories, or --base-url to probe a server")
    if arguments.name is not None and len(arguments.name) > MOST_NAME:
        raise ConfigError(f"--name: at most {MOST_NAME} characters, got {len(arguments.name)}")
    paths = arguments.run_directory or _probe(arguments, config)
    runs = [(run, run.one_target(arguments.target)) for run in map(read_run, paths)]
    name = arguments.name or f"{runs[0][1]}, {config.policy[0]}"
    found = calibrate(runs, config, name=name, origin=_origin(runs))
    write_model(arguments.output, found.model)
    if arguments.json:
        print_json(
            {
                "path": str(arguments.output),
                "model": found.model.model_dump(mode="json"),
                "residuals": [asdict(residual) for residual in found.residuals],
                "stall_share": found.stall_share,
                "ttft_off_ms": found.ttft_off_ms,
            }
        )
        return 0
    _print_calibration(found)
    print(f"written: {arguments.output}; see `loadgen predict`, `loadgen simulate --cost`")
    return 0


def _probe(arguments: argparse.Namespace, config: PolicyConfig) -> list[Path]:
    request = validate(RequestConfig, take(RequestConfig, arguments))
    probes = validate(ProbeConfig, take(ProbeConfig, arguments))
    return probe(
        arguments.base_url,
        request,
        config.batch_size,
        probes.probe_prompt_tokens,
        probes.probe_output_tokens,
        arguments.result_dir,
        arguments.command_line,
        Progress(quiet=arguments.quiet),
    )


def _origin(runs: Sequence[tuple[Run, str]]) -> str:
    """Where the figures come from: runs, trace, machine."""
    header = runs[0][0].header
    target = next(t for t in header.targets if t.name == runs[0][1])
    ids = ", ".join(run.header.run_id for run, _ in runs[:_RUNS_NAMED])
    if len(runs) > _RUNS_NAMED:
        ids += f" and {len(runs) - _RUNS_NAMED} more"
    machine = header.machine
    origin = (
        f"loadgen calibrate from {ids}; trace {header.trace_sha256[:16]}; "
        f"started {header.started_at}; target {target.name}: model {target.model}, "
        f"server {target.server or 'not named'}; client on {machine.get('cores')} cores of "
        f"{machine.get('cpu')}"
    )
    return origin[:MOST_ORIGIN]


def _print_calibration(found: Calibration) -> None:
    console, model = _console(), found.model
    console.print(
        f"an iteration takes {model.fixed_us / 1000:.3f} ms + {model.prefill_token_us:.1f} us a "
        f"prompt token + {model.decode_row_us:.1f} us a row + {model.kv_token_us:.3f} us a token "
        f"of context; a client waits {model.overhead_ms:.1f} ms beside"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("iterations of")
    for title in ("seen", "measured, ms", "fitted, ms", "off by", "RMS, ms", "max, ms"):
        table.add_column(title, justify="right")
    for one in found.residuals:
        table.add_row(
            one.kind,
            f"{one.iterations:,}",
            f"{one.measured_ms:,.2f}",
            f"{one.fitted_ms:,.2f}",
            f"{one.fitted_ms / one.measured_ms - 1:+.1%}",
            f"{one.rms_ms:,.2f}",
            f"{one.max_ms:,.1f}",
        )
    console.print(table)
    low, middle, high = found.ttft_off_ms
    console.print(
        f"stalls: {found.stall_share:.1%} of the time, spread over all iterations; TTFT measured - "
        f"simulated: quartiles {low:+.1f}, {middle:+.1f}, {high:+.1f} ms"
    )


def predict_run(arguments: argparse.Namespace) -> int:
    """Simulate what a run sent, and show it beside what was measured."""
    run = read_run(arguments.run_directory)
    found = predict(run, _models(run, arguments.cost))
    content = {name: prediction.as_json() for name, prediction in found.items()}
    told = {"schema_version": 1, "run_id": run.header.run_id, "targets": content}
    try:
        write_whole(run.path / PREDICTION, orjson.dumps(told, option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as error:
        raise ConfigError(f"{run.path}: cannot be written: {error.strerror}") from None
    if arguments.json:
        print_json(told)
        return 0
    for name, prediction in found.items():
        _print_prediction(name, prediction)
    return 0


def _models(run: Run, given: Sequence[str]) -> dict[str, CostFile]:
    models: dict[str, CostFile] = {}
    for text in given:
        name, separator, file = text.partition("=")
        if not separator:
            name, file = run.one_target(None, "--cost", "give NAME=FILE"), text
        if name in models:
            raise ConfigError(f"--cost: {name} is given twice")
        models[name] = read_cost(Path(file))[1]
    return models


def _print_prediction(name: str, prediction: Prediction) -> None:
    console = _console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in (escape(name), "measured", "predicted", "error"):
        table.add_column(title, justify="right" if title in ("measured", "predicted") else "left")
    errors = prediction.errors()
    for figure, (measured, predicted) in prediction.figures().items():
        factor, title = 1.0, "output tokens/s"
        if figure.endswith("_s") and not figure.endswith("_per_s"):
            latency, percentile, _ = figure.split("_")
            factor, title = 1000.0, f"{latency.upper()} {percentile}, ms"
        error = errors[figure]
        table.add_row(
            title,
            "-" if measured is None else f"{factor * measured:,.1f}",
            "-" if predicted is None else f"{factor * predicted:,.1f}",
            "-" if error is None else f"{error:+.1%}",
        )
    console.print(table)
    measured_tokens = prediction.measured.output_tokens
    predicted_tokens = prediction.predicted.output_tokens
    if measured_tokens is not None and measured_tokens != predicted_tokens:
        console.print(
            f"{escape(name)} gave {measured_tokens:,} tokens where {predicted_tokens:,} were asked "
            "for and simulated: its figures are of other work"
        )


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _COLUMNS, highlight=False)


def add_calibrate(commands: Any) -> None:
    """Give the command line `loadgen calibrate`."""
    command = commands.add_parser(
        "calibrate",
        help="fit the simulator's costs to a real server",
        description="Fit the costs of the simulator's iterations to measured runs of a server, or "
        "to probes of a live one, and print how far off they are. The file holds the costs, the "
        "policy and where they come from.",
        epilog="example: loadgen calibrate runs/20260101T120000Z-run-1a2b --policy continuous "
        "-o vllm.yaml",
    )
    command.add_argument(
        "run_directory", nargs="*", type=Path, metavar="RUN_DIR", help="runs of one server"
    )
    command.add_argument(
        "--base-url", "--url", metavar="URL", help="probe this endpoint instead, for a minute or so"
    )
    command.add_argument(
        "--policy", required=True, choices=tuple(PolicyName), help="how the server batches"
    )
    command.add_argument("--target", metavar="NAME", help="the target, where a run has several")
    command.add_argument("--name", metavar="TEXT", help="what the model is called")
    command.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="YAML file to write"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--quiet", action="store_true", help="show no progress")
    add_flags(command, "the server's policy", PolicyConfig, without=_POLICY_LEFT)
    add_flags(command, "probes", ProbeConfig)
    command.add_argument(
        "--result-dir",
        type=Path,
        default=Path("runs"),
        metavar="PATH",
        help="folder that holds the probes' run directories (default: runs)",
    )
    left = RequestConfig.model_fields.keys() - _OF_PROBES
    add_flags(command, "requests of probes", RequestConfig, without=left)
    command.set_defaults(call=calibrate_server)


def add_predict(commands: Any) -> None:
    """Give the command line `loadgen predict`."""
    command = commands.add_parser(
        "predict",
        help="hold a run against the simulator",
        description="Simulate what a run sent, at the times at which it was due, and show the "
        f"error of throughput and latencies. Keeps it as {PREDICTION} in the run directory.",
        epilog="example: loadgen predict runs/20260101T120000Z-run-1a2b --cost vllm.yaml",
    )
    command.add_argument("run_directory", type=Path, metavar="RUN_DIR", help="a directory in runs/")
    command.add_argument(
        "--cost",
        action="append",
        required=True,
        metavar="[NAME=]FILE",
        help="a file of `loadgen calibrate`; of several targets, one each",
    )
    command.add_argument("--json", action="store_true", help="print JSON instead of the table")
    command.set_defaults(call=predict_run)
