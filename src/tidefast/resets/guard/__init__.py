"""Guard: tidefast's own policy, and the look of a stream that it gives to its canaries."""

from tidefast.resets.guard.policy import Guard

__all__ = ["Guard"]
