"""Write the dashboards' JSON: `python -m dashboards.build`, or `--check` whether it is fresh.

The same code gives the same bytes, so the JSON is committed and compared.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import client, comparison, gpu, static, vllm

FOLDER: Final = Path(__file__).resolve().parent / "grafana" / "json"
DASHBOARDS: Final = (comparison, client, static, vllm, gpu)


def files() -> Iterator[tuple[str, str]]:
    """(file name, content) of each dashboard."""
    for module in DASHBOARDS:
        encoder = JSONEncoder(indent=2, sort_keys=True, ensure_ascii=False)
        yield f"{module.UID}.json", encoder.encode(module.build()) + "\n"


def stale(folder: Path) -> list[str]:
    """Names of files that are missing, differ, or belong to no dashboard."""
    made = dict(files())
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
    return sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))


def write(folder: Path) -> None:
    """Write all files, and remove those that belong to no dashboard."""
    folder.mkdir(parents=True, exist_ok=True)
    made = dict(files())
    for path in folder.glob("*.json"):
        if path.name not in made:
            path.unlink()
    for name, content in made.items():
        (folder / name).write_text(content, encoding="utf-8")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m dashboards.build", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if files are stale")
    if parser.parse_args(words).check:
        found = stale(FOLDER)
        for name in found:
            print(f"{name} is stale: run python -m dashboards.build", file=sys.stderr)
        return 1 if found else 0
    write(FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main())
