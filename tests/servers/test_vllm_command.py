"""The command and environment of vLLM's server, without starting it."""

from pathlib import Path

from servers.vllm.__main__ import parse
from servers.vllm.command import Options, build_command, build_environment


def value_of(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


def test_limits_match_the_static_servers() -> None:
    """On a CPU and a GPU the batch size becomes `--max-num-seqs`, prefix caching is off, and the
    model's own sampling defaults are not vLLM's.
    """
    for cpu in (True, False):
        command = build_command(Options(model="m", batch_size=7, max_model_len=512), cpu=cpu)
        assert command[3:5] == ["serve", "m"]
        assert value_of(command, "--max-num-seqs") == "7"
        assert value_of(command, "--max-model-len") == "512"
        assert value_of(command, "--dtype") == "auto"
        assert value_of(command, "--generation-config") == "vllm"
        assert "--no-enable-prefix-caching" in command


def test_cpu_is_eager() -> None:
    """On a CPU nothing is compiled and no GPU flag is passed."""
    command = build_command(Options(model="m"), cpu=True)
    assert "--enforce-eager" in command
    assert "--gpu-memory-utilization" not in command


def test_gpu_memory_is_bounded() -> None:
    """On a GPU the share of its memory is stated and eager mode is left to vLLM."""
    command = build_command(Options(model="m", gpu_memory_utilization=0.4), cpu=False)
    assert value_of(command, "--gpu-memory-utilization") == "0.4"
    assert "--enforce-eager" not in command


def test_further_flags_come_last() -> None:
    """Flags after `--` reach vLLM unchanged and behind ours, so that they win."""
    options = parse(["--model", "m", "--batch-size", "3", "--", "--max-num-seqs", "9", "-O0"])
    assert options.batch_size == 3
    assert build_command(options, cpu=True)[-3:] == ["--max-num-seqs", "9", "-O0"]


def test_cpu_environment_bounds_memory_and_uses_all_cores() -> None:
    """On a CPU the cache has 1 GiB and the threads all the cores that this process may use."""
    found = build_environment(Options(model="m"), cpu=True, inherited={"A": "b"}, cores={5, 2})
    assert found["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert found["VLLM_CPU_OMP_THREADS_BIND"] == "2,5"
    assert (found["VLLM_NO_USAGE_STATS"], found["DO_NOT_TRACK"], found["A"]) == ("1", "1", "b")
    assert "HF_HUB_OFFLINE" not in found


def test_what_the_user_set_stays() -> None:
    """A variable that is set already is left as it is."""
    mine = {"VLLM_CPU_KVCACHE_SPACE": "8", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    found = build_environment(Options(model="m"), cpu=True, inherited=mine, cores={0})
    assert {name: found[name] for name in mine} == mine


def test_gpu_environment_and_local_models(tmp_path: Path) -> None:
    """On a GPU no CPU variable is set, and a local directory keeps vLLM off the hub."""
    found = build_environment(Options(model=str(tmp_path)), cpu=False, inherited={}, cores={0})
    assert not any(name.startswith("VLLM_CPU") for name in found)
    assert found["HF_HUB_OFFLINE"] == "1"
