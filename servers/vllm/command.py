"""The command and environment under which vLLM's own server runs, as pure functions of the options.

What must be equal for a comparison of scheduling is set here: `--max-num-seqs` is the static
server's batch size, prefix caching is off, and what a request leaves open has OpenAI's default in
place of the model's (of whose generation_config.json the end-of-sequence tokens still count). On a
CPU vLLM takes nearly all memory and one core unless told otherwise, so both are stated. This module
starts nothing and imports no vLLM. Flags: https://docs.vllm.ai/en/latest/cli/serve/
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller chose; `extra` goes to vLLM after our own flags, so that it wins."""

    model: str
    served_model_name: str | None = None
    host: str = "127.0.0.1"
    port: int = 8001
    batch_size: int = 16
    max_model_len: int | None = 2048
    dtype: str = "auto"
    """Goes to vLLM as it is; its `auto` is not ours, which `__main__` resolves before."""
    gpu_memory_utilization: float = 0.9
    kv_cache_gib: int = 1
    extra: Sequence[str] = ()


def build_command(options: Options, *, cpu: bool) -> list[str]:
    """The argument vector of vLLM's server, for a CPU or a GPU build of vLLM."""
    command = [sys.executable, "-m", "servers.vllm.serve", "serve", options.model]
    if options.served_model_name:
        command += ["--served-model-name", options.served_model_name]
    command += ["--host", options.host, "--port", str(options.port)]
    command += ["--dtype", options.dtype, "--generation-config", "vllm"]
    if options.max_model_len is not None:
        command += ["--max-model-len", str(options.max_model_len)]
    command += ["--max-num-seqs", str(options.batch_size), "--no-enable-prefix-caching"]
    if cpu:
        # Compiling costs minutes on a CPU and gains little on a small model.
        command += ["--enforce-eager"]
    else:
        command += ["--gpu-memory-utilization", str(options.gpu_memory_utilization)]
    return [*command, *options.extra]


def build_environment(
    options: Options, *, cpu: bool, inherited: Mapping[str, str], cores: Collection[int]
) -> dict[str, str]:
    """The environment of vLLM's server; what the user has set already stays as it is."""
    wanted = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if Path(options.model).is_dir():
        wanted["HF_HUB_OFFLINE"] = "1"
    if cpu:
        # Unset, vLLM takes most of the machine's memory for its cache of keys and values.
        wanted["VLLM_CPU_KVCACHE_SPACE"] = str(options.kv_cache_gib)
        # Its own default leaves cores idle: bind to all that this process may use, as the static
        # server does.
        wanted["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(str(core) for core in sorted(cores))
    return {**wanted, **inherited}
