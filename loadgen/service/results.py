"""Results that are made when they are asked for, by `loadgen` commands beside the service.

A run that was killed has its records and no report: it is made then. One command at a time, at low
priority, because a run may be measuring. It knows no HTTP.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from loadgen.journal import HEADER
from loadgen.search_files import SEARCH
from loadgen.service import process
from loadgen.service.refusal import Refusal
from loadgen.service.runs import RESULT, read_row
from loadgen.service.spec import KINDS, Spec
from loadgen.service.traces import Traces

_MOST_WAITING: Final = 8


class Results:
    """Makes them, one at a time."""

    def __init__(self, traces: Traces, environment: Mapping[str, str]) -> None:
        self._traces = traces
        self._environment = environment
        self._lock = asyncio.Lock()
        self._waiting = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One command's turn; raises Refusal where too many wait."""
        if self._waiting >= _MOST_WAITING:
            raise Refusal(429, "too much is being made already", {"Retry-After": "5"})
        self._waiting += 1
        try:
            async with self._lock:
                yield
        finally:
            self._waiting -= 1

    async def _call(self, *words: str, stdin: bytes = b"", limit_s: float = 300.0) -> bytes:
        try:
            done = await process.call(words, self._environment, stdin=stdin, limit_s=limit_s)
        except process.CommandError as error:
            raise Refusal(422, str(error)) from None
        return done.stdout

    async def file(self, path: Path, name: str) -> Path:
        """A file of a run that has ended, made now where it is not there. Raises Refusal."""
        row = read_row(path)
        if row is None:
            raise Refusal(404, "no such run")
        if not row.state.has_ended:
            raise Refusal(409, f"the run is {row.state}; its results are made when it has ended")
        if (path / SEARCH).is_file():
            if (path / name).is_file():
                return path / name
            raise Refusal(
                409,
                f"a {row.kind} has no {name}: its points are runs of their own, and its report is "
                "made when it ends or is stopped",
            )
        if not (path / HEADER).is_file():
            raise Refusal(409, f"the run sent nothing: {row.error or row.state}")
        if not (path / name).is_file():
            async with self.turn():
                if not (path / name).is_file():
                    made = await self._call(*process.command("report", str(path)))
                    if name == RESULT:
                        (path / RESULT).write_bytes(made)
        return path / name

    async def text(self, path: Path) -> str:
        """The table that the command prints, without the place of its report."""
        file = await self.file(path, RESULT)
        if (
            not file.stat().st_size and (path / HEADER).is_file()
        ):  # the run was killed before it printed
            async with self.turn():
                file.write_bytes(await self._call(*process.command("report", str(path))))
        lines = file.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith("report: ")) + "\n"

    async def exported(self, path: Path, form: str, target: str | None) -> BinaryIO:
        """Records in another form: `csv`, or `vllm` (of one target). Raises Refusal.

        The file is open and in no folder any more: it is gone when it is closed.
        """
        await self.file(path, "records.parquet")
        with tempfile.TemporaryDirectory(prefix="loadgen-") as scratch:
            file = Path(scratch) / "export"
            words = ["report", str(path), "--export", form, "-o", str(file)]
            if target is not None:
                words.append(f"--target={target}")
            async with self.turn():
                await self._call(*process.command(*words))
            return file.open("rb")

    async def compared(self, first: Path, second: Path) -> dict[str, Any]:
        """Two runs side by side. Raises Refusal."""
        for path in (first, second):
            await self.file(path, "records.parquet")
        module = "loadgen.service.pair"
        async with self.turn():
            words = [sys.executable, "-P", "-m", module, str(first), str(second)]
            return _object(await self._call(*words))

    async def described(self, spec: Spec) -> dict[str, Any]:
        """What a run would send; nothing is sent. Raises Refusal."""
        content = dict(spec.content)
        if content.get("trace") is not None:
            content["trace"] = str(self._traces.path(content["trace"]))
        words = process.command(*KINDS[spec.kind].words, "--config", "-", "--dry-run", "--json")
        async with self.turn():
            stdin = orjson.dumps(content)
            return _object(await self._call(*words, stdin=stdin, limit_s=60.0))


def _object(text: bytes) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(text)
    return found
