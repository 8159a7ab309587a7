"""What both servers load a model in where nobody says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from running import engine_config

from servers.bfloat16 import automatic_dtype, cpu_has_bfloat16, own_dtype
from servers.local import REPOSITORY
from servers.static import engine
from servers.vllm.__main__ import with_dtype
from servers.vllm.command import Options


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


STATED: list[dict[str, Any]] = [
    {"dtype": "bfloat16"},
    {"torch_dtype": "float16"},
    {"dtype": "float32"},
    {"dtype": None, "text_config": {"torch_dtype": "torch.bfloat16"}},
    {},
]


@pytest.mark.parametrize(
    ("stated", "gpu", "knows", "does_not"),
    [
        (STATED[0], "bfloat16", "bfloat16", "float32"),
        (STATED[1], "float16", "float32", "float32"),
        (STATED[2], "float32", "float32", "float32"),
        (STATED[3], "bfloat16", "bfloat16", "float32"),
        (STATED[4], "float32", "float32", "float32"),
    ],
    ids=["bfloat16", "float16", "float32", "nested", "none"],
)
def test_auto_is_one_format_on_both_servers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stated: dict[str, Any],
    gpu: str,
    knows: str,
    does_not: str,
) -> None:
    """The model's own on a GPU; on a CPU a half is float32 but where it is one the CPU knows."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **stated}))
    for on_cuda, has, expected in (
        (True, True, gpu),
        (True, False, gpu),
        (False, True, knows),
        (False, False, does_not),
    ):
        monkeypatch.setattr(engine, "cpu_has_bfloat16", lambda has=has: has)
        static = engine.dtype_of(engine_config(tmp_path), on_cuda=on_cuda)
        vllm = with_dtype(Options(model=str(tmp_path)), cpu=not on_cuda, has_bfloat16=has)
        assert (str(static), vllm.dtype) == (f"torch.{expected}", expected)


@pytest.mark.parametrize("asked", ["bfloat16", "float16", "float32"])
def test_what_was_asked_for_stays(tmp_path: Path, asked: str) -> None:
    """A format that is named is taken as it is, and the model's files are not asked."""
    static = engine.dtype_of(engine_config(tmp_path, asked), on_cuda=False)
    vllm = with_dtype(Options(model="none", dtype=asked), cpu=True, has_bfloat16=False)
    assert (str(static), vllm.dtype) == (f"torch.{asked}", asked)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
def test_a_saved_model_states_its_format(tmp_path: Path, name: str) -> None:
    """As transformers writes it, so that the file can be read without transformers."""
    transformers.LlamaConfig(dtype=getattr(torch, name)).save_pretrained(tmp_path)
    assert own_dtype(str(tmp_path)) == name
    assert automatic_dtype(name, on_cuda=True, has_bfloat16=False) == name


def test_a_model_on_the_hub_states_its_format(tmp_path: Path) -> None:
    """A hub id's config.json is read by transformers, here from its cache."""
    kept = tmp_path / "hub" / "models--some--model"
    revision = "0" * 40
    (kept / "snapshots" / revision).mkdir(parents=True)
    (kept / "snapshots" / revision / "config.json").write_text('{"torch_dtype": "float16"}')
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(revision)
    asks = "from servers.bfloat16 import own_dtype; print(own_dtype('some/model'))"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", asks],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=environment,
        check=True,
    )
    assert done.stdout.strip() == "float16"


def test_a_format_that_cannot_be_read_is_left_to_vllm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """vLLM serves models without a config.json too: it gets its own `auto`, and a line says so."""
    options = Options(model=str(tmp_path))
    assert with_dtype(options, cpu=True, has_bfloat16=True) == options
    (line,) = capsys.readouterr().err.splitlines()
    assert "vLLM's own auto" in line
    assert "config.json" in line
