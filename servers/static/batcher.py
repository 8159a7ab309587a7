"""The queue and the batches: static batching itself.

First in, first out. A batch forms when `batch_size` requests wait, or once the oldest has waited
`max_wait_s` while the model is idle; while a batch runs, all others wait. A row that has ended
holds its slot until the batch ends, and so does one whose client has left, for nobody; a batch that
nobody waits for any more ends. With release "batch", no client is told anything before that end.
The model's process is given rows and gives back token ids; of HTTP nothing is known here. Time
comes from the clock that is passed in.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing

from servers.static.errors import ApiError, internal, queue_full, unavailable
from servers.static.job import Job, Piece
from servers.static.metrics import Metrics
from servers.static.model_process import BatchFailed, ModelDead, ModelProcess, State


class Batcher:
    """The bounded queue and the one loop that empties it in batches."""

    def __init__(
        self,
        model: ModelProcess,
        metrics: Metrics,
        clock: Callable[[], float],
        *,
        batch_size: int,
        max_wait_s: float,
        max_queue: int,
        hold_until_end: bool,
    ) -> None:
        self._model = model
        self._metrics = metrics
        self._clock = clock
        self._batch_size = batch_size
        self._max_wait_s = max_wait_s
        self._max_queue = max_queue
        self._hold_until_end = hold_until_end
        self._waiting: deque[Job] = deque()
        self._running: Sequence[Job] = ()
        self._queue_changed = asyncio.Event()

    def submit(self, job: Job) -> None:
        """Queue a job. Raises ApiError: 503 while there is no model, 429 when the queue is full."""
        if self._model.state not in (State.READY, State.RESTARTING):
            raise unavailable(f"the model is {self._model.state.value}", retry_after_s=5)
        if len(self._waiting) >= self._max_queue:
            raise queue_full(self._max_queue)
        self._waiting.append(job)
        self._note_queue()

    def abandon(self, job: Job) -> None:
        """The job's client has left: free its place in the queue at once. A row of a running batch
        stays in it until the batch ends, as static batching has it; a batch that nobody waits for
        ends there and then.
        """
        if job.closed:
            return
        self._close(job, "abort")
        if job in self._waiting:
            self._waiting.remove(job)
            self._note_queue()
        else:
            self._metrics.running.set(_in_progress(self._running))
            self._end_what_nobody_waits_for(self._running)

    async def run(self) -> None:
        """Form and run batches until the model is dead or stopped; then refuse what still waits."""
        try:
            while True:
                await self._model.wait_ready()
                # Who left since the batch was formed has no row yet, and gets none.
                batch = [job for job in await self._form_unless_over() if not job.closed]
                if batch and self._model.state is State.READY:
                    await self._run(batch)
                else:
                    self._waiting.extendleft(reversed(batch))
        except ModelDead as error:
            while self._waiting:
                self._fail(self._waiting.popleft(), unavailable(str(error)))
            self._note_queue()

    async def _form_unless_over(self) -> list[Job]:
        """As `_form`, but an idle queue does not outwait the model: no jobs once it is over."""
        form = asyncio.ensure_future(self._form())
        over = asyncio.ensure_future(self._model.wait_over())
        try:
            await asyncio.wait((form, over), return_when=asyncio.FIRST_COMPLETED)
            return form.result() if form.done() else []
        finally:
            form.cancel()
            over.cancel()

    async def _form(self) -> list[Job]:
        while True:
            while not self._waiting:
                await self._next_change(None)
            could_start_s = self._clock()
            while 0 < len(self._waiting) < self._batch_size:
                left_s = self._waiting[0].arrived_s + self._max_wait_s - self._clock()
                if left_s <= 0:
                    break
                await self._next_change(left_s)
            if self._waiting:
                break
        batch = [self._waiting.popleft() for _ in range(min(self._batch_size, len(self._waiting)))]
        self._metrics.form_wait_s.observe(self._clock() - could_start_s)
        self._note_queue()
        return batch

    async def _next_change(self, limit_s: float | None) -> None:
        self._queue_changed.clear()
        try:
            async with asyncio.timeout(limit_s):
                await self._queue_changed.wait()
        except TimeoutError:
            pass

    async def _run(self, batch: Sequence[Job]) -> None:
        metrics, start_s = self._metrics, self._clock()
        self._running = batch
        self._count_start(batch, start_s)
        held: list[tuple[Job, Piece]] = []
        try:
            async with aclosing(self._model.batch([job.row for job in batch])) as steps:
                async for token_ids in steps:
                    self._step(batch, token_ids, held)
            for job, piece in held:
                self._deliver(job, piece)
            metrics.batches_ok.inc()
        except BatchFailed as error:
            metrics.batches_failed.inc()
            for job in batch:
                if not job.closed:
                    self._fail(job, internal(f"the batch failed: {error}"))
        finally:
            self._running = ()
            metrics.running.set(0)
            metrics.held.set(0)
            metrics.batch_s.observe(self._clock() - start_s)

    def _step(
        self, batch: Sequence[Job], token_ids: Sequence[int], held: list[tuple[Job, Piece]]
    ) -> None:
        metrics = self._metrics
        useful = 0
        ended_by_text: list[int] = []
        for index, (job, token_id) in enumerate(zip(batch, token_ids, strict=True)):
            if job.ended:
                continue
            useful += not job.closed
            piece = job.take(token_id)
            if piece.stop_reason is not None:
                ended_by_text.append(index)  # the model's process cannot know this one
            if self._hold_until_end:
                held.append((job, piece))
            else:
                self._deliver(job, piece)
        if ended_by_text:
            self._model.end_rows(ended_by_text)
        self._end_what_nobody_waits_for(batch)
        metrics.steps.inc()
        metrics.row_steps.inc(len(batch))
        metrics.wasted_row_steps.inc(len(batch) - useful)
        metrics.generation_tokens.inc(useful)
        metrics.running.set(_in_progress(batch))

    def _end_what_nobody_waits_for(self, batch: Sequence[Job]) -> None:
        """End the rows that are left once every client has its answer or has gone."""
        left = [index for index, job in enumerate(batch) if not job.ended]
        if left and not _in_progress(batch):
            for index in left:
                batch[index].ended = True
            self._model.end_rows(left)

    def _deliver(self, job: Job, piece: Piece) -> None:
        if job.closed:
            return
        now_s = self._clock()
        if job.last_token_s is None:
            self._metrics.ttft_s.observe(now_s - job.arrived_s)
        else:
            self._metrics.itl_s.observe(now_s - job.last_token_s)
        job.last_token_s = now_s
        job.pieces.put_nowait(piece)
        if piece.finish_reason is not None:
            self._metrics.e2e_s.observe(now_s - job.arrived_s)
            self._close(job, piece.finish_reason)

    def _fail(self, job: Job, error: ApiError) -> None:
        job.pieces.put_nowait(error)
        self._close(job, "error")

    def _close(self, job: Job, reason: str) -> None:
        job.closed = True
        self._metrics.by_reason[reason].inc()
        self._metrics.request_generation_tokens.observe(job.made_tokens)

    def _count_start(self, batch: Sequence[Job], start_s: float) -> None:
        metrics = self._metrics
        lengths = [len(job.row.prompt_ids) for job in batch]
        metrics.batch_rows.observe(len(batch))
        metrics.prompt_tokens.inc(sum(lengths))
        metrics.padding_tokens.inc(max(lengths) * len(batch) - sum(lengths))
        metrics.running.set(len(batch))
        metrics.held.set(len(batch))
        for job, length in zip(batch, lengths, strict=True):
            metrics.request_prompt_tokens.observe(length)
            metrics.queue_s.observe(start_s - job.arrived_s)

    def _note_queue(self) -> None:
        self._metrics.waiting.set(len(self._waiting))
        self._queue_changed.set()


def _in_progress(batch: Sequence[Job]) -> int:
    """The rows that have not ended and whose clients are there."""
    return sum(not (job.ended or job.closed) for job in batch)
