"""The files of a thousand classes (network, photos, accuracies), in one folder that may be left out."""

from __future__ import annotations

from importlib import resources

from tidefast.errors import MissingFilesError

FOLDER = "bundled_1k"


def available() -> bool:
    """Whether this installation has the folder."""
    return resources.files("tidefast").joinpath(FOLDER).is_dir()


def bundled_1k(file: str) -> bytes:
    """The content of a file in that folder; an installation without the folder is told how to get it back."""
    try:
        return resources.files("tidefast").joinpath(FOLDER, file).read_bytes()
    except FileNotFoundError:
        raise MissingFilesError(
            f"this installation of tidefast has no folder tidefast/{FOLDER}, which holds bundled-lite0 and its photos: "
            "install it again with that folder, or use bundled-resnet and the bundled images of CIFAR-10"
        ) from None
