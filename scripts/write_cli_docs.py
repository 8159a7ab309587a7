"""Write docs/cli.md from the command line's own parser: neither can lag behind the other."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from loadgen.cli import build_parser

TARGET: Final = Path(__file__).resolve().parent.parent / "docs" / "cli.md"

HEAD: Final = """# The command line

Written by `python -m scripts.write_cli_docs` from the program's own `--help`; a test checks that it
is fresh. Exit codes: 0 finished (failed requests and SUSPECT included), 1 a bug of loadgen, 2 bad
usage, configuration or input, or a target not ready, 3 a gate failed, 4 verdict INVALID, 130
interrupted.
"""


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
    parts = [HEAD]
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
            parts[-1] += "".join(f"\n| {_names(row)} | {_cell(row.help)} |" for row in rows) + "\n"
    return "\n".join(parts)


def _names(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 or action.metavar is None else f" {action.metavar}"
    names = action.option_strings or [""]
    return ", ".join(_cell(f"`{name}{value}`".replace("` ", "`")) for name in names)


def _cell(words: str | None) -> str:
    return (words or "").replace("%%", "%").replace("|", "\\|")


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(TARGET.read_text() != text() and "docs/cli.md is stale: run this without --check")
    TARGET.write_text(text())
