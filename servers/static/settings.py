"""The static server's options, from the command line.

Only the parent reads these; what the model's process needs of them is sent to it. The key may come
from the environment instead (`STATIC_API_KEY`), where no process list shows it; it is never
printed.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Settings:
    """All options; the defaults are the command line's."""

    model: str
    served_model_name: str
    host: str = "127.0.0.1"
    port: int = 8000
    batch_size: int = 16
    max_wait_ms: float = 50.0
    max_queue: int = 1024
    max_model_len: int | None = None
    release: str = "finished"
    dtype: str = "auto"
    device: str = "auto"
    attention: str = "auto"
    cache: str = "dynamic"
    compile: bool = False
    threads: int | None = None
    max_body_bytes: int = 4 << 20
    drain_timeout_s: float = 25.0
    api_key: str | None = field(default=None, repr=False)


def _at_least(minimum: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"must be at least {minimum}, not {text}")
        return value

    return whole_number


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m servers.static",
        description="Serve a causal language model in static batches behind OpenAI's API.",
        epilog="example: python -m servers.static --model ./model --port 8000 --batch-size 16",
    )
    add = parser.add_argument
    default = Settings(model="", served_model_name="")
    add("--model", required=True, help="directory or hub id of a causal language model")
    add("--served-model-name", help="name in the API (default: the value of --model)")
    add("--host", default=default.host)
    add("--port", type=_at_least(0), default=default.port)
    add(
        "--batch-size",
        type=_at_least(1),
        default=default.batch_size,
        help="requests in a full batch",
    )
    add(
        "--max-wait",
        dest="max_wait_ms",
        type=float,
        default=default.max_wait_ms,
        metavar="MS",
        help="a batch that is not full starts once its oldest request has waited this long",
    )
    add(
        "--max-queue",
        type=_at_least(1),
        default=default.max_queue,
        help="requests that may wait; more get 429",
    )
    add(
        "--max-model-len",
        type=_at_least(2),
        help="prompt and output tokens together (default: the model's context)",
    )
    add(
        "--release",
        choices=("finished", "batch"),
        default=default.release,
        help="finished: tokens stream as they come; "
        "batch: nothing is returned before the whole batch has ended",
    )
    add(
        "--dtype",
        choices=("auto", "bfloat16", "float16", "float32"),
        default=default.dtype,
        help="auto: the model's own; on a CPU float32 for float16, and for bfloat16 where it has "
        "no instructions for that",
    )
    add("--device", choices=("auto", "cpu", "cuda"), default=default.device)
    add(
        "--attention",
        choices=("auto", "sdpa", "eager", "flash_attention_2"),
        default=default.attention,
        help="auto: FlashAttention-2 where it is installed and can be used, else sdpa",
    )
    add(
        "--cache",
        choices=("dynamic", "static"),
        default=default.cache,
        help="of keys and values. dynamic: grows with the batch; static: transformers' fixed size",
    )
    add(
        "--compile",
        action="store_true",
        help="compile the model's forward with torch.compile; needs --cache static",
    )
    add(
        "--threads",
        type=_at_least(1),
        help="of the model on a CPU (default: all cores this process may use)",
    )
    add(
        "--max-body-bytes",
        type=_at_least(1024),
        default=default.max_body_bytes,
        help="larger requests get 413",
    )
    add(
        "--drain-timeout",
        dest="drain_timeout_s",
        type=float,
        default=default.drain_timeout_s,
        metavar="S",
        help="on SIGTERM, running and waiting requests get this long to finish",
    )
    add(
        "--api-key",
        help="required of clients as a bearer token "
        "(better: the environment variable STATIC_API_KEY)",
    )
    return parser


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """Settings from the command line; exits with code 2 and one line on a wrong flag."""
    parser = build_parser()
    values = vars(parser.parse_args(arguments))
    if values["max_wait_ms"] < 0 or values["drain_timeout_s"] < 0:
        parser.error("--max-wait and --drain-timeout must not be negative")
    if values["compile"] and values["cache"] != "static":
        parser.error("--compile needs --cache static")
    values["served_model_name"] = values["served_model_name"] or values["model"]
    values["api_key"] = values["api_key"] or os.environ.get("STATIC_API_KEY") or None
    return Settings(**values)
