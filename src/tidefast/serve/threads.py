"""Threads that run from the start on."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor


def started_pool(count: int, name: str) -> ThreadPoolExecutor:
    """A pool whose threads all run: none has to be started when work comes, and a limit may forbid it by then.

    >>> with started_pool(2, "example") as pool:
    ...     pool.submit(sum, [1, 2]).result()
    3
    """
    pool = ThreadPoolExecutor(count, thread_name_prefix=name)
    together = threading.Barrier(count)
    try:
        for waiting in [pool.submit(together.wait) for _ in range(count)]:
            waiting.result()
    except BaseException:
        together.abort()
        raise
    return pool
