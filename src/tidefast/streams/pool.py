"""The same function on many tasks, in processes that end with their parent."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from tidefast.streams.errors import StreamError
from tidefast.streams.prefetch import use_one_thread

Shared = TypeVar("Shared")
Task = TypeVar("Task")
Result = TypeVar("Result")

_WAITING = 2  # tasks handed out ahead of time for each process


def mapped(
    function: Callable[[Shared, Task], Result], shared: Shared, tasks: Iterable[Task], workers: int = 0
) -> Iterator[Result]:
    """`function(shared, task)` of each task, as they are finished; with no workers here, one after the other.

    Each process receives `shared` once. The processes are spawned and have one thread each; they end with the
    iterator, and with the parent when that is killed. Results must say themselves what they are results of.

    >>> sorted(mapped(pow, 2, [1, 2, 3]))
    [2, 4, 8]
    """
    if workers == 0:
        yield from (function(shared, task) for task in tasks)
        return
    executor = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_prepare, initargs=(function, shared)
    )
    coming = iter(tasks)
    running: set[Future[Result]] = set()
    try:
        while True:
            for task in coming:
                running.add(executor.submit(_answer, task))
                if len(running) >= workers * _WAITING:
                    break
            if not running:
                executor.shutdown()
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    except BrokenProcessPool as error:
        raise StreamError(
            "a worker process died: was it killed, or out of memory? The same call goes on with what is missing"
        ) from error
    finally:
        # Left early, the executor itself would wait for tasks that nobody wants any more.
        team = list((executor._processes or {}).values())
        executor.shutdown(wait=False, cancel_futures=True)
        for process in team:
            process.terminate()
            process.join()


_work: tuple[Callable[[Any, Any], Any], Any] | None = None  # in a worker: what it is there for


def _prepare(function: Callable[[Any, Any], Any], shared: object) -> None:
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business; it ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    use_one_thread()
    _work = function, shared


def _answer(task: object) -> Any:
    assert _work is not None
    function, shared = _work
    return function(shared, task)


def _end_with_parent() -> None:
    """A worker that waits for its next task does not notice by itself that its parent was killed."""
    parent = multiprocessing.parent_process()
    with contextlib.suppress(OSError):
        if parent is not None:
            parent.join()
    os._exit(1)
