"""The number format that `--dtype auto` stands for: one rule for both servers, so that they compute
alike. vLLM's own `auto` is another, bfloat16 for a model in float32.

It is the model's own, as its config.json states it. On a CPU a half becomes float32, which holds
all of its values, unless it is bfloat16 and the processor has instructions for that: without them
PyTorch multiplies matrices many times slower than in float32, and vLLM with it
(docs/experiments.md).
"""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

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


def automatic_dtype(own: str | None, *, on_cuda: bool, has_bfloat16: bool) -> str:
    """What `auto` is for a model kept in `own`, None where that is not known: float32 then."""
    if own not in ("bfloat16", "float16"):
        return "float32"
    return own if on_cuda or (own == "bfloat16" and has_bfloat16) else "float32"


def own_dtype(model: str) -> str | None:
    """The format that the config.json of a directory or hub id states, None where it states none.
    Raises OSError or ValueError where it cannot be read.
    """
    if Path(model).is_dir():
        config = json.loads((Path(model) / "config.json").read_text())
    else:
        # Takes seconds to import, and vLLM's start waits for this: only for what is on the hub.
        hf: Any = importlib.import_module("transformers")
        config, _ = hf.PreTrainedConfig.get_config_dict(model)
    return _stated(config) or _stated(config.get("text_config") or {})


def _stated(config: Mapping[str, Any]) -> str | None:
    stated = config.get("dtype") or config.get("torch_dtype")
    return str(stated).removeprefix("torch.") if stated else None
