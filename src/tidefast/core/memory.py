"""Memory that a process keeps: a step asks for the same blocks as the one before it."""

from __future__ import annotations

import ctypes
import logging
import os

_log = logging.getLogger("tidefast")

# Parameters of mallopt, by their numbers in glibc's malloc.h.
_SETTINGS = {
    -4: 0,  # M_MMAP_MAX: no block comes straight from the kernel, to be handed back and zeroed anew at every step
    -1: -1,  # M_TRIM_THRESHOLD: what is free at the end of the heap stays
    -2: 64 * 2**20,  # M_TOP_PAD: the heap grows in large pieces, whose pages count only once they are touched
    -8: 1,  # M_ARENA_MAX: one heap for all threads, as those of others end at 64 MB, less than a large activation
}


def keep_memory() -> bool:
    """Tell this process's allocator to keep freed memory for the next step; whether it will.

    By default glibc hands large blocks back to the kernel as soon as they are free, and a step on an ImageNet-sized
    network then spends up to half its time on page faults. Afterwards the process holds on to the most memory that it
    ever used. It is for the whole process and cannot be undone, so the library never does it by itself; the commands
    do. Call it early, before other threads allocate.

    It does nothing, logs why and returns False where malloc is not glibc's (musl, macOS, Windows, jemalloc or the like
    preloaded), and where the environment has set glibc's allocator already (`MALLOC_...`, `GLIBC_TUNABLES`).

    >>> import tidefast
    >>> tidefast.keep_memory() in (True, False)
    True
    """
    obstacle = _obstacle()
    if obstacle is None:
        mallopt = ctypes.CDLL(None).mallopt
        if all(mallopt(parameter, value) for parameter, value in _SETTINGS.items()):
            return True
        obstacle = "mallopt refused"
    _log.info("memory is not kept between steps: %s", obstacle)
    return False


def _obstacle() -> str | None:
    """Why there is nothing to tell the allocator of this process, if so."""
    named = [name for name in os.environ if name.startswith("MALLOC_")]
    named += ["GLIBC_TUNABLES"] if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") else []
    if named:
        return f"the environment sets the allocator ({', '.join(named)})"
    try:
        glibc = ctypes.CDLL("libc.so.6")
        if hasattr(glibc, "mallopt") and _address(glibc) == _address(ctypes.CDLL(None)):
            return None
    except OSError:  # macOS, Windows
        pass
    return "malloc is not glibc's"


def _address(library: ctypes.CDLL) -> int | None:
    return ctypes.cast(library.malloc, ctypes.c_void_p).value
