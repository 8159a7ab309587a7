"""From what a request says to the token ids the model is given, and back to text.

Holds the tokenizer, the model's own chat template, and the limits that the model sets: context,
vocabulary and the tokens that end a sequence. The weights are not loaded here, only the files
beside them.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from servers.static.errors import bad_request


class ModelFilesError(Exception):
    """The model's files cannot be read; the message says which and why."""


class Prompts:
    """Tokenizer, chat template and limits of one model."""

    def __init__(self, model: str, max_model_len: int | None) -> None:
        if Path(model).is_dir():
            os.environ.setdefault("HF_HUB_OFFLINE", "1")
        from transformers import AutoConfig, AutoTokenizer, GenerationConfig

        try:
            config: Any = AutoConfig.from_pretrained(model)
            tokenizer: Any = AutoTokenizer.from_pretrained(model)
        except (OSError, ValueError) as error:
            raise ModelFilesError(f"cannot load {model}: {str(error).splitlines()[0]}") from error
        try:
            stated: Any = GenerationConfig.from_pretrained(model).eos_token_id
        except OSError:
            stated = config.eos_token_id
        self._tokenizer = tokenizer
        context_tokens = int(getattr(config, "max_position_embeddings", 0) or max_model_len or 2048)
        self.max_model_len = context_tokens if max_model_len is None else max_model_len
        if self.max_model_len > context_tokens:
            raise ModelFilesError(
                f"--max-model-len {max_model_len} is over the model's context of {context_tokens}"
            )
        self.vocabulary = int(config.vocab_size)
        # As vLLM does: the tokenizer's own token, and all that the model's generation config names.
        named = stated if isinstance(stated, list) else [stated]
        own = [tokenizer.eos_token_id, *named]
        self.eos_ids: tuple[int, ...] = tuple(
            dict.fromkeys(int(token) for token in own if token is not None)
        )
        # As in the classic recipe, rows are padded with the end-of-sequence token; the mask hides
        # it.
        self.pad_id = self.eos_ids[0] if self.eos_ids else 0
        self._longest_token_chars = max((len(token) for token in tokenizer.get_vocab()), default=1)

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, special tokens left out."""
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def encode(self, text: str, *, special: bool, param: str) -> list[int]:
        """Token ids of a text, with the tokenizer's own special tokens around it if `special`."""
        # Text this long cannot fit, however it is cut into tokens: say so before spending the time.
        if len(text) > self.max_model_len * self._longest_token_chars:
            raise self._too_long(f"at least {len(text) // self._longest_token_chars}", param)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise bad_request(f"{param} is not valid Unicode: {error.reason}", param) from error
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special)
        return ids

    def from_completion(self, prompt: str | Sequence[int], *, special: bool) -> list[int]:
        """Token ids of a completion's prompt, which is text or token ids already."""
        if isinstance(prompt, str):
            ids = self.encode(prompt, special=special, param="prompt")
        else:
            ids = list(prompt)
            for token in ids:
                if not 0 <= token < self.vocabulary:
                    raise bad_request(f"Token id {token} is out of vocabulary", "prompt")
        return self._checked(ids, "prompt")

    def from_messages(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool
    ) -> list[int]:
        """Token ids of a conversation under the model's own chat template."""
        from jinja2 import TemplateError

        if not self._tokenizer.chat_template:
            raise bad_request("this model has no chat template; use /v1/completions", "messages")
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise bad_request(
                f"the model's chat template refuses these messages: {error}", "messages"
            ) from error
        return self._checked(self.encode(text, special=False, param="messages"), "messages")

    def _checked(self, ids: list[int], param: str) -> list[int]:
        if not ids:
            raise bad_request(f"{param} must hold at least one token", param)
        if len(ids) >= self.max_model_len:
            raise self._too_long(str(len(ids)), param)
        return ids

    def _too_long(self, tokens: str, param: str) -> Exception:
        return bad_request(
            f"This model's maximum context length is {self.max_model_len} tokens. However, your "
            f"prompt contains {tokens} input tokens, which leaves no room for output tokens. "
            "Please reduce the length of the prompt.",
            param,
        )
