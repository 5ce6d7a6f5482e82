"""CDC: continual dynamic change over the corruptions of IN-C recurring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tidefast.core.constraints import Count, Positive
from tidefast.streams.domain_order import DomainOrder, Runs, Segments
from tidefast.streams.images import Data
from tidefast.streams.named import registry
from tidefast.streams.protocols.in_c import ImageNetCSubset
from tidefast.streams.recurring import RecurringStream, recurring_stream
from tidefast.streams.settings import StreamSettings


@registry.register("cdc")
@dataclass(frozen=True)
class Cdc(ImageNetCSubset):
    """IN-C recurring with continual dynamic change: the batches of a visit come in segments of random length.

    `route` "dirichlet" cuts each domain into `slots` segments by Dirichlet(`delta`), "multinomial" draws runs of
    uniform length. Visit v draws from seed + v; every visit shows all batches of each domain.
    """

    delta: Positive = 1.0
    slots: Count = 3
    route: Literal["dirichlet", "multinomial"] = "dirichlet"

    def draws(self) -> DomainOrder:
        """The rule that orders the batches of a visit."""
        return Segments(self.delta, self.slots) if self.route == "dirichlet" else Runs()

    def stream(self, data: Data | None, settings: StreamSettings) -> RecurringStream:
        images, rendering = self.source(data)
        return recurring_stream(
            [(domain, images) for domain in self.domains()],
            settings,
            visits=self.visits,
            default_visits=self.default_visits,
            rendering=rendering,
            domain_order=self.draws(),
            name=self.name,
        )


@registry.register("cdc-mini")
@dataclass(frozen=True)
class CdcMini(Cdc):
    """IN-C recurring with continual dynamic change, with 500 of the bundled images.

    >>> from tidefast.streams import make
    >>> stream = make("cdc-mini", delta=10, visits=2)
    >>> stream
    RecurringStream('cdc-mini', 64 steps, 4 domains, 2 visits, seed 0)
    """

    images: Count | None = 500

    needs: ClassVar[str] = ""
