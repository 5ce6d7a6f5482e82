"""What goes wrong while a stream is being made."""

from holdfast.errors import HoldfastError


class StreamError(HoldfastError, RuntimeError):
    """A stream could not deliver its next batch, although it was asked correctly."""
