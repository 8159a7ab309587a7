"""What differs from row to row inside one `generate`: when a row ends, where its tokens stand, and
how the next one is drawn.

`RowEnds` is a stopping criterion, `within_rows` goes around the preparation of a step, `MinTokens`
and `RowSampling` are logits processors. All work on whole-batch tensors with no loop over rows
except where each sampled row's own random generator fills its noise. Greedy rows are left exactly
as they are. Tokens are drawn by the Gumbel-max trick in its exponential form (argmax of p / e,
e ~ Exp(1)): the noise depends on the row's seed and step alone, so its batch mates cannot change a
draw.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from servers.static.wire import Row


class RowEnds:
    """Which rows have ended: by their own limit, by an end-of-sequence token, or because the server
    says so.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        width: int,
        eos_ids: Sequence[int],
        device: torch.device,
        ended_elsewhere: Callable[[], Sequence[int]],
    ) -> None:
        # `generate` looks for this attribute: with it, rows that ended are fed the padding token.
        self.eos_token_id = torch.tensor(list(eos_ids), dtype=torch.long, device=device)
        self._width = width
        self._limits = torch.tensor([row.max_tokens for row in rows], device=device)
        self._heeds_eos = torch.tensor([not row.ignore_eos for row in rows], device=device)
        self._any_heeds_eos = bool(eos_ids) and not all(row.ignore_eos for row in rows)
        self._ended = torch.zeros(len(rows), dtype=torch.bool, device=device)
        self._ended_elsewhere = ended_elsewhere

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self._ended |= self._limits <= input_ids.shape[1] - self._width
        if self._any_heeds_eos:
            at_eos = (input_ids[:, -1:] == self.eos_token_id).any(dim=1)
            self._ended |= at_eos & self._heeds_eos
        for index in self._ended_elsewhere():
            self._ended[index] = True
        # A copy: the loop inside `generate` keeps what it is given.
        return self._ended.clone()


def within_rows(
    prepare: Callable[..., dict[str, Any]], rows: Sequence[Row], device: torch.device
) -> Callable[..., dict[str, Any]]:
    """A model's `prepare_inputs_for_generation`, with each row's positions kept within the row.

    `generate` decodes on a row that has ended and counts its positions on: beside a shorter prompt
    with a longer answer they pass the model's context. There a learned table of positions ends, and
    rotary embeddings that depend on the longest position would change for the whole batch. So no
    position passes the last one that its row needs; a row that has not ended never gets further.
    """
    last = torch.tensor([[len(row.prompt_ids) + row.max_tokens - 2] for row in rows], device=device)

    @functools.wraps(prepare)
    def prepared(*args: Any, **kwargs: Any) -> dict[str, Any]:
        inputs = prepare(*args, **kwargs)
        if (position_ids := inputs.get("position_ids")) is not None:
            inputs["position_ids"] = torch.minimum(position_ids, last)
        return inputs

    return prepared


class MinTokens:
    """Forbids end-of-sequence tokens to the rows that have not reached their `min_tokens`."""

    def __init__(
        self, rows: Sequence[Row], width: int, eos_ids: Sequence[int], device: torch.device
    ) -> None:
        self._width = width
        self._eos = torch.tensor(list(eos_ids), dtype=torch.long, device=device)
        self._min = torch.tensor([row.min_tokens for row in rows], device=device)
        self._longest = max(row.min_tokens for row in rows)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        made = input_ids.shape[1] - self._width
        if made >= self._longest:
            return scores
        forbidden = (self._min > made)[:, None]
        scores[:, self._eos] = scores[:, self._eos].masked_fill(forbidden, -torch.inf)
        return scores


class RowSampling:
    """Draws the sampled rows' tokens and leaves each as the only possible one, so that argmax takes
    it.
    """

    def __init__(self, rows: Sequence[Row], device: torch.device) -> None:
        sampled = [(index, row) for index, row in enumerate(rows) if row.temperature > 0]
        self._index = torch.tensor([index for index, _ in sampled], device=device)
        self._temperature = torch.tensor([[row.temperature] for _, row in sampled], device=device)
        self._top_p = torch.tensor([[row.top_p] for _, row in sampled], device=device)
        self._top_k = [row.top_k for _, row in sampled]
        self._narrowed = any(row.top_p < 1 or row.top_k > 0 for _, row in sampled)
        self._generators = [torch.Generator(device).manual_seed(row.seed) for _, row in sampled]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        logits = scores[self._index] / self._temperature
        if self._narrowed:
            logits = self._narrow(logits)
        noise = torch.empty_like(logits)
        for row_noise, generator in zip(noise, self._generators, strict=True):
            row_noise.exponential_(generator=generator)
        drawn = (logits.softmax(dim=-1) / noise).argmax(dim=-1)
        scores[self._index] = -torch.inf
        scores[self._index, drawn] = 0.0
        return scores

    def _narrow(self, logits: torch.Tensor) -> torch.Tensor:
        """Top-k, then top-p of what is left; the likeliest token always stays."""
        ordered, order = logits.sort(dim=-1, descending=True)
        vocabulary = logits.shape[1]
        keep = torch.tensor(
            [[k if 0 < k < vocabulary else vocabulary] for k in self._top_k], device=logits.device
        )
        ordered = ordered.masked_fill(
            torch.arange(vocabulary, device=logits.device) >= keep, -torch.inf
        )
        probabilities = ordered.softmax(dim=-1)
        # Leave out a token when those before it reach top_p already; with top_p 1 rounding must not
        # leave any out.
        outside = (probabilities.cumsum(dim=-1) - probabilities >= self._top_p) & (self._top_p < 1)
        outside[:, 0] = False
        return torch.empty_like(logits).scatter_(1, order, ordered.masked_fill(outside, -torch.inf))
