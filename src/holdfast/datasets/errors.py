"""What goes wrong with data on disk."""

from holdfast.errors import HoldfastError


class DatasetError(HoldfastError, ValueError):
    """Files are missing, damaged, or not what the caller said they were; the message names them."""
