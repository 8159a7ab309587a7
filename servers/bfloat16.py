"""Whether this machine's processor knows bfloat16: both servers ask, so that they compute alike.

Models are kept in it, but without instructions for it PyTorch multiplies matrices some 70 times
slower than in float32, and vLLM with it; so `--dtype auto` is float32 there (docs/experiments.md).
"""

from pathlib import Path
from typing import Final

_FLAGS: Final = frozenset({"avx512_bf16", "amx_bf16"})
"""Of x86-64, as Linux names them: https://docs.kernel.org/arch/x86/cpuinfo.html."""


def cpu_has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Where it cannot be read, as on other systems, it is taken not to."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return False
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return not _FLAGS.isdisjoint(flags.split())
