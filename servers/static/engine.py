"""Loads the model and runs one batch after another with transformers' own `generate`.

Left padding, the batch's longest limit as the length, and a streamer that sends each step's tokens
to the parent at once. Everything that could slow a step down is done elsewhere: text, HTTP and the
queue are the parent's, and what differs between rows is in `sampling`, on whole-batch tensors.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
import transformers

from servers.bfloat16 import automatic_dtype, cpu_has_bfloat16, own_dtype
from servers.static.sampling import MinTokens, RowEnds, RowSampling, within_rows
from servers.static.wire import EngineConfig, Link, Row, decode_batch, decode_config

# Untyped at this edge: its classes are loaded lazily and partly without annotations.
_hf: Any = transformers
_HALVES: Final = (torch.bfloat16, torch.float16)


def choose_attention(asked: str, *, half: bool, static_cache: bool, flash_usable: bool) -> str:
    """What `auto` stands for: FlashAttention-2 takes half precision only, and does without a static
    cache.
    """
    if asked != "auto":
        return asked
    return "flash_attention_2" if flash_usable and half and not static_cache else "sdpa"


def dtype_of(config: EngineConfig, *, on_cuda: bool) -> torch.dtype:
    """What the model is loaded in: what was asked for, or what `auto` is on both servers."""
    name = config.dtype
    if name == "auto":
        own = own_dtype(config.model)
        name = automatic_dtype(own, on_cuda=on_cuda, has_bfloat16=cpu_has_bfloat16())
    dtype: torch.dtype = getattr(torch, name)
    return dtype


class TokenStream:
    """A streamer for `generate`: sends each step's token ids. What is put first is the prompt."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._prompt_seen = False
        self.steps = 0

    def put(self, value: torch.Tensor) -> None:
        """Called by `generate` with the prompt, then once a step with one token a row."""
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        self.steps += 1
        self._link.send(value.tolist())

    def end(self) -> None:
        """Called by `generate` after the last step."""


class Engine:
    """A loaded model and the batches it runs."""

    def __init__(self, config: EngineConfig) -> None:
        _hf.utils.logging.disable_progress_bar()
        on_cuda = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
        self._config = config
        self._device = torch.device("cuda" if on_cuda else "cpu")
        if not on_cuda:
            torch.set_num_threads(config.threads)
        dtype = dtype_of(config, on_cuda=on_cuda)
        attention = choose_attention(
            config.attention,
            half=dtype in _HALVES,
            static_cache=config.cache == "static",
            # Says no as well where there is no device for it.
            flash_usable=on_cuda and _hf.utils.is_flash_attn_2_available(),
        )
        model = _hf.AutoModelForCausalLM.from_pretrained(
            config.model, dtype=dtype, attn_implementation=attention
        )
        self._model = model.to(self._device).eval()
        # How rows end and are drawn comes with each row: the model's own defaults must not mix in.
        self._model.generation_config = _hf.GenerationConfig(pad_token_id=config.pad_id)
        self._prepare_step = self._model.prepare_inputs_for_generation
        self._cache_options = self._cache_and_compile()

    def _cache_and_compile(self) -> dict[str, Any]:
        """What `generate` is told of cache and compilation. Left to itself, it compiles on a GPU
        wherever the cache is static.
        """
        config = self._config
        options: dict[str, Any] = {"disable_compile": not config.compile}
        if config.cache == "static":
            options["cache_implementation"] = "static"
        if config.compile:
            # One size for all batches: each other one would be compiled anew.
            options["max_cache_len"] = config.max_model_len
            options["compile_config"] = _hf.CompileConfig()
            options["compile_config"]._compile_all_devices = True  # on a CPU too, if asked to
        return options

    def describe(self) -> dict[str, str]:
        """What was loaded, for the log and the metrics."""
        return {
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "device": str(self._device),
            "attention": str(self._model.config._attn_implementation),
            "cache": self._config.cache,
            "compiled": str(self._config.compile).lower(),
        }

    def warm_up(self, link: Link) -> None:
        """Run a short batch of the full size: no request is to pay for what is done only once."""
        row = Row(prompt_ids=(self._config.pad_id,) * 8, max_tokens=2, ignore_eos=True)
        self._generate([row] * self._config.batch_size, link, None)

    def run(self, rows: Sequence[Row], link: Link) -> int:
        """Run one batch until its last row ends; returns the number of steps."""
        stream = TokenStream(link)
        self._generate(rows, link, stream)
        return stream.steps

    def _generate(self, rows: Sequence[Row], link: Link, stream: TokenStream | None) -> None:
        pad_id, eos_ids = self._config.pad_id, self._config.eos_ids
        width = max(len(row.prompt_ids) for row in rows)
        input_ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
        attention_mask = torch.zeros((len(rows), width), dtype=torch.long)
        for index, row in enumerate(rows):
            start = width - len(row.prompt_ids)
            input_ids[index, start:] = torch.tensor(row.prompt_ids)
            attention_mask[index, start:] = 1

        def ended_elsewhere() -> list[int]:
            ended: list[int] = []
            while link.waiting():
                ended += link.receive()["end_rows"]
            return ended

        processors: list[Any] = []
        if eos_ids and any(row.min_tokens > 0 for row in rows):
            processors.append(MinTokens(rows, width, eos_ids, self._device))
        if any(row.temperature > 0 for row in rows):
            processors.append(RowSampling(rows, self._device))
        # `generate` calls it before each step.
        self._model.prepare_inputs_for_generation = within_rows(
            self._prepare_step, rows, self._device
        )
        self._model.generate(
            input_ids=input_ids.to(self._device),
            attention_mask=attention_mask.to(self._device),
            generation_config=_hf.GenerationConfig(
                max_new_tokens=max(row.max_tokens for row in rows),
                do_sample=False,
                pad_token_id=pad_id,
                **self._cache_options,
            ),
            logits_processor=processors,
            stopping_criteria=[RowEnds(rows, width, eos_ids, self._device, ended_elsewhere)],
            streamer=stream,
        )


def serve(link: Link) -> int:
    """Load, then run batches until the parent closes the socket. Returns the exit code."""
    config = decode_config(link.receive())
    try:
        engine = Engine(config)
        engine.warm_up(link)
    except Exception as error:  # noqa: BLE001 - a boundary: whatever the files do, the parent is told
        link.send({"load_failed": _one_line(error)})
        return 1
    link.send({"ready": engine.describe()})
    while True:
        message = link.receive()
        if "batch" not in message:
            continue  # the end of a row whose batch has ended meanwhile
        try:
            steps = engine.run(decode_batch(message), link)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:  # noqa: BLE001 - a boundary: one batch must not end the others
            link.send({"failed": _one_line(error)})
            if _device_spoilt(error):
                return 1
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        else:
            link.send({"done": steps})


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def _device_spoilt(error: Exception) -> bool:
    """Whether this process cannot go on: a CUDA error other than out of memory stays for good."""
    return not isinstance(error, torch.OutOfMemoryError) and "CUDA error" in str(error)
