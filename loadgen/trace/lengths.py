"""Prompt and output lengths: log-normal, clamped to a range, or those of lesson 1.

An unclamped log-normal invents prompts that no model takes, so every law has a smallest and a
largest length. It knows nothing of time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def draw_lognormal_tokens(
    n: int, mu: float, sigma: float, low: int, high: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """n lengths exp(Normal(mu, sigma)), rounded to whole tokens and clamped to [low, high]."""
    return np.clip(np.rint(rng.lognormal(mu, sigma, n)), low, high).astype(np.int64)


def draw_lesson1_tokens(n: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(prompt, output) lengths of the batching lesson, from NumPy's legacy generator.

    For seed 42: n = 100 gives 3,748 output tokens, n = 64 gives 2,435.
    """
    legacy = np.random.RandomState(seed)
    prompt = legacy.lognormal(3.5, 1.0, n).astype(int) + 10
    output = legacy.lognormal(3.0, 0.8, n).astype(int) + 10
    return (
        np.clip(prompt, 10, 1024).astype(np.int64),
        np.clip(output, 10, 1024).astype(np.int64),
    )
