"""`python -m servers.vllm`: become vLLM's own OpenAI server.

Parses our few options, states the command on stderr, and replaces this process by vLLM, so that
signals, exit code and log are vLLM's own. Flags after `--` go to vLLM unchanged.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace

from servers.bfloat16 import automatic_dtype, cpu_has_bfloat16, own_dtype
from servers.lifetime import die_with_parent, stated_parent
from servers.vllm.command import Options, build_command, build_environment
from servers.vllm.serve import cpu_build


def parse(arguments: Sequence[str]) -> Options:
    """Options from the command line; exits with code 2 on a wrong flag."""
    # Split here: argparse would drop the first `--` and mix what follows it with positional
    # arguments.
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    ours, rest = arguments[:cut], arguments[cut + 1 :]
    defaults = Options(model="")
    parser = argparse.ArgumentParser(
        prog="python -m servers.vllm",
        description="Start vLLM's OpenAI server with limits that match the static server's.",
        epilog="example: python -m servers.vllm --model ./model -- --max-num-batched-tokens 2048",
    )
    parser.add_argument("--model", required=True, help="directory or hub id")
    parser.add_argument(
        "--served-model-name", help="name in the API (default: the value of --model)"
    )
    parser.add_argument("--host", default=defaults.host)
    parser.add_argument("--port", type=int, default=defaults.port)
    parser.add_argument(
        "--batch-size", type=int, default=defaults.batch_size, help="vLLM's --max-num-seqs"
    )
    parser.add_argument("--max-model-len", type=int, default=defaults.max_model_len)
    parser.add_argument(
        "--dtype",
        default=defaults.dtype,
        help="auto: the model's own; on a CPU float32 for float16, and for bfloat16 where it has "
        "no instructions for that",
    )
    parser.add_argument(
        "--gpu-memory-utilization",
        type=float,
        default=defaults.gpu_memory_utilization,
        help="on a GPU only",
    )
    parser.add_argument(
        "--kv-cache-gib",
        type=int,
        default=defaults.kv_cache_gib,
        help="on a CPU only, GiB for keys and values",
    )
    return Options(**vars(parser.parse_args(ours)), extra=tuple(rest))


def with_dtype(options: Options, *, cpu: bool, has_bfloat16: bool) -> Options:
    """`auto` replaced by what it stands for on both servers; it stays vLLM's own where the model's
    config.json cannot be read, and one line says so.
    """
    if options.dtype != "auto":
        return options
    try:
        own = own_dtype(options.model)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        print(
            f"config.json cannot be read, so --dtype is vLLM's own auto: {reason}",
            file=sys.stderr,
            flush=True,
        )
        return options
    dtype = automatic_dtype(own, on_cuda=not cpu, has_bfloat16=has_bfloat16)
    return replace(options, dtype=dtype)


def main() -> None:
    """Replace this process by vLLM's server."""
    die_with_parent(stated_parent())
    cpu = cpu_build()
    options = with_dtype(parse(sys.argv[1:]), cpu=cpu, has_bfloat16=cpu_has_bfloat16())
    command = build_command(options, cpu=cpu)
    environment = build_environment(
        options, cpu=cpu, inherited=os.environ, cores=os.sched_getaffinity(0)
    )
    # The flags passed through may hold a key: they are counted, not printed.
    shown = shlex.join(command[: len(command) - len(options.extra)])
    further = f" and {len(options.extra)} further arguments" if options.extra else ""
    print(
        f"starting vLLM ({'CPU' if cpu else 'GPU'} build): {shown}{further}",
        file=sys.stderr,
        flush=True,
    )
    os.execvpe(command[0], command, environment)


if __name__ == "__main__":
    main()
