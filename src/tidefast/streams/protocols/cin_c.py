"""CIN-C: the fifteen corruptions of ImageNet-C one after the other, in one of ten orders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidefast.core.constraints import CountOrZero, NonNegative
from tidefast.streams.named import registry
from tidefast.streams.order import ByLabel, Dirichlet, Order
from tidefast.streams.protocols.files import IMAGENET_C_LAYOUT, ImageNetC

_NAMES = {
    "gauss": "gaussian_noise",
    "shot": "shot_noise",
    "impulse": "impulse_noise",
    "defocus": "defocus_blur",
    "glass": "glass_blur",
    "motion": "motion_blur",
    "zoom": "zoom_blur",
    "snow": "snow",
    "frost": "frost",
    "fog": "fog",
    "bright": "brightness",
    "contr": "contrast",
    "elast": "elastic_transform",
    "pixel": "pixelate",
    "jpeg": "jpeg_compression",
}
_PUBLISHED = """
bright pixel gauss motion zoom glass impulse jpeg defocus elast shot frost snow fog contr
jpeg shot zoom frost contr fog defocus elast gauss bright glass impulse pixel snow motion
contr defocus gauss shot snow frost glass zoom elast jpeg pixel bright impulse motion fog
shot fog glass pixel snow elast bright impulse defocus frost contr gauss motion jpeg zoom
pixel glass zoom snow fog impulse bright motion frost jpeg gauss shot contr defocus elast
motion snow fog shot defocus contr zoom bright frost elast glass gauss pixel jpeg impulse
frost impulse jpeg contr zoom glass pixel snow defocus motion bright elast shot fog gauss
glass zoom impulse fog snow jpeg gauss frost shot bright contr motion pixel defocus elast
defocus motion zoom shot gauss glass jpeg fog contr pixel frost snow bright elast impulse
contr gauss defocus zoom frost glass jpeg fog pixel elast shot impulse snow motion bright
"""
ORDERS = tuple(tuple(_NAMES[short] for short in line.split()) for line in _PUBLISHED.strip().splitlines())
"""The ten published orders, numbered from 0."""


@registry.register("cin-c")
@dataclass(frozen=True)
class CinC(ImageNetC):
    """CIN-C: 15 corruptions at severity 5, one after the other, with all images and the same order of them in each.

    `order_number` 0 to 9 picks a published order of the corruptions; `corruptions` is another one.
    """

    corruptions: tuple[str, ...] = ()
    order_number: CountOrZero = 0

    default_visits: ClassVar[int] = 1
    needs: ClassVar[str] = IMAGENET_C_LAYOUT

    def __post_init__(self) -> None:
        if self.order_number >= len(ORDERS):
            raise ValueError(f"order_number must be 0 to {len(ORDERS) - 1}, got {self.order_number}")
        super().__post_init__()

    def chosen(self) -> tuple[str, ...]:
        return tuple(self.corruptions) or ORDERS[self.order_number]


@registry.register("cin-c-mini")
@dataclass(frozen=True)
class CinCMini(CinC):
    """CIN-C on the bundled images, corrupted on the way.

    >>> from tidefast.streams import make
    >>> stream = make("cin-c-mini", order_number=5, images=64)
    >>> [str(batch.domain) for batch in stream.batches(stop=4)]
    ['motion_blur 5', 'snow 5', 'fog 5', 'shot_noise 5']
    """

    needs: ClassVar[str] = ""


@registry.register("cin-c-noniid")
@dataclass(frozen=True)
class CinCNonIid(CinC):
    """CIN-C with labels in an order drawn by `Dirichlet(delta)`, the same one under every corruption.

    A `delta` of 0 sorts by label. On ImageNet 0.1 is nearly iid, on ten classes nearly sorted.
    """

    delta: NonNegative = 0.1

    def label_order(self) -> Order:
        return Dirichlet(self.delta) if self.delta else ByLabel()


@registry.register("cin-c-noniid-mini")
@dataclass(frozen=True)
class CinCNonIidMini(CinCNonIid):
    """CIN-C with labels in an order drawn by `Dirichlet(delta)`, on the bundled images.

    >>> from tidefast.streams import make
    >>> stream = make("cin-c-noniid-mini", delta=0.1)
    >>> len(set(stream[3].labels.tolist())) < 6
    True
    """

    needs: ClassVar[str] = ""
