"""What is done to the images for a while: a domain of the stream."""

from __future__ import annotations

from dataclasses import dataclass

from tidefast.corruptions.names import canonical
from tidefast.corruptions.severity import require_severity

Corruption = tuple[str, float]


@dataclass(frozen=True, init=False)
class Domain:
    """Corruptions with their severities in [0, 5], applied in order; none at all is the clean domain.

    A corruption at severity 0 changes nothing and is not printed, but stays part of the domain, so that a cell of a
    CCC path keeps both of its names. Any spelling that `corrupt` takes is accepted; ImageNet-C's own is kept.
    `label` names a domain that no corruption makes, such as that of other images.

    >>> str(Domain(("gaussian_noise", 5), ("jpeg", 2.25)))
    'gaussian_noise 5 + jpeg_compression 2.25'
    >>> str(Domain(("fog", 3), ("snow", 0))), str(Domain())
    ('fog 3', 'clean')
    >>> str(Domain(label="clipart"))
    'clipart'
    """

    corruptions: tuple[Corruption, ...]
    label: str

    def __init__(self, *corruptions: Corruption, label: str = "") -> None:
        for given in corruptions:
            if not isinstance(given, tuple) or len(given) != 2:
                raise TypeError(f"a domain is made of (corruption, severity) pairs such as ('fog', 3), got {given!r}")
            require_severity(given[1])
        kept = tuple((canonical(name), float(severity)) for name, severity in corruptions)
        if len({name for name, _ in kept}) < len(kept):
            # Both would draw the same noise for an image: it is keyed by the corruption's name.
            raise ValueError(f"a domain holds each corruption once, got {', '.join(name for name, _ in kept)}")
        object.__setattr__(self, "corruptions", kept)
        object.__setattr__(self, "label", label)

    @property
    def active(self) -> tuple[Corruption, ...]:
        """The corruptions that change anything."""
        return tuple((name, severity) for name, severity in self.corruptions if severity > 0)

    def __str__(self) -> str:
        return self.label or " + ".join(f"{name} {severity:g}" for name, severity in self.active) or "clean"

    def __repr__(self) -> str:
        label = [f"label={self.label!r}"] if self.label else []
        return f"Domain({', '.join([*map(repr, self.corruptions), *label])})"
