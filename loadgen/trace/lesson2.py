"""The workload of the second batching lesson: eight prompts, twenty times over, all waiting.

Eight kinds of request whose limits differ up to sixtyfold stand in one batch, so a static batch
waits for its longest member: head-of-line blocking, made visible. The limits are the lesson's, the
prompts our own. It knows neither servers nor how a trace is replayed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import Field

from loadgen.strict import Strict
from loadgen.trace.trace import Trace

TIMES: Final = 20
SAMPLING: Final = {"temperature": 0.7, "top_p": 0.95}
REQUESTS: Final = (
    ("Write a long story about a lighthouse keeper who finds a door beneath the stairs.", 500),
    ("In one word: what is the capital of Portugal?", 10),
    ("Translate into French: The train leaves at nine in the morning.", 15),
    ("Explain how a refrigerator keeps food cold, so that a child understands it.", 200),
    ("List ten things to check before a long bicycle tour, each with a reason.", 150),
    ("In one line: how far away is the moon?", 10),
    ("Tell me a short joke about a librarian.", 30),
    ("Write a long review of a small restaurant by the sea: food, service, prices, view.", 600),
)
"""(prompt, most output tokens): a long story, a one-word fact, a short translation, a medium
explanation, a medium list, a one-line fact, a short joke, a long review."""


class Lesson2Config(Strict):
    """What may be said of the lesson's trace."""

    scale: Annotated[float, Field(gt=0, le=10)] = Field(
        1.0, description="factor of the output limits, rounded, 1 token at least; 0.1 suits a CPU"
    )
    natural: bool = Field(
        False,
        description="answers may end by themselves before their limit; without it they are held to "
        "it, where targets can",
    )
    repeats: Annotated[int, Field(ge=1, le=1000)] = Field(
        1, description="write the 160 requests so often: once for each of as many --blocks"
    )
    tokenizer: Path | None = Field(
        None,
        description="tokenizer.json, or a directory that holds one, to count the prompts' tokens "
        "by; without it, words and punctuation marks are counted",
    )


def lesson2(config: Lesson2Config, count_tokens: Callable[[str], int] | None = None) -> Trace:
    """160 requests a repeat, all at 0 ms; `count_tokens` is that of the tokenizer, if there is one.

    What a row says of its sampling is one object for all rows.
    """
    sampling: dict[str, Any] = {**SAMPLING, **({"ignore_eos": False} if config.natural else {})}
    copies = TIMES * config.repeats
    prompts = [prompt for prompt, _ in REQUESTS]
    limits = [max(1, round(limit * config.scale)) for _, limit in REQUESTS]
    lengths = [(count_tokens or _count_words)(prompt) for prompt in prompts]
    return Trace(
        np.zeros(len(REQUESTS) * copies),
        np.tile(np.array(lengths, dtype=np.int64), copies),
        np.tile(np.array(limits, dtype=np.int64), copies),
        hash_ids=[[kind] for kind in range(len(REQUESTS))] * copies,
        payload=[{"prompt": prompt, "sampling": sampling} for prompt in prompts] * copies,
    )


def _count_words(text: str) -> int:
    return len(re.findall(r"\w+|[^\w\s]", text))
