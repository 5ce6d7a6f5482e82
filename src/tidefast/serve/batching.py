"""Micro-batches: requests of one stream that come close together make one batch, and batches of several one call."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tidefast.serve.refused import RefusedError
from tidefast.serve.threads import started_pool

P = TypeVar("P")
A = TypeVar("A")


@dataclass(eq=False)
class PendingRequest(Generic[P, A]):
    """One request that waits for its answer."""

    kind: str
    payload: P
    size: int
    answer: asyncio.Future[A]
    since: float
    """When it came, by `time.perf_counter`."""
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """In which it was asked."""


@dataclass(eq=False)
class _Queue(Generic[P, A]):
    """The requests of one stream."""

    name: str
    waiting: deque[PendingRequest[P, A]] = field(default_factory=deque)
    images: int = 0
    running: bool = False
    ready: bool = False
    timer: asyncio.TimerHandle | None = None


_Batch = tuple[_Queue[P, A], list[PendingRequest[P, A]]]
Work = Callable[[str, str, Sequence[PendingRequest[P, A]]], Sequence[A]]
"""(stream, kind, requests) to their answers, in a thread of the batcher."""
JointWork = Callable[[str, Mapping[str, Sequence[PendingRequest[P, A]]]], Mapping[str, Sequence[A] | Exception]]
"""(kind, requests by stream) to the answers of each stream, or to what prevented them."""


class Batcher(Generic[P, A]):
    """Gathers the requests of each stream and hands them to `work`; to be used in one event loop.

    work: called with (stream, kind, requests) in a thread; what it raises is raised for each of the requests.
    workers: so many calls of `work` run at a time, one for a stream.
    max_batch, max_wait: a batch is complete with so many images, or so many seconds after its first request came.
    queue, stream_queue: so many images may wait in all, and of one stream; beyond that a request is refused.
    together, joint_work: batches of at most so many streams, that are complete when a worker is free, go into one call
        of `joint_work`; nobody waits for it.

    A batch holds whole requests of one kind. Streams whose batch is complete take turns, the longest waiting first;
    until its turn a batch goes on growing.
    """

    def __init__(
        self,
        work: Work[P, A],
        *,
        workers: int,
        max_batch: int,
        max_wait: float,
        queue: int,
        stream_queue: int,
        together: int = 1,
        joint_work: JointWork[P, A] | None = None,
    ) -> None:
        self._work, self._workers = work, workers
        self._joint_work, self._together = joint_work, together if joint_work is not None else 1
        self._max_batch, self._max_wait = max_batch, max_wait
        self._limit, self._stream_limit = queue, stream_queue
        self._queues: dict[str, _Queue[P, A]] = {}
        self._ready: deque[_Queue[P, A]] = deque()
        self._pool = started_pool(workers, "tidefast-step")
        self._running = 0
        self._stopping = False
        self._idle = asyncio.Event()
        self.waiting = 0
        """Images that wait for their batch."""

    async def submit(self, name: str, kind: str, payload: P, size: int, timeout: float) -> A:
        """The answer to one request of `size` images; a RefusedError when there is no room, or no time."""
        if self._stopping:
            raise RefusedError("stopping", "the service is shutting down: try another one, or again later")
        if size > self._max_batch:
            raise RefusedError(
                "too_large", f"a request holds at most {self._max_batch} images, got {size}: send several"
            )
        queue = self._queues.get(name) or _Queue(name)
        if queue.images + size > self._stream_limit:
            raise RefusedError("busy", f"{queue.images} images of this stream are waiting already: send slower")
        if self.waiting + size > self._limit:
            raise RefusedError("busy", f"{self.waiting} images are waiting already: send slower")
        self._queues[name] = queue
        request: PendingRequest[P, A] = PendingRequest(
            kind, payload, size, asyncio.get_running_loop().create_future(), time.perf_counter()
        )
        queue.waiting.append(request)
        queue.images += size
        self.waiting += size
        self._consider(queue)
        try:
            async with asyncio.timeout(timeout):
                return await request.answer
        except TimeoutError:
            if request in queue.waiting:
                queue.waiting.remove(request)
                queue.images -= size
                self.waiting -= size
            raise RefusedError("timeout", f"there was no answer within {timeout:g} s: send slower") from None

    async def stop(self, patience: float) -> None:
        """Take no more requests, work on all that wait without further delay, refuse what is left after `patience`."""
        self._stopping = True
        for queue in list(self._queues.values()):
            self._consider(queue)
        try:
            async with asyncio.timeout(patience):
                while self._queues:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            for queue in list(self._queues.values()):
                for request in queue.waiting:
                    if not request.answer.done():
                        request.answer.set_exception(
                            RefusedError("stopping", "the service had to shut down before your turn")
                        )
                queue.waiting.clear()
                queue.ready = False
                self._consider(queue)
            self._ready.clear()
        self._pool.shutdown(wait=False)

    # -- inside -----------------------------------------------------------------------------------------------

    def _consider(self, queue: _Queue[P, A]) -> None:
        """Make a stream's batch ready if it is complete, or set a timer for when it will be."""
        if queue.running or queue.ready:
            return
        if not queue.waiting:
            self._queues.pop(queue.name, None)
            self._idle.set()
            return
        left = queue.waiting[0].since + self._max_wait - time.perf_counter()
        mixed = queue.waiting[0].kind != queue.waiting[-1].kind
        if left <= 0 or mixed or self._stopping or queue.images >= self._max_batch:
            if queue.timer is not None:
                queue.timer.cancel()
                queue.timer = None
            queue.ready = True
            self._ready.append(queue)
            self._dispatch()
        elif queue.timer is None:
            queue.timer = asyncio.get_running_loop().call_later(left, self._ring, queue)

    def _ring(self, queue: _Queue[P, A]) -> None:
        queue.timer = None
        self._consider(queue)

    def _dispatch(self) -> None:
        while self._ready and self._running < self._workers:
            batches = self._next()
            if not batches:
                continue
            self._running += 1
            for queue, _ in batches:
                queue.running = True
            done = asyncio.get_running_loop().run_in_executor(self._pool, self._done, batches)
            done.add_done_callback(functools.partial(self._finish, batches))

    def _next(self) -> list[_Batch[P, A]]:
        """The batches of the next call, all of one kind: of the stream that waits longest, and of those behind it."""
        batches: list[_Batch[P, A]] = []
        passed: list[_Queue[P, A]] = []
        while self._ready and len(batches) < self._together:
            queue = self._ready.popleft()
            if batches and queue.waiting and queue.waiting[0].kind != batches[0][1][0].kind:
                passed.append(queue)
                continue
            queue.ready = False
            batch = self._take(queue)
            if batch:
                batches.append((queue, batch))
            else:  # all of them ran out of time
                self._consider(queue)
        self._ready.extendleft(reversed(passed))
        return batches

    def _done(self, batches: Sequence[_Batch[P, A]]) -> list[Sequence[A] | Exception]:
        """The answers to each batch, in a thread."""
        kind = batches[0][1][0].kind
        if len(batches) > 1 and self._joint_work is not None:
            answers = self._joint_work(kind, {queue.name: batch for queue, batch in batches})
            return [answers[queue.name] for queue, _ in batches]
        return [self._work(queue.name, kind, batch) for queue, batch in batches]

    def _take(self, queue: _Queue[P, A]) -> list[PendingRequest[P, A]]:
        """The next batch: whole requests of one kind, as many as fit."""
        batch: list[PendingRequest[P, A]] = []
        size = 0
        while queue.waiting and (not batch or size + queue.waiting[0].size <= self._max_batch):
            if batch and queue.waiting[0].kind != batch[0].kind:
                break
            batch.append(queue.waiting.popleft())
            size += batch[-1].size
        queue.images -= size
        self.waiting -= size
        return batch

    def _finish(self, batches: Sequence[_Batch[P, A]], done: asyncio.Future[list[Sequence[A] | Exception]]) -> None:
        self._running -= 1
        error = done.exception()
        results = done.result() if error is None else [error] * len(batches)
        for (queue, batch), result in zip(batches, results, strict=True):
            queue.running = False
            for i, request in enumerate(batch):
                if request.answer.done():  # its client has gone, or waited too long
                    continue
                if isinstance(result, BaseException):
                    request.answer.set_exception(result)
                else:
                    request.answer.set_result(result[i])
            self._consider(queue)
        self._dispatch()
