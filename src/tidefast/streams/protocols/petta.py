"""PeTTA's recurring protocol: all corruptions of ImageNet-C in turn, with labels that are not iid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidefast.core.constraints import Count, Positive
from tidefast.streams.named import registry
from tidefast.streams.order import Order, SlotDirichlet
from tidefast.streams.passes import Renewal
from tidefast.streams.protocols.cin_c import ORDERS
from tidefast.streams.protocols.in_c import ImageNetCSubset, SubsetName


@registry.register("petta-recurring")
@dataclass(frozen=True)
class PettaRecurring(ImageNetCSubset):
    """PeTTA's recurring stream: 15 corruptions in turn, 20 visits, labels by `SlotDirichlet(gamma)` drawn each time."""

    corruptions: tuple[str, ...] = ORDERS[5]
    subset: SubsetName = "robustbench"
    gamma: Positive = 0.1

    renewal: ClassVar[Renewal] = "stretch"

    def label_order(self) -> Order:
        return SlotDirichlet(self.gamma)


@registry.register("petta-recurring-mini")
@dataclass(frozen=True)
class PettaRecurringMini(PettaRecurring):
    """PeTTA's recurring stream with 500 of the bundled images.

    >>> from tidefast.streams import make
    >>> stream = make("petta-recurring-mini", visits=2)
    >>> len(stream), str(stream[0].domain), stream[0].labels.tolist() == stream[120].labels.tolist()
    (240, 'motion_blur 5', False)
    """

    images: Count | None = 500

    needs: ClassVar[str] = ""
