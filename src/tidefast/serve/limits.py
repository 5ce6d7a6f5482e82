"""How fast a client may ask, and how much memory all requests may take together."""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator

from tidefast.serve.refused import RefusedError

_CLIENTS = 10_000


class RateLimit:
    """A bucket of tokens for each client: `rate` come in a second, `burst` fit in, a request takes one.

    >>> now = [0.0]
    >>> limit = RateLimit(rate=2.0, burst=3.0, clock=lambda: now[0])
    >>> [limit.wait("a") for _ in range(4)], limit.wait("b")
    ([0.0, 0.0, 0.0, 0.5], 0.0)
    >>> now[0] = 0.5
    >>> limit.wait("a"), limit.wait("a")
    (0.0, 0.5)
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when they were counted

    def wait(self, client: str) -> float:
        """Take a token: 0 when there was one, else the seconds until there will be."""
        if not self._rate:
            return 0.0
        now = self._clock()
        tokens, then = self._buckets.pop(client, (self._burst, now))
        tokens = min(self._burst, tokens + (now - then) * self._rate)
        missing = 1.0 - tokens
        self._buckets[client] = (tokens if missing > 0 else tokens - 1.0, now)
        if len(self._buckets) > _CLIENTS:
            self._buckets.popitem(last=False)
        return max(0.0, missing / self._rate)


class ByteBudget:
    """Bytes that all requests under way may hold together; to be used in one thread.

    >>> budget = ByteBudget(10)
    >>> with budget.account() as mine, budget.account() as yours:
    ...     mine.charge(6)
    ...     yours.charge(5)
    Traceback (most recent call last):
    ...
    tidefast.serve.refused.RefusedError: requests under way hold 6 bytes, at most 10 are kept: send slower
    >>> budget.used
    0
    """

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0

    @contextlib.contextmanager
    def account(self) -> Iterator[ByteAccount]:
        """What one request takes; given back at the end."""
        account = ByteAccount(self)
        try:
            yield account
        finally:
            self.used -= account.held


class ByteAccount:
    """What one request has taken of a budget."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget, self.held = budget, 0

    def charge(self, size: int) -> None:
        """Take more; a RefusedError when there is not so much left."""
        budget = self._budget
        if budget.used + size > budget.total:
            raise RefusedError(
                "busy", f"requests under way hold {budget.used} bytes, at most {budget.total} are kept: send slower"
            )
        budget.used += size
        self.held += size
