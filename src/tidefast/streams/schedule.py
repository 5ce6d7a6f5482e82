"""Which domain is in force when: schedules, and how they are put together."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tidefast.core.constraints import Constrained, CountOrZero
from tidefast.core.validation import require_count
from tidefast.streams.domain import Domain


@dataclass(frozen=True)
class Stretch(Constrained):
    """So many images of one domain in a row; `visit` counts how often a repeated schedule came round before."""

    domain: Domain
    images: int
    visit: CountOrZero = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.domain, Domain):
            raise TypeError(f"a stretch needs a Domain, such as Domain(('fog', 3)), got {self.domain!r}")
        require_count("images of a stretch", self.images)


@dataclass(frozen=True)
class Schedule:
    """Stretches one after the other. Schedules are joined with `+` and visited again with `*`.

    >>> fog, snow = hold(Domain(("fog", 5)), images=100), hold(Domain(("snow", 5)), images=50)
    >>> twice = (fog + snow) * 2
    >>> [(str(s.domain), s.images, s.visit) for s in twice.stretches]
    [('fog 5', 100, 0), ('snow 5', 50, 0), ('fog 5', 100, 1), ('snow 5', 50, 1)]
    >>> twice.images, str(twice.at(149)), str(twice.at(150))
    (300, 'snow 5', 'fog 5')
    """

    stretches: tuple[Stretch, ...]
    ends: npt.NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stretches", tuple(self.stretches))
        if not self.stretches:
            raise ValueError("a schedule needs at least one stretch, got none; the clean one is hold(Domain(), images)")
        object.__setattr__(self, "ends", np.cumsum([stretch.images for stretch in self.stretches], dtype=np.int64))

    @property
    def images(self) -> int:
        """How many images the schedule lasts."""
        return int(self.ends[-1])

    def start(self, stretch: int) -> int:
        """The position in the stream of the first image of a stretch."""
        return int(self.ends[stretch]) - self.stretches[stretch].images

    def stretch_at(self, position: int) -> int:
        """The number of the stretch that holds the image at `position`."""
        if not 0 <= position < self.images:
            raise IndexError(f"position {position} is outside the schedule of {self.images} images")
        return int(np.searchsorted(self.ends, position, side="right"))

    def at(self, position: int) -> Domain:
        """The domain of the image at `position`."""
        return self.stretches[self.stretch_at(position)].domain

    def __add__(self, other: Schedule) -> Schedule:
        if not isinstance(other, Schedule):
            return NotImplemented
        return join((self, other))

    def __mul__(self, visits: int) -> Schedule:
        require_count("visits", visits)
        period = 1 + max(stretch.visit for stretch in self.stretches)
        return Schedule(
            tuple(
                dataclasses.replace(stretch, visit=stretch.visit + again * period)
                for again in range(visits)
                for stretch in self.stretches
            )
        )

    __rmul__ = __mul__

    def take(self, images: int) -> Schedule:
        """The first so many images of the schedule.

        >>> hold(Domain(), images=100).take(30).images
        30
        """
        require_count("images", images)
        last = self.stretch_at(images - 1)
        cut = dataclasses.replace(self.stretches[last], images=images - self.start(last))
        return Schedule((*self.stretches[:last], cut))

    def fill(self, images: int) -> Schedule:
        """The schedule visited again and again until there are so many images.

        >>> [(s.images, s.visit) for s in hold(Domain(), images=100).fill(230).stretches]
        [(100, 0), (100, 1), (30, 2)]
        """
        require_count("images", images)
        return (self * -(-images // self.images)).take(images)


def hold(domain: Domain, images: int) -> Schedule:
    """One domain for so many images.

    >>> hold(Domain(("fog", 3)), images=500).images
    500
    """
    return Schedule((Stretch(domain, images),))


def join(schedules: Iterable[Schedule]) -> Schedule:
    """Schedules one after the other.

    >>> join(hold(Domain(("fog", severity)), images=10) for severity in (1, 2, 3)).images
    30
    """
    return Schedule(tuple(itertools.chain.from_iterable(schedule.stretches for schedule in schedules)))
