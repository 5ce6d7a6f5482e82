"""The errors that are tidefast's own; plain bad arguments raise ValueError or TypeError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

FORMER_NAME = "holdfast"
"""What the project was called, and what its files of that time say they are of."""


def of_former_name(what: object) -> str:
    """What is said of a file or a folder of the time before the project's name."""
    return f"{what} was written by {FORMER_NAME}, as tidefast was called before, and is not read: start anew elsewhere"


def how_to_install(extra: str) -> str:
    """How to get what an extra of this project brings; from a clone, while there is no release."""
    return f"pip install '.[{extra}]' in a clone of tidefast"


class TidefastError(Exception):
    """Base of every error that only tidefast raises."""


class UnknownNameError(TidefastError, ValueError):
    """A registry was asked for a name that nobody registered."""


class SpecificationError(TidefastError, ValueError, TypeError):
    """A name with options that nothing can be made of; also a TypeError, as a wrong argument is in Python."""


class SnapshotError(TidefastError, ValueError):
    """A saved file is damaged, or belongs to something else; nothing was changed by reading it."""


class LostStreamError(SnapshotError):
    """The files of idle streams are damaged or gone; `names` are the streams."""

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


class UnreadableStreamError(TidefastError):
    """An idle stream cannot be read just now; it is as it was, and may be readable later."""


class StreamsError(TidefastError):
    """Some streams of a joint call failed, and what each of the others did stays done.

    errors: by stream, what went wrong. answers: by stream, the logits of the others.
    """

    def __init__(self, errors: Mapping[str, Exception], answers: Mapping[str, Tensor]) -> None:
        first, error = next(iter(errors.items()))
        others = f" (and {len(errors) - 1} others: see errors)" if len(errors) > 1 else ""
        super().__init__(f"stream {first!r}: {error}{others}; what {len(answers)} others answered is in answers")
        self.errors, self.answers = dict(errors), dict(answers)


class NonFiniteError(TidefastError, ArithmeticError):
    """Too many non-finite batches in a row, and the adapter was told to raise."""


class FolderError(TidefastError, ValueError):
    """A folder of results belongs to something else, or another process is writing to it."""


class DamagedRunError(FolderError):
    """The files of a run are not what was written: nothing is read from them."""


class MissingFilesError(TidefastError, FileNotFoundError):
    """Files that come with the package were left out of this installation."""
