"""The log for machines: every line a JSON object."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from typing import Any

from tidefast.serve.plain import finite

_ACCESS = ("client", "method", "path", "http", "status")


class JsonLogFormatter(logging.Formatter):
    """A record as one line: time (UTC), level, logger, message, then what belongs to its kind.

    Whoever logs gives more by `extra={"fields": {...}}`; lines of uvicorn's access log have theirs as well.
    always: fields of every line.

    >>> record = logging.LogRecord("tidefast.serve", logging.WARNING, "", 0, "alarm %s", ("input",), None)
    >>> record.created, record.fields = 0.25, {"alarm": "input", "value": float("nan")}
    >>> print(JsonLogFormatter().format(record))  # doctest: +NORMALIZE_WHITESPACE
    {"time": "1970-01-01T00:00:00.250Z", "level": "warning", "logger": "tidefast.serve", "message": "alarm input",
    "alarm": "input", "value": null}
    """

    def __init__(self, **always: Any) -> None:
        super().__init__()
        self._always = always

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{when}.{int(record.created % 1 * 1000):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.name == "uvicorn.access" and isinstance(record.args, tuple) and len(record.args) == len(_ACCESS):
            line |= dict(zip(_ACCESS, record.args, strict=True))
        line |= self._always | getattr(record, "fields", {})
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(finite(line), default=str)


def log_as_json(level: int, **always: Any) -> None:
    """From now on everything that this process tells its log is a JSON object, also warnings and what nobody caught."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLogFormatter(**always))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    log = logging.getLogger("tidefast")
    sys.excepthook = lambda kind, error, trace: log.critical("%s", error, exc_info=(kind, error, trace))

    def in_a_thread(given: threading.ExceptHookArgs) -> None:
        if given.exc_value is not None:
            log.critical("a thread ended: %s", given.exc_value, exc_info=given.exc_value)

    threading.excepthook = in_a_thread
