"""Write docs/cli.md from the command line's own parser: neither can lag behind the other."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from loadgen import config_file, explore_config
from loadgen.cli import build_parser
from loadgen.sim import config as sim_config

TARGET: Final = Path(__file__).resolve().parent.parent / "docs" / "cli.md"

HEAD: Final = """# The command line

Written by `python -m scripts.write_cli_docs` from the program's own `--help`; a test checks that it
is fresh. Exit codes: 0 finished (failed requests and SUSPECT included), 1 a bug of loadgen, 2 bad
usage, configuration or input, or a target not ready, 3 a gate failed, 4 verdict INVALID, 130
interrupted.
"""

EXAMPLE: Final = """\
targets: [{name: mine, base_url: "http://127.0.0.1:8000"}]
generate: {num_prompts: 100, request_rate: 4, input_mean: 512, input_cv: 0.5, output_len: 128}
request: {model: my-model, endpoint: chat, header: {X-Team: research}}
load: {max_duration: 600}
output: {label: nightly, goodput: {ttft: 500, tpot: 50}}
"""
CONFIG: Final = f"""## The configuration file

`--config FILE` gives a command in YAML or JSON what its flags give; a flag that is given wins. A
key is its flag's name with `_` for `-`, in the section of its kind; an unknown key is an error.
`trace: FILE` stands in place of `generate`; rounds are flags alone. With

    {EXAMPLE.strip().replace(chr(10), chr(10) + "    ")}

in `nightly.yaml`, `loadgen run --config nightly.yaml --dry-run` says what would be sent.

| section | commands | keys |
| --- | --- | --- |
"""
SECTIONS: Final = {
    **dict.fromkeys(("run", "compare"), config_file.SECTIONS),
    **explore_config.SECTIONS,
    "simulate": sim_config.SECTIONS,
}


def commands(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Every command that does something, with its words."""
    children = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not children:
        yield words, parser
    for action in children:
        for name, child in action.choices.items():
            yield from commands(child, (*words, name))


def text() -> str:
    """The whole page."""
    parts = [HEAD, CONFIG + "\n".join(_rows_of_sections()) + "\n"]
    for words, parser in commands(build_parser()):
        parts.append(f"## loadgen {' '.join(words)}\n\n{parser.description}\n")
        if parser.epilog:
            parts.append(f"    {parser.epilog.removeprefix('example: ')}\n")
        for group in parser._action_groups:
            rows = [action for action in group._group_actions if action.dest != "help"]
            if not rows:
                continue
            title = (group.title or "").capitalize()
            parts.append(f"| {title} | |\n| --- | --- |")
            parts[-1] += "".join(f"\n| {_names(row)} | {_help(row)} |" for row in rows) + "\n"
    return "\n".join(parts)


def _rows_of_sections() -> Iterator[str]:
    kinds: dict[tuple[str, type[BaseModel]], list[str]] = {}
    for kind, sections in SECTIONS.items():
        for section, model in sections.items():
            kinds.setdefault((section, model), []).append(f"`{kind}`")
    for (section, model), names in kinds.items():
        keys = ", ".join(f"`{key}`" for key in model.model_fields)
        shown = f"`{section}`, a list" if section == "targets" else f"`{section}`"
        yield f"| {shown} | {', '.join(names)} | {keys} |"


def _names(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 or action.metavar is None else f" {action.metavar}"
    if action.metavar is None and action.choices:
        value = f" {{{','.join(map(str, action.choices))}}}"
    names = action.option_strings or [""]
    return ", ".join(_cell(f"`{name}{value}`".replace("` ", "`")) for name in names)


def _help(action: argparse.Action) -> str:
    return (
        f"{_cell(action.help)}{'; required' if action.option_strings and action.required else ''}"
    )


def _cell(words: str | None) -> str:
    return (words or "").replace("%%", "%").replace("|", "\\|")


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(TARGET.read_text() != text() and "docs/cli.md is stale: run this without --check")
    TARGET.write_text(text())
