"""What the static server loads a model in where nobody says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from running import engine_config

from servers.bfloat16 import cpu_has_bfloat16
from servers.static import engine


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu avx2 avx512f avx512_bf16", True),
        ("fpu amx_bf16 amx_tile", True),
        ("fpu avx2 avx512f avx512_bf16_of_another_kind", False),
    ],
)
def test_a_cpu_says_whether_it_knows_bfloat16(tmp_path: Path, flags: str, expected: bool) -> None:
    """By its flags; a file that cannot be read says no."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nmodel name : some\nflags : {flags}\nbugs : none\n")
    assert cpu_has_bfloat16(cpuinfo) is expected
    assert cpu_has_bfloat16(tmp_path / "none") is False


@pytest.mark.parametrize(
    ("knows", "on_cuda", "asked", "expected"),
    [
        (False, False, "auto", torch.float32),
        (True, False, "auto", torch.bfloat16),
        (False, True, "auto", torch.bfloat16),
        (False, False, "bfloat16", torch.bfloat16),
    ],
)
def test_a_half_is_loaded_as_float32_where_a_cpu_does_not_know_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    knows: bool,
    on_cuda: bool,
    asked: str,
    expected: torch.dtype,
) -> None:
    """Unless it is asked for, or a GPU computes."""
    monkeypatch.setattr(engine, "cpu_has_bfloat16", lambda: knows)
    transformers.LlamaConfig(dtype=torch.bfloat16).save_pretrained(tmp_path)
    config = engine_config(tmp_path, asked)
    assert engine.dtype_of(config, on_cuda=on_cuda) == expected
