"""`--run-dir` of a directory that holds something already."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.cli import main
from loadgen.journal import HEADER
from loadgen.search_files import SEARCH

NOWHERE = "http://127.0.0.1:9"
COMMANDS = {
    "run": ("run", "--base-url", NOWHERE),
    "compare": ("compare", "--target", f"a={NOWHERE}", "--target", f"b={NOWHERE}"),
    "sweep": ("sweep", "--base-url", NOWHERE, "--rates", "1,2"),
    "capacity": ("capacity", "--base-url", NOWHERE, "--goodput", "ttft:100"),
    "simulate": ("simulate",),
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("held", [HEADER, SEARCH])
def test_what_a_directory_holds_is_left_alone(
    words: tuple[str, ...], held: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory that holds a run or a search is refused before anything is written into it."""
    (tmp_path / held).write_text("{}")
    assert main([*words, "--run-dir", str(tmp_path)]) == 2
    assert "give another directory" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == [held]
