"""The parent's end of the model's process: starts it, starts it again when it dies, hands it one
batch at a time.

It knows rows and token ids, no requests. A child that cannot load at first start ends the server
(`failure`); one that dies later is replaced, and only if that fails several times in a row is the
model given up (`dead`).
"""

import asyncio
import enum
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import asdict
from typing import Any

from servers.static.wire import EngineConfig, Row, encode, encode_batch

_GIVE_UP_AFTER = 3
_LINE_LIMIT_BYTES = 64 << 20

log = logging.getLogger("static")


class Child:
    """A started process of the model, and the socket to it. It loads torch at once and then waits
    for its config. Raises OSError where the system has no descriptor, memory or process to spare.
    """

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            command = [
                sys.executable,
                "-m",
                "servers.static.child",
                str(theirs.fileno()),
                str(os.getpid()),
            ]
            try:
                self.process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
                )
            except OSError:
                self.socket.close()
                raise


class State(enum.Enum):
    """What `/health` tells apart."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    DEAD = "dead"
    STOPPED = "stopped"


class BatchFailed(Exception):
    """A batch ended with an exception or with the death of its process; the message says which."""


class ModelDead(Exception):
    """The model's process was given up or stopped."""


class ModelProcess:
    """The one child that holds the model. `supervise` runs as long as the server does."""

    def __init__(
        self, config: EngineConfig, on_state: Callable[[State], None], first: Child | None = None
    ) -> None:
        """`first` is a child that was started early, while the parent was still loading the
        tokenizer.
        """
        self._config = config
        self._first = first
        self._on_state = on_state
        self._changed = asyncio.Condition()
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._child: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.state = State.LOADING
        self.description: dict[str, str] = {}
        self.failure: str | None = None
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The child's process id."""
        return self._child.pid if self._child else None

    async def supervise(self) -> None:
        """Keep a child running until the model is dead or stopped."""
        failures = 0
        while True:
            reader = await self._spawn()
            loaded = reader is not None and await self._read(reader)
            if self._child is not None:
                await asyncio.to_thread(self._child.wait)
            if self._stopped():
                return
            failures = 0 if loaded else failures + 1
            first_start = not self.description
            if first_start or failures >= _GIVE_UP_AFTER:
                self.failure = self.failure or "the model's process ended while loading"
                await self._enter(State.DEAD)
                return
            self.restarts += 1
            await self._enter(State.RESTARTING)
            await asyncio.sleep(min(0.2 * 2**failures, 10.0))
            if self._stopped():
                return

    async def wait_ready(self) -> None:
        """Return once a batch can be run. Raises ModelDead if that will not be."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self.state not in (State.LOADING, State.RESTARTING)
            )
        if self.state is not State.READY:
            raise ModelDead(self.failure or f"the model is {self.state.value}")

    async def wait_over(self) -> None:
        """Return when the model is given up or stopped."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.state in (State.DEAD, State.STOPPED))

    async def batch(self, rows: Sequence[Row]) -> AsyncGenerator[list[int], None]:
        """Run a batch; yields one token id a row for each step. Raises BatchFailed."""
        writer = self._writer
        while not self._inbox.empty():
            self._inbox.get_nowait()  # what a child that died left behind
        if self.state is not State.READY or writer is None:
            raise BatchFailed("the model's process has ended")
        writer.write(encode_batch(rows))
        while True:
            message = await self._inbox.get()
            if isinstance(message, list):
                yield message
            elif "done" in message:
                return
            else:
                raise BatchFailed(str(message["failed"]))

    def end_rows(self, indices: Sequence[int]) -> None:
        """Tell the child that rows of the running batch have ended, so that it need not run on for
        them.
        """
        if self._writer is not None:
            self._writer.write(encode({"end_rows": list(indices)}))

    async def stop(self) -> None:
        """End the child and wait for it."""
        await self._enter(State.STOPPED)
        if self._writer is not None:
            self._writer.close()
        if self._child is not None:
            # Closing the socket ends it between steps; nothing of it is worth waiting for longer.
            try:
                await asyncio.to_thread(self._child.wait, 2.0)
            except subprocess.TimeoutExpired:
                self._child.kill()
                await asyncio.to_thread(self._child.wait)

    async def _spawn(self) -> asyncio.StreamReader | None:
        """Start a child and tell it its config; None where the system refuses a new process."""
        try:
            child, self._first = self._first or Child(), None
        except OSError as error:  # a shortage may pass: this start failed like any other
            self.failure = f"the model's process cannot be started: {error}"
            log.warning("%s", self.failure)
            return None
        self._child = child.process
        reader, self._writer = await asyncio.open_connection(
            sock=child.socket, limit=_LINE_LIMIT_BYTES
        )
        self._writer.write(encode(asdict(self._config)))
        return reader

    async def _read(self, reader: asyncio.StreamReader) -> bool:
        """Pass on what the child says until it ends; whether it had loaded its model."""
        loaded = False
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if isinstance(message, list) or "done" in message or "failed" in message:
                    self._inbox.put_nowait(message)
                elif "ready" in message:
                    loaded = True
                    self.description, self.failure = message["ready"], None
                    await self._enter(State.READY)
                else:
                    self.failure = message["load_failed"]
        except (ConnectionResetError, ValueError):
            pass  # killed in the middle of a line
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self.state is State.READY:
            await self._enter(State.RESTARTING)
        self._inbox.put_nowait({"failed": "the model's process ended"})
        return loaded

    def _stopped(self) -> bool:
        return self.state is State.STOPPED

    async def _enter(self, state: State) -> None:
        if self.state not in (state, State.STOPPED):
            self.state = state
            self._on_state(state)
        async with self._changed:
            self._changed.notify_all()
