"""Compose file, Dockerfiles and workflow files, checked without a Docker engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.frame import PAGE
from loadgen.cli import build_parser
from loadgen.config import GeneratorConfig, LoadConfig, OutputConfig, RoundsConfig
from loadgen.flags import take, validate
from loadgen.serve_cli import runs_in
from loadgen.service.settings import ServeConfig, settings_of

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent
DOCKERFILES = sorted(ROOT.glob("*/Dockerfile*")) + sorted(ROOT.glob("*/*/Dockerfile*"))


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, cwd=ROOT, check=False
    )


STACKS = {
    "gpu": ("docker-compose.yml",),
    "cpu": ("docker-compose.yml", "compose.cpu.yml"),
    "external": ("compose.external.yml",),
}
NEEDED = {"TARGET_URL": "http://h/v1", "TARGET_MODEL": "m", "RATE": "1", "MAX_OUTPUT_TOKENS": "9"}


def config(stack: str, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`docker compose config` of a stack; nothing of this environment is set but what is given."""
    files = [word for file in STACKS[stack] for word in ("-f", file)]
    return subprocess.run(
        [TOOLS / "docker-compose", *files, "--profile", "*", "config", *flags],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment},
        check=False,
    )


def services(stack: str, **environment: str) -> dict[str, Any]:
    """A stack's services, files merged and variables filled in."""
    done = config(stack, "--format", "json", **(NEEDED | environment))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["services"]
    return found


ALL_SERVICES = [
    pytest.param(name, service, id=f"{stack}-{name}")
    for stack in STACKS
    for name, service in services(stack).items()
]


@pytest.mark.parametrize("stack", STACKS)
def test_compose_accepts_the_files(stack: str) -> None:
    """`docker compose config -q` finds nothing wrong, with nothing set that need not be."""
    done = config(stack, "-q", **(NEEDED if stack == "external" else {}))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("name", NEEDED)
def test_an_external_endpoint_is_not_hammered_by_accident(name: str) -> None:
    """Target, rate and hard stop must be set: without one of them nothing starts."""
    done = config("external", "-q", **{key: text for key, text in NEEDED.items() if key != name})
    assert done.returncode != 0
    assert name in done.stderr


def test_yamllint_is_silent() -> None:
    """YAML that we ship has no lint."""
    files = sorted(ROOT.glob("*compose*.yml"))
    assert len(files) == 3
    done = run(TOOLS / "yamllint", "--strict", *files, "dashboards", ".yamllint")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_hadolint_is_silent(path: Path) -> None:
    """Dockerfiles have no lint."""
    done = run(TOOLS / "hadolint", path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_images_run_without_root(path: Path) -> None:
    """The last USER of each Dockerfile is not root, and what it copies exists."""
    lines = path.read_text().splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users
    assert users[-1] not in ("root", "0")
    for line in lines:
        if line.startswith("COPY "):
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), line


@pytest.mark.parametrize(("name", "service"), ALL_SERVICES)
def test_services_are_safe(name: str, service: dict[str, Any]) -> None:
    """Loopback ports, no privileges, a read-only root, and bounds on logs, memory and processes."""
    assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", []))
    assert service["cap_drop"] == ["ALL"]
    assert service.get("cap_add", []) == (["SYS_ADMIN"] if name == "dcgm-exporter" else [])
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["read_only"] is True
    assert "/tmp" in service["tmpfs"]
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    assert int(service["mem_limit"]) > 0
    assert service["pids_limit"] > 0
    assert service.get("user", "") not in ("root", "0")
    assert not service.get("privileged", False)


@pytest.mark.parametrize(("name", "service"), ALL_SERVICES)
def test_what_services_name_exists(name: str, service: dict[str, Any]) -> None:
    """Dockerfiles and mounted files are in the repository, images have a version, order is real."""
    if "build" in service:
        assert (ROOT / service["build"]["dockerfile"]).is_file()
    else:
        assert re.fullmatch(r"[a-z0-9/-]+:v?\d[\w.-]*", service["image"])
    for volume in service.get("volumes", []):
        if volume["type"] == "bind":
            assert Path(volume["source"]).exists(), volume
            assert volume["read_only"]
    assert service.get("depends_on", {}).keys() <= services("gpu").keys()
    has_check = not service["healthcheck"].get("disable", False)
    assert has_check == (name not in ("password", "dcgm-exporter"))


@pytest.mark.parametrize("stack", STACKS)
def test_prometheus_scrapes_the_services_that_there_are(stack: str) -> None:
    """Names and ports in its configuration are those of the stack."""
    found = services(stack)
    mounts = {v["target"]: v["source"] for v in found["prometheus"]["volumes"]}
    content = yaml.safe_load(Path(mounts["/etc/prometheus/prometheus.yml"]).read_text())
    for job in content["scrape_configs"]:
        for group in job.get("static_configs", []):
            for address in group["targets"]:
                name, _, port = address.partition(":")
                assert port in {str(p["target"]) for p in found[name]["ports"]}, address
    assert (Path(mounts["/etc/prometheus/rules"]) / "alerts.yml").exists()


@pytest.mark.parametrize("stack", ["gpu", "cpu"])
def test_loadgen_waits_for_both_servers(stack: str) -> None:
    """It starts when both are healthy, so that it measures no start-up, and has its token."""
    waits = services(stack)["loadgen"]["depends_on"]
    assert {name: wait["condition"] for name, wait in waits.items()} == {
        "password": "service_completed_successfully",
        "static": "service_healthy",
        "vllm": "service_healthy",
    }


def test_the_external_command_is_one_that_it_takes() -> None:
    """The command line is valid, serves its metrics, and has the hard stop that must be set."""
    parsed = build_parser().parse_args(services("external")["loadgen"]["command"])
    assert callable(parsed.call)
    assert parsed.metrics_port == "9464"
    for model in (LoadConfig, OutputConfig, RoundsConfig, GeneratorConfig):
        validate(model, take(model, parsed))
    assert parsed.max_output_tokens_total == NEEDED["MAX_OUTPUT_TOKENS"]


@pytest.mark.parametrize("stack", ["gpu", "cpu"])
@pytest.mark.parametrize("together", ["", "1"])
def test_the_service_starts_the_default_comparison(stack: str, together: str) -> None:
    """loadgen serves with a token, where Prometheus finds it, and compares both over and over."""
    loadgen = services(stack, TOGETHER=together, SLO_TTFT_MS="777")["loadgen"]
    parsed = build_parser().parse_args(loadgen["command"])
    flags = validate(ServeConfig, take(ServeConfig, parsed))
    environment = loadgen["environment"] | {"LOADGEN_API_TOKEN": "x" * 16}
    assert environment.pop("LOADGEN_API_TOKEN_FILE") == "/token/token"
    settings = settings_of(flags, environment)
    assert "loadgen" in settings.hosts
    assert (flags.port, flags.open_metrics) == (9464, True)
    (spec,) = runs_in(yaml.safe_load(loadgen["environment"]["LOADGEN_START"]), "test", settings)
    assert spec.repeat
    assert [target.base_url for target in spec.config.targets] == [
        *("http://static:8001", "http://vllm:8002")
    ]
    assert spec.config.compare.together is bool(together)
    assert spec.config.compare.blocks == 4
    assert spec.config.output.goodput["ttft"] == 777


@pytest.mark.parametrize("stack", ["gpu", "cpu"])
def test_the_page_and_grafana_link_to_each_other(stack: str) -> None:
    """Each has the other's address as it is published on loopback."""
    found = services(stack, GRAFANA_PORT="3001")
    assert found["loadgen"]["environment"]["LOADGEN_GRAFANA_URL"] == "http://127.0.0.1:3001"
    (port,) = found["loadgen"]["ports"]
    assert f"http://127.0.0.1:{port['published']}/" == PAGE


def test_secrets_are_made_once(tmp_path: Path) -> None:
    """Password and token are made, printed at their first start alone, and kept."""
    script = (ROOT / "dashboards" / "grafana" / "password.py").read_text()
    for name in ("state", "token"):
        (tmp_path / name).mkdir()
        script = script.replace(f'Path("/{name}/', f'Path("{tmp_path}/{name}/')
    (tmp_path / "script.py").write_text(script)
    first, second = (run(sys.executable, tmp_path / "script.py").stdout for _ in range(2))
    token = (tmp_path / "token" / "token").read_text()
    assert len(token) >= 16
    assert token in first
    assert token not in second
    assert (tmp_path / "state" / "password").read_text() in first


def test_both_servers_have_matching_limits() -> None:
    """Batch size, context and dtype are the same on both; vLLM's prefix cache and the sampling
    defaults of the model are off.
    """
    found = services("gpu", BATCH_SIZE="24", MAX_MODEL_LEN="4096", MODEL="some/model")
    static, vllm = found["static"]["command"], found["vllm"]["command"]
    assert "--batch-size=24" in static
    assert "--max-num-seqs=24" in vllm
    for flag in ("--max-model-len=4096", "--dtype=bfloat16", "--model=some/model"):
        assert flag in static
        assert flag in vllm
    assert "--no-enable-prefix-caching" in vllm
    assert "--generation-config=vllm" in vllm


def test_servers_have_the_gpus_that_were_asked_for() -> None:
    """One for both by default, or one each; none at all on a CPU."""

    def gpu(stack: str, name: str, **environment: str) -> Any:
        deploy = services(stack, **environment)[name].get("deploy")
        return deploy and deploy["resources"]["reservations"]["devices"][0]["device_ids"]

    assert (gpu("gpu", "static"), gpu("gpu", "vllm")) == (["0"], ["0"])
    assert gpu("gpu", "vllm", VLLM_GPU="1") == ["1"]
    assert gpu("gpu", "static", STATIC_GPU="3") == ["3"]
    assert (gpu("cpu", "static"), gpu("cpu", "vllm")) == (None, None)


def test_secrets_are_in_no_file() -> None:
    """They come from the environment, by name alone."""
    for path in ROOT.glob("*compose*.yml"):
        for line in path.read_text().splitlines():
            key, _, text = line.strip().partition(":")
            if key in ("HF_TOKEN", "OPENAI_API_KEY", "GRAFANA_PASSWORD", "LOADGEN_API_TOKEN"):
                assert text.strip() == "", f"{path.name}: {line}"


def test_documented_variables_are_those_of_the_files() -> None:
    """docs/deploy.md explains each variable that a compose file reads, and no other."""
    read: set[str] = set()
    for path in ROOT.glob("*compose*.yml"):
        text = path.read_text()
        read |= set(re.findall(r"\$\{([A-Z][A-Z0-9_]*)", text))
        read |= set(re.findall(r"^      ([A-Z][A-Z_]+):$", text, re.MULTILINE))
    rows = re.findall(
        r"^\| (`[A-Z].*?) \|", (ROOT / "docs" / "deploy.md").read_text(), re.MULTILINE
    )
    documented = {name for row in rows for name in re.findall(r"`([A-Z0-9_]+)`", row)}
    assert documented == read


def test_no_placeholder_is_left_in_the_documentation() -> None:
    """A page that was to be filled in has been."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    left = [page.name for page in pages if re.search(r"@[A-Z]{3,}@", page.read_text())]
    assert left == []
