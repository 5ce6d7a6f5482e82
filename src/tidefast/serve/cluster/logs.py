"""The log of a cluster: how its actors write it, and how a front tells what Ray carries to it from their processes."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

from tidefast.serve.json_log import JsonLogFormatter, log_as_json
from tidefast.serve.settings import Settings

_CARRIED = re.compile(r"(?:\x1b\[\d+m)?\(([^()]*pid=[^()]*)\)(?:\x1b\[0m)? (.*)")


def log_as_actor(who: str, settings: Settings) -> None:
    """From now on the log of this process says who it is."""
    if settings.log == "json":
        log_as_json(logging.INFO, actor=who)
    else:
        logging.basicConfig(format=f"%(asctime)s %(levelname)s {who}: %(message)s", level=logging.INFO)


@contextlib.contextmanager
def carried_lines(settings: Settings) -> Iterator[None]:
    """Within it what Ray prints, of its own or from other processes, is JSON too where the log is."""
    if settings.log != "json":
        yield
        return
    with contextlib.redirect_stdout(CarriedLines(sys.stdout)), contextlib.redirect_stderr(CarriedLines(sys.stderr)):
        yield


class CarriedLines(io.TextIOBase):
    """A stream for lines of others: those that are JSON objects go on without what Ray puts before them, others in one.

    >>> print("(PartitionActor pid=7) {\\"message\\": \\"left\\"}", file=CarriedLines(sys.stdout))
    {"message": "left"}
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._begun, self._lock = stream, "", threading.Lock()

    def write(self, text: str, /) -> int:
        """Keep what is no whole line yet."""
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
            for line in filter(str.strip, lines):
                self._stream.write(f"{as_json(line)}\n")
        return len(text)

    def flush(self) -> None:
        """Whole lines only."""
        self._stream.flush()


def as_json(line: str) -> str:
    """A line as a JSON object, if it is none."""
    carried = _CARRIED.fullmatch(line)
    message = line if carried is None else carried[2]
    with contextlib.suppress(ValueError):
        if isinstance(json.loads(message), dict):
            return message
    record = logging.LogRecord("ray", logging.INFO, "", 0, message, None, None)
    if carried is not None:
        record.fields = {"process": carried[1]}
    return JsonLogFormatter().format(record)
