"""The errors that are holdfast's own; plain bad arguments raise ValueError or TypeError."""


class HoldfastError(Exception):
    """Base of every error that only holdfast raises."""


class UnknownNameError(HoldfastError, ValueError):
    """A registry was asked for a name that nobody registered."""


class SnapshotError(HoldfastError, ValueError):
    """A saved file is damaged, or belongs to something else; nothing was changed by reading it."""


class NonFiniteError(HoldfastError, ArithmeticError):
    """Too many non-finite batches in a row, and the adapter was told to raise."""


class FolderError(HoldfastError, ValueError):
    """A folder of results belongs to something else, or another process is writing to it."""
