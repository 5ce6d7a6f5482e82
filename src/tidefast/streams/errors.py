"""What goes wrong while a stream is being made."""

from tidefast.errors import TidefastError


class StreamError(TidefastError, RuntimeError):
    """A stream could not deliver its next batch, although it was asked correctly."""
