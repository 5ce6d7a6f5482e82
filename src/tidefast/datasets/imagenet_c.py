"""ImageNet-C as it is published: a file for every image, corruption and severity."""

from __future__ import annotations

import os
from pathlib import Path

from tidefast.core.validation import require_count
from tidefast.datasets.errors import DatasetError
from tidefast.datasets.folder import ImageFolder, folder

_SUBFOLDERS = (".", "ImageNet-C")
_SIDE = 224


def imagenet_c(
    root: str | os.PathLike[str], corruptions: tuple[str, ...], severity: int = 5, *, classes: int | None = 1000
) -> dict[str, ImageFolder]:
    """The images of each corruption at one severity, `root/<corruption>/<severity>/<class>/<file>`.

    `root` is the folder of the corruptions or the one around it. Only the folder of the first corruption is listed:
    all of them hold the same names. `classes` is how many class folders there must be, since labels are their
    positions; None accepts any number.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for name in ("fog", "snow"):
    ...         Path(root, name, "5", "n01").mkdir(parents=True)
    ...         Image.new("RGB", (224, 224)).save(Path(root, name, "5", "n01", "1.JPEG"))
    ...     stored = imagenet_c(root, ("snow", "fog"), classes=1)
    >>> {name: len(images) for name, images in stored.items()}
    {'snow': 1, 'fog': 1}
    """
    require_count("severity", severity)
    base = _base(Path(root), corruptions[0])
    parts = {name: base / name / str(severity) for name in corruptions}
    missing = [str(part) for part in parts.values() if not part.is_dir()]
    if missing:
        raise DatasetError(
            f"{len(missing)} of {len(parts)} folders of ImageNet-C are missing, the first {missing[0]}: unpack all of "
            f"its archives into {base}"
        )
    first = folder(parts[corruptions[0]], resize=None, crop=_SIDE, verify=False)
    if classes is not None and len(first.classes) != classes:
        raise DatasetError(
            f"{first.root} holds {len(first.classes)} class folders, expected {classes}: labels are positions among "
            "all classes; give the whole data set, or classes= for one of your own"
        )
    return {name: first.at(part) for name, part in parts.items()}


def _base(root: Path, corruption: str) -> Path:
    for subfolder in _SUBFOLDERS:
        if (root / subfolder / corruption).is_dir():
            return root / subfolder
    raise DatasetError(
        f"no ImageNet-C in {root}: looked for a folder {corruption} there and in {root / _SUBFOLDERS[1]}; "
        + ("the folder does not exist" if not root.is_dir() else f"found {_content(root)}")
    )


def _content(root: Path) -> str:
    return ", ".join(sorted(path.name for path in root.iterdir())[:8]) or "nothing"
