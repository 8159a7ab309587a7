"""The commands of `loadgen trace`, one short function each.

It parses and prints; what a command does stands in `loadgen.trace`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any, Final

import orjson
from rich.console import Console

from loadgen.errors import ConfigError
from loadgen.flags import add_flags, take, validate
from loadgen.prompts import load_tokenizer
from loadgen.trace import read_trace, write_trace
from loadgen.trace.config import GeneratorConfig
from loadgen.trace.csv_rows import parse_stamp_ns
from loadgen.trace.export import ExportFormat, export
from loadgen.trace.figures import describe
from loadgen.trace.files import check_is_file_name, write_whole
from loadgen.trace.fit import fit_trace
from loadgen.trace.formats import FORMATS
from loadgen.trace.generate import Source as Generator
from loadgen.trace.generate import account
from loadgen.trace.import_config import ImportConfig
from loadgen.trace.importing import Counts, Source, import_trace
from loadgen.trace.inspect import inspect
from loadgen.trace.lesson2 import Lesson2Config, lesson2
from loadgen.trace.rows import BrokenRow
from loadgen.trace.trace import sha256_of
from loadgen.trace_report import print_drawn, print_fit, print_inspection, render_page

_COLUMNS: Final = 100
_NS_FIRST: Final = "1970-01-01 00:00:00"


def add_trace(commands: Any) -> None:
    """Add `trace` and its actions to the program's commands."""
    trace = commands.add_parser(
        "trace", help="make and read traces", description="Make and read traces."
    )
    actions = trace.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_generate(actions)
    _add_lesson2(actions)
    _add_import(actions)
    _add_fit(actions)
    _add_inspect(actions)
    _add_export(actions)


def trace_generate(arguments: argparse.Namespace) -> int:
    """Draw a trace, write it, and say what was asked and what was drawn."""
    check_is_file_name(arguments.output)
    source = Generator.of(validate(GeneratorConfig, take(GeneratorConfig, arguments)))
    trace = source.draw()
    told = account(source, trace)
    digest = write_trace(arguments.output, trace, told)
    if arguments.json:
        _print_json({"path": str(arguments.output), "sha256": digest, **told})
        return 0
    print_drawn(told, _console())
    print(f"{arguments.output}  SHA-256 {digest}")
    return 0


def trace_lesson2(arguments: argparse.Namespace) -> int:
    """Write the second batching lesson's requests."""
    check_is_file_name(arguments.output)
    config = validate(Lesson2Config, take(Lesson2Config, arguments))
    count_tokens = None if config.tokenizer is None else load_tokenizer(config.tokenizer)
    trace = lesson2(config, count_tokens)
    told = {"lesson2": config.model_dump(mode="json", exclude={"tokenizer"})}
    digest = write_trace(arguments.output, trace, told | {"holds": describe(trace)})
    tokens = int(trace.output_length.sum())
    ends = "at most" if config.natural else "held to"
    print(f"{len(trace):,} requests, {ends} {tokens:,} output tokens")
    print(f"{arguments.output}  SHA-256 {digest}")
    return 0


def trace_import(arguments: argparse.Namespace) -> int:
    """Make a trace of a file in another's format, and say what became of its rows."""
    check_is_file_name(arguments.output)
    config = validate(ImportConfig, take(ImportConfig, arguments))
    count_tokens = None if config.tokenizer is None else load_tokenizer(config.tokenizer)
    trace, counts = import_trace(Source(arguments.format, arguments.file, config, count_tokens))
    told = {
        "imported": {
            "format": arguments.format,
            "file": arguments.file.name,
            "options": config.model_dump(mode="json", exclude_unset=True, exclude={"tokenizer"}),
            "rows": counts.as_json(),
        },
        "holds": describe(trace),
    }
    digest = write_trace(arguments.output, trace, told)
    if arguments.json:
        _print_json({"path": str(arguments.output), "sha256": digest, **told})
        return 0
    _print_counts(counts)
    print_inspection(inspect(trace), _console())
    print(f"{arguments.output}  SHA-256 {digest}")
    return 0


def _print_counts(counts: Counts) -> None:
    print(f"rows: {counts.read:,} read, {counts.kept:,} kept")
    for words, n in (
        ("left out: cannot be read", counts.broken_dropped),
        ("left out: outside of the time window", counts.outside_dropped),
        ("left out: no prompt or no output tokens", counts.zero_dropped),
        ("taken as 1 token: no prompt or no output tokens", counts.zero_clamped),
        ("left out: over --max-context", counts.oversized_dropped),
        ("shortened: over --max-context", counts.oversized_clamped),
        ("given other block ids, to cover the prompt", counts.block_ids_fitted),
    ):
        if n:
            print(f"  {n:,} {words}")


def trace_fit(arguments: argparse.Namespace) -> int:
    """Fit laws to a trace and print them, with flags that draw one like it."""
    fit = fit_trace(read_trace(arguments.trace)[0])
    if not arguments.json:
        print_fit(fit, _console())
        return 0
    columns = {
        "gaps_s": fit.gaps,
        "input_tokens": fit.input_tokens,
        "output_tokens": fit.output_tokens,
    }
    _print_json(
        {
            "figures": fit.figures,
            "zero_gaps": fit.zero_gaps,
            "fits": {name: [each.as_json() for each in fits] for name, fits in columns.items()},
            "flags": fit.flags,
            "command": shlex.join(["loadgen", "trace", "generate", *fit.flags]),
        }
    )
    return 0


def trace_inspect(arguments: argparse.Namespace) -> int:
    """Show what a trace looks like: in the terminal, and as a page where one is asked for."""
    if arguments.html is not None:
        check_is_file_name(arguments.html)
    trace, data = read_trace(arguments.trace)
    inspection, digest = inspect(trace), sha256_of(data)
    if arguments.html is not None:
        page = render_page(arguments.trace.name, digest, inspection)
        write_whole((arguments.html, [page.encode()]))
    if arguments.json:
        _print_json({"path": str(arguments.trace), "sha256": digest, **inspection.as_json()})
        return 0
    print_inspection(inspection, _console())
    if arguments.html is not None:
        print(f"page: {arguments.html}")
    return 0


def trace_export(arguments: argparse.Namespace) -> int:
    """Write a trace in another's format; what that loses is told on standard error."""
    check_is_file_name(arguments.output)
    form = ExportFormat(arguments.format)
    if arguments.start != _NS_FIRST and form is not ExportFormat.AZURE:
        raise ConfigError(f"--start: has no meaning for {form}, which has no dates; leave it out")
    try:
        start_ns = parse_stamp_ns(arguments.start, "--start")
    except BrokenRow as problem:
        raise ConfigError(str(problem).removesuffix("; --time-unit?")) from None
    trace, _ = read_trace(arguments.trace)
    for line in export(trace, form, arguments.output, start_ns).lines(form):
        print(f"loadgen: {line}", file=sys.stderr)
    print(f"{arguments.output}  {len(trace):,} requests as {form}")
    return 0


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _COLUMNS, highlight=False)


def _print_json(content: dict[str, Any]) -> None:
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
    sys.stdout.write(orjson.dumps(content, option=option).decode())


def _add_generate(actions: Any) -> None:
    command = actions.add_parser(
        "generate",
        help="draw a trace from laws",
        description="Draw a trace: when requests come, and how long prompts and outputs are. "
        "Prints what was asked beside what was drawn.",
        epilog="example: loadgen trace generate --num-prompts 64 --request-rate 8 "
        "--preset lesson1 -o trace.jsonl",
    )
    _add_output(command, "file to write (JSONL)")
    command.add_argument("--json", action="store_true", help="print JSON")
    add_flags(command, "trace", GeneratorConfig)
    command.set_defaults(call=trace_generate)


def _add_lesson2(actions: Any) -> None:
    command = actions.add_parser(
        "lesson2",
        help="write the second batching lesson's requests",
        description="Write the 160 requests of the lesson that measures static against continuous "
        "batching: eight prompts, long and short in turn, twenty times over, all of them waiting, "
        "with limits of 500, 10, 15, 200, 150, 10, 30 and 600 tokens.",
        epilog="example: loadgen trace lesson2 --scale 0.1 -o lesson2.jsonl",
    )
    _add_output(command, "file to write (JSONL)")
    add_flags(command, "lesson", Lesson2Config)
    command.set_defaults(call=trace_lesson2)


def _add_import(actions: Any) -> None:
    command = actions.add_parser(
        "import",
        help="make a trace of a file in another's format",
        description="Make a trace of a file in another's format, plain or gzip, of any size. Rows "
        "are sorted by time, the first becomes 0, and every row left out or changed is counted.",
        epilog="example: loadgen trace import azure AzureLLMInferenceTrace_conv.csv -o conv.jsonl",
    )
    command.add_argument(
        "format", metavar="FORMAT", choices=sorted(FORMATS), help=f"one of {', '.join(FORMATS)}"
    )
    command.add_argument("file", type=Path, metavar="FILE", help="the file to read")
    _add_output(command, "trace to write (JSONL)")
    command.add_argument("--json", action="store_true", help="print JSON")
    add_flags(command, "import", ImportConfig)
    command.set_defaults(call=trace_import)


def _add_fit(actions: Any) -> None:
    command = actions.add_parser(
        "fit",
        help="fit laws to a trace",
        description="Fit laws to a trace's gaps and lengths: log-normal with one and two "
        "components, gamma, Weibull, exponential; and print flags of `trace generate` that draw a "
        "trace like it.",
        epilog="example: loadgen trace fit trace.jsonl",
    )
    _add_trace_file(command)
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(call=trace_fit)


def _add_inspect(actions: Any) -> None:
    command = actions.add_parser(
        "inspect",
        help="show what a trace looks like",
        description="Show a trace's rate, gaps, dispersion and lengths, with histograms; as a page "
        "with plots too.",
        epilog="example: loadgen trace inspect trace.jsonl --html trace.html",
    )
    _add_trace_file(command)
    command.add_argument(
        "--html", type=Path, metavar="FILE", help="write a self-contained page with plots"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(call=trace_inspect)


def _add_export(actions: Any) -> None:
    command = actions.add_parser(
        "export",
        help="write a trace in another's format",
        description="Write a trace in another's format. Mooncake has whole ms, azure 100 ns, "
        "burstgpt whole seconds; csv and parquet keep times as they are. What is rounded or left "
        "out is told on standard error.",
        epilog="example: loadgen trace export trace.jsonl --format mooncake -o mooncake.jsonl",
    )
    _add_trace_file(command)
    command.add_argument(
        "--format",
        required=True,
        choices=[form.value for form in ExportFormat],
        metavar="{" + ",".join(ExportFormat) + "}",
        help="format to write",
    )
    _add_output(command, "file to write")
    command.add_argument(
        "--start",
        default=_NS_FIRST,
        metavar="WHEN",
        help=f"date and time of the first arrival, for azure (default: {_NS_FIRST})",
    )
    command.set_defaults(call=trace_export)


def _add_trace_file(command: argparse.ArgumentParser) -> None:
    command.add_argument("trace", type=Path, metavar="TRACE", help="trace file (JSONL)")


def _add_output(command: argparse.ArgumentParser, words: str) -> None:
    command.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=words)
