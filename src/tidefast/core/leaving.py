"""Code of others that calls sys.exit(): the process is not theirs to end, least of all in silence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def staying(what: str, error: type[Exception] = RuntimeError) -> Iterator[None]:
    """Within it, `sys.exit()` is an error like others, which names `what` called it.

    >>> import sys
    >>> with staying("the model"):
    ...     sys.exit(3)
    Traceback (most recent call last):
    ...
    RuntimeError: the model called sys.exit(3)
    """
    try:
        yield
    except SystemExit as left:
        if type(left) is not SystemExit:  # a signal's, which is to end the process
            raise
        raise error(f"{what} called sys.exit({'' if left.code is None else repr(left.code)})") from left
