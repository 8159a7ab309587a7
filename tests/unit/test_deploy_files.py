"""Compose file, Dockerfiles and workflow files, checked without a Docker engine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent
DOCKERFILES = sorted(ROOT.glob("*/Dockerfile*")) + sorted(ROOT.glob("*/*/Dockerfile*"))


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, cwd=ROOT, check=False
    )


def compose() -> dict[str, Any]:
    """The file as it is written; `docker compose config` fills in variables."""
    content: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return content


def test_compose_accepts_the_file() -> None:
    """`docker compose config -q` finds nothing wrong with docker-compose.yml."""
    done = run(TOOLS / "docker-compose", "-f", "docker-compose.yml", "config", "-q")
    assert done.returncode == 0, done.stderr


def test_yamllint_is_silent() -> None:
    """YAML that we ship has no lint."""
    done = run(TOOLS / "yamllint", "--strict", "docker-compose.yml", ".yamllint")
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


def test_ports_are_bound_to_loopback() -> None:
    """No service listens beyond this machine."""
    for name, service in compose()["services"].items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name


def test_services_have_their_builds_limits_and_order() -> None:
    """Every Dockerfile that is named exists, privileges are dropped, loadgen waits for both."""
    services = compose()["services"]
    for name, service in services.items():
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file(), name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert service["logging"]["options"]["max-size"], name
    waits = services["loadgen"]["depends_on"]
    assert {name: wait["condition"] for name, wait in waits.items()} == {
        "static": "service_healthy",
        "vllm": "service_healthy",
    }


def test_both_servers_have_matching_limits() -> None:
    """Batch size, context and dtype are the same on both, and vLLM's prefix cache is off."""
    services = compose()["services"]
    static, vllm = services["static"]["command"], services["vllm"]["command"]
    assert "--batch-size=${BATCH_SIZE:-16}" in static
    assert "--max-num-seqs=${BATCH_SIZE:-16}" in vllm
    for flag in ("--max-model-len=${MAX_MODEL_LEN:-2048}", "--dtype=bfloat16"):
        assert flag in static
        assert flag in vllm
    assert "--no-enable-prefix-caching" in vllm


def test_documented_variables_are_those_of_the_file() -> None:
    """docs/deploy.md explains each variable that docker-compose.yml reads."""
    read = set(re.findall(r"\$\{([A-Z_]+)", (ROOT / "docker-compose.yml").read_text()))
    page = (ROOT / "docs" / "deploy.md").read_text()
    assert read
    assert {name for name in read if f"`{name}`" not in page} == set()


def test_no_placeholder_is_left_in_the_documentation() -> None:
    """A page that was to be filled in has been."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    left = [page.name for page in pages if re.search(r"@[A-Z]{3,}@", page.read_text())]
    assert left == []
