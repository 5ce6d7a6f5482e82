"""What goes wrong with data on disk."""

from tidefast.errors import TidefastError


class DatasetError(TidefastError, ValueError):
    """Files are missing, damaged, or not what the caller said they were; the message names them."""
