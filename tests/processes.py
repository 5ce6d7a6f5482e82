"""Starting processes that a test interrupts."""

from __future__ import annotations

import signal


def hear_ctrl_c() -> None:
    """As `preexec_fn`: what a shell started in the background ignores Ctrl-C, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
