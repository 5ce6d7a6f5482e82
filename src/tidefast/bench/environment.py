"""What a run ran on."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

import tidefast

_LIBRARIES = ("numpy", "numba", "opencv-python-headless", "pillow", "scipy", "pyarrow", "loky", "ray")


def describe() -> dict[str, Any]:
    """Versions, the machine, the time.

    >>> describe()["tidefast"] == tidefast.__version__
    True
    """
    return {
        "tidefast": tidefast.__version__,
        "torch": torch.__version__,
        **{name: installed for name in _LIBRARIES if (installed := _version(name)) is not None},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
