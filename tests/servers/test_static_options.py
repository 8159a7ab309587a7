"""The static server's options: the command line, its page, and what cache and compiling change."""

import re
import shutil
from typing import Any

import pytest
from running import Start, Static

from servers.local import REPOSITORY
from servers.static.engine import choose_attention
from servers.static.settings import build_parser, parse


def flags() -> set[str]:
    """All flags of the command line but help."""
    named = {flag for action in build_parser()._actions for flag in action.option_strings}
    return {flag for flag in named if flag.startswith("--")} - {"--help"}


def test_the_page_lists_every_flag() -> None:
    """Each flag has its row in docs/static-server.md, and no other flag has one."""
    page = (REPOSITORY / "docs" / "static-server.md").read_text()
    assert set(re.findall(r"^\| `(--[a-z-]+)", page, re.MULTILINE)) == flags()


def test_the_page_states_the_defaults() -> None:
    """The default that the page gives for a flag is the command line's, a dash for none."""
    page = (REPOSITORY / "docs" / "static-server.md").read_text()
    stated = dict(re.findall(r"^\| `(--[a-z-]+)` \| `?([^|]*?)`? \|", page, re.MULTILINE))
    defaults = {
        action.option_strings[-1]: "-" if not action.default else str(action.default)
        for action in build_parser()._actions
        if "--help" not in action.option_strings
    }
    assert stated == {flag: text.removesuffix(".0") for flag, text in defaults.items()}


def test_compilation_needs_a_static_cache(capsys: pytest.CaptureFixture[str]) -> None:
    """`--compile` beside a cache that grows is a wrong command line: code 2 and one line."""
    assert parse(["--model", "m", "--cache", "static", "--compile"]).compile
    with pytest.raises(SystemExit) as caught:
        parse(["--model", "m", "--compile"])
    assert caught.value.code == 2
    assert "--compile needs --cache static" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("asked", ["sdpa", "eager", "flash_attention_2"])
def test_an_attention_that_was_asked_for_stays(asked: str) -> None:
    """What was asked for is what is used, possible or not: the model's loading says so if not."""
    for flash_usable in (False, True):
        chosen = choose_attention(asked, half=False, static_cache=True, flash_usable=flash_usable)
        assert chosen == asked


@pytest.mark.parametrize("half", [False, True], ids=["float32", "half"])
@pytest.mark.parametrize("static_cache", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("flash_usable", [False, True], ids=["no-flash", "flash"])
def test_the_best_attention(half: bool, static_cache: bool, flash_usable: bool) -> None:
    """By default FlashAttention-2 is taken where it can be used, and only there."""
    chosen = choose_attention(
        "auto", half=half, static_cache=static_cache, flash_usable=flash_usable
    )
    best = half and flash_usable and not static_cache
    assert chosen == ("flash_attention_2" if best else "sdpa")


def texts(static: Static) -> list[str]:
    """Greedy and seeded answers, from batches that grow, shrink, and differ in their lengths."""

    def row(token_id: int, prompt: int, tokens: int, **more: Any) -> dict[str, Any]:
        return {"prompt": [token_id] * prompt, "max_tokens": tokens, "ignore_eos": True, **more}

    batches = [
        [row(40, 3, 20), row(50, 30, 12), row(60, 9, 33), row(70, 1, 5)],
        [row(80, 90, 60), row(90, 2, 9)],
        [row(41, 7, 25, temperature=1.0, seed=3), row(51, 4, 25)],
    ]
    return [answer["choices"][0]["text"] for batch in batches for answer in static.together(*batch)]


def test_a_static_cache_changes_no_answer(start: Start, static: Static) -> None:
    """In float32 a static cache gives the texts that a dynamic one gives, batch after batch."""
    with_static = start("--cache", "static", "--max-wait", "300")
    assert texts(with_static) == texts(static)
    assert with_static.metric("static_server_info", cache="static", compiled="false") == 1
    assert static.metric("static_server_info", cache="dynamic", attention="sdpa") == 1


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compilation_changes_no_answer(start: Start, static: Static) -> None:
    """In float32 a compiled model gives the texts that it gives uncompiled."""
    arguments = ["--cache", "static", "--compile", "--max-wait", "300", "--max-model-len", "256"]
    compiled = start(*arguments)
    assert texts(compiled) == texts(static)
    assert compiled.metric("static_server_info", cache="static", compiled="true") == 1
