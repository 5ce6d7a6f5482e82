"""Which corruptions exist, what they are also called, and in which benchmark they occur."""

from __future__ import annotations

import difflib

from tidefast.errors import UnknownNameError

IMAGENET_C = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")

# CCC writes two names short and never chooses brightness.
_CCC_SPELLING = {"elastic_transform": "elastic", "jpeg_compression": "jpeg"}
CCC = tuple(_CCC_SPELLING.get(name, name) for name in IMAGENET_C if name != "brightness")

_GROUPS = {"all": IMAGENET_C + EXTRA, "imagenet-c": IMAGENET_C, "extra": EXTRA, "ccc": CCC}
_ALIASES = {short: name for name, short in _CCC_SPELLING.items()}


def names(group: str = "all") -> tuple[str, ...]:
    """The names `corrupt` accepts: "all", "imagenet-c" (15), "extra" (4) or "ccc" (14, as CCC spells them).

    >>> names("extra")
    ('speckle_noise', 'gaussian_blur', 'spatter', 'saturate')
    """
    if group not in _GROUPS:
        raise UnknownNameError(f"unknown group of corruptions {group!r}; known: {', '.join(_GROUPS)}")
    return _GROUPS[group]


def canonical(name: str) -> str:
    """ImageNet-C's own name for any accepted spelling.

    >>> canonical("jpeg"), canonical("Motion Blur"), canonical("zoom-blur")
    ('jpeg_compression', 'motion_blur', 'zoom_blur')
    """
    if not isinstance(name, str):
        raise TypeError(f"the corruption's name must be a string such as 'fog', got {name!r}")
    key = name.strip().lower().replace(" ", "_").replace("-", "_")
    key = _ALIASES.get(key, key)
    known = _GROUPS["all"]
    if key not in known:
        near = difflib.get_close_matches(key, [*known, *_ALIASES], n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UnknownNameError(f"unknown corruption {name!r}; {hint}known: {', '.join(known)}")
    return key
