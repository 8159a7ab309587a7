"""Rows of a ShareGPT file: the first question and its answer of each conversation, as lengths.

The file is one JSON list of `{"conversations": [{"from": ..., "value": ...}, ...]}`, or one such
object a line. It is read an element at a time, and its text is counted by a tokenizer and not kept.
Roles: https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from loadgen.errors import TraceError
from loadgen.trace.reading import BLOCK_BYTES, LONGEST_LINE_BYTES, blocks
from loadgen.trace.rows import BrokenRow, BrokenRows, Rows

CountTokens = Callable[[str], int]
_ASKING: Final = ("human", "user")
_ANSWERING: Final = ("gpt", "chatgpt", "assistant", "bard", "bing", "model")
_AT_ONCE: Final = 1024
_DECODER: Final = json.JSONDecoder()


def read_sharegpt(
    path: Path, count_tokens: CountTokens, broken: BrokenRows, block_bytes: int = BLOCK_BYTES
) -> Iterator[Rows]:
    """The file's conversations; one without an answer has an output of 0 tokens."""
    special = count_tokens("")  # a server adds them to a prompt, and no model to its answer
    elements = enumerate(_elements(path, block_bytes), 1)
    while some := list(islice(elements, _AT_ONCE)):
        numbers, tokens = [], []
        for number, element in some:
            try:
                asked, answer = _pair(element)
            except BrokenRow as problem:
                broken.take(number, f"conversation {number}: {problem}")
                continue
            numbers.append(number)
            tokens.append(
                (
                    count_tokens(asked) if asked else 0,
                    max(count_tokens(answer) - special, 0),
                )
            )
        both = np.array(tokens, dtype=np.int64).reshape(-1, 2)
        line = np.array(numbers, dtype=np.int64)
        yield Rows(line, np.zeros(len(line)), both[:, 0], both[:, 1])


def _pair(element: Any) -> tuple[str, str]:
    turns = element.get("conversations", element.get("conversation")) if _is_dict(element) else None
    if not isinstance(turns, Sequence) or isinstance(turns, str):
        raise BrokenRow("an object with `conversations` is needed")
    asked = ""
    for turn in turns:
        role, value = (turn.get("from"), turn.get("value")) if _is_dict(turn) else (None, None)
        if not isinstance(value, str) or not isinstance(role, str):
            raise BrokenRow("each turn needs a `from` and a `value`, both text")
        if role in _ASKING and not asked:
            asked = value
        elif role in _ANSWERING and asked:
            return asked, value
    return asked, ""


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _elements(path: Path, block_bytes: int) -> Iterator[Any]:
    """The elements of a JSON list, or of a JSONL file, however long it is."""
    decode = codecs.getincrementaldecoder("utf-8")()
    text, at, is_list = "", 0, None
    found = 0
    for block in chain(blocks(path, block_bytes), (b"",)):
        try:
            text = text[at:] + decode.decode(block, final=not block)
        except UnicodeDecodeError:
            raise TraceError(f"{path}: not UTF-8 text after conversation {found}") from None
        at = 0
        while True:
            at = _skip(text, at)
            if is_list is None and at < len(text):
                is_list = text[at] == "["
                at += is_list
                continue
            if at == len(text):
                break
            if text[at] == "]" and is_list:
                return
            try:
                element, at = _DECODER.raw_decode(text, at)
            except json.JSONDecodeError as error:
                if block and len(text) - at <= LONGEST_LINE_BYTES:
                    break  # the element goes on in the next block
                raise TraceError(
                    f"{path}: conversation {found + 1}: not JSON ({error.msg}); is the file whole?"
                ) from None
            found += 1
            yield element
    if is_list:
        raise TraceError(f"{path}: ends within its list after conversation {found}; is it whole?")


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at
