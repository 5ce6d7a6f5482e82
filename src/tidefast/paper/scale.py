"""Where a study takes place: the bundled benchmark at a small scale, or the published benchmarks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from tidefast.bench import Experiment
from tidefast.core.specification import Specification
from tidefast.paper import contestants

LEVELS = ("easy", "medium", "hard")


@dataclass(frozen=True)
class Place:
    """A stream, and how much of it."""

    stream: Specification
    seed: int = 0
    steps: int | None = None
    batch: int | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """As an experiment takes them."""
        return {"stream": self.stream, "seed": self.seed, "steps": self.steps, "batch": self.batch}


class Setting(ABC):
    """A scale at which every benchmark of the paper has a form."""

    name: ClassVar[str]
    seeds: ClassVar[tuple[int, ...]]
    """Of CCC streams, the one for studies of a single stream first."""
    speeds: ClassVar[tuple[int, ...]]
    """Images per step of a CCC path: the counterparts of 1000, 2000 and 5000."""
    orders: ClassVar[tuple[int, ...]]
    """Orders of the corruptions of CIN-C."""
    batch: ClassVar[int]
    """Images per batch, where a study does not vary them."""
    every: ClassVar[int]
    """RDumb's interval."""
    matched: ClassVar[int | None] = None
    """ASR's own mean interval, for RDumb that resets as often; None where it is not known."""
    network: str | None = None
    """Instead of the scale's own: a registered name with options, or module:function."""

    @abstractmethod
    def ccc(
        self, level: str, *, speed: int | str | None = None, seed: int | None = None, batch: int | None = None
    ) -> Place:
        """CCC; without `speed` and `seed` the stream for studies of a single one. `speed` may be "random"."""

    @abstractmethod
    def cin_c(self, order: int = 0, delta: float | None = None) -> Place:
        """CIN-C in one of its orders; with `delta`, labels ordered by a Dirichlet draw."""

    @abstractmethod
    def in_c(self) -> Place:
        """IN-C recurring."""

    @abstractmethod
    def cdc(self, delta: float) -> Place:
        """IN-C recurring with continual dynamic change."""

    @abstractmethod
    def d109(self) -> Place:
        """IN-D109 recurring."""

    @abstractmethod
    def cifar(self, classes: int, group: str) -> Place:
        """A group of CIFAR-C corruptions, cycled."""

    @abstractmethod
    def contestant(self, method: str, reset: str = "never", *, model: str = "resnet") -> dict[str, Any]:
        """A method and a reset policy by the names of `contestants`, as the fields of an experiment.

        `model` is "resnet" or "vit".
        """

    @abstractmethod
    def interval(self, published: int) -> int:
        """The counterpart of an interval of so many batches on a CCC stream."""

    @property
    def rdumbs(self) -> tuple[str, ...]:
        """What ASR is compared with: RDumb at its interval and, where that is known, at ASR's own."""
        return ("RDumb",) if self.matched is None else ("RDumb", contestants.MATCHED)

    def experiment(self, place: Place, method: str, reset: str = "never", **changes: Any) -> Experiment:
        """A contestant at a place; `changes` replace fields, and `model` picks a network ("resnet", "vit")."""
        fields = self.contestant(method, reset, model=changes.pop("model", "resnet"))
        if self.network is not None:
            fields["model"] = self.network
        few = place.batch is not None and place.batch < Experiment.window
        alone = {"gather": 1} if few else {}  # a step each, as published
        return Experiment(**{**place.fields, **fields, **alone, **changes})


@dataclass(frozen=True)
class MiniScale(Setting):
    """Everything with the bundled network and images: 1,000 batches of 16 of each CCC level, and the like.

    `data`: other images in place of the bundled ones, as streams take them; a `network` that knows their classes goes
    with them.

    The learning rate of the methods that ASR is placed on is ten times the published one for CIFAR, as in
    benchmarks/main.yaml: on streams this short nothing collapses otherwise. The other methods have their published one.
    """

    name = "mini"
    seeds = (43, 44, 45)
    speeds = (160, 320, 800)
    orders = (0, 1)
    batch = 16
    every = 200
    matched = 27  # ETA + ASR on the three CCC levels: 26, 27 and 29; ROID's is 26
    steps = 1000

    network: str | None = None
    data: str | None = None

    def experiment(self, place: Place, method: str, reset: str = "never", **changes: Any) -> Experiment:
        made = super().experiment(place, method, reset, **changes)
        if self.data is None:
            return made
        stream = Specification(made.stream.name, {**made.stream.options, "data": self.data}, made.stream.title)
        return replace(made, stream=stream)

    def ccc(
        self, level: str, *, speed: int | str | None = None, seed: int | None = None, batch: int | None = None
    ) -> Place:
        options: dict[str, Any] = {"level": level}
        if speed == "random":
            options["speed"] = list(self.speeds)
        elif speed not in (None, self.speeds[0]):
            options["speed"] = speed
        size = batch or self.batch
        steps = self.steps * self.batch // size if size > 4 else self.steps
        return Place(Specification("ccc-mini", options, level.title()), seed or self.seeds[0], steps, size)

    def cin_c(self, order: int = 0, delta: float | None = None) -> Place:
        options: dict[str, Any] = {"order_number": order, "images": 1024}
        if delta is None:
            return Place(Specification("cin-c-mini", options, f"CIN-C {order + 1}"), batch=self.batch)
        name = f"CIN-C {order + 1}, delta {delta:g}"
        return Place(Specification("cin-c-noniid-mini", {**options, "delta": delta}, name), batch=self.batch)

    def in_c(self) -> Place:
        return Place(Specification("in-c-recurring-mini", {"images": 256}, "IN-C"), batch=self.batch)

    def cdc(self, delta: float) -> Place:
        return Place(
            Specification("cdc-mini", {"images": 256, "delta": delta}, f"CDC, delta {delta:g}"), batch=self.batch
        )

    def d109(self) -> Place:
        return Place(Specification("in-d109-recurring-mini", {"visits": 5}, "IN-D109"), batch=64)

    def cifar(self, classes: int, group: str) -> Place:
        options = {"group": group, "images": 256, "visits": 10}
        return Place(Specification(f"cifar{classes}-c-mini", options, group.title()), batch=self.batch)

    def contestant(self, method: str, reset: str = "never", *, model: str = "resnet") -> dict[str, Any]:
        return contestants.mini(method, contestants.policy(reset, self), model)

    def interval(self, published: int) -> int:
        return max(2, round(published * self.steps / 117_188))


@dataclass(frozen=True)
class FullScale(Setting):
    """The published benchmarks with the published networks and settings.

    `folders`: options of streams and networks by the name of a benchmark, such as {"ccc": {"data": "val"}}; see
    `tidefast list streams --long` for what each needs.
    """

    name = "full"
    seeds = (45, 43, 44)
    speeds = (1000, 2000, 5000)
    orders = tuple(range(10))
    batch = 64
    every = 1000

    folders: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    network: str | None = None

    def ccc(
        self, level: str, *, speed: int | str | None = None, seed: int | None = None, batch: int | None = None
    ) -> Place:
        options = {**self.folders.get("ccc", {}), "level": level, "speed": speed or 2000}
        name = "ccc-shards" if "path" in options else "ccc"
        return Place(Specification(name, options, level.title()), seed or self.seeds[0], None, batch)

    def cin_c(self, order: int = 0, delta: float | None = None) -> Place:
        options: dict[str, Any] = {**self.folders.get("in-c", {}), "order_number": order}
        if delta is None:
            return Place(Specification("cin-c", options, f"CIN-C {order + 1}"), 1)
        return Place(
            Specification("cin-c-noniid", {**options, "delta": delta}, f"CIN-C {order + 1}, delta {delta:g}"), 1
        )

    def in_c(self) -> Place:
        return Place(Specification("in-c-recurring", dict(self.folders.get("in-c", {})), "IN-C"), 1)

    def cdc(self, delta: float) -> Place:
        return Place(Specification("cdc", {**self.folders.get("in-c", {}), "delta": delta}, f"CDC, delta {delta:g}"), 1)

    def d109(self) -> Place:
        return Place(Specification("in-d109-recurring", dict(self.folders.get("in-d109", {})), "IN-D109"), 1)

    def cifar(self, classes: int, group: str) -> Place:
        name = f"cifar{classes}-c"
        return Place(Specification(name, {**self.folders.get(name, {}), "group": group}, group.title()), 1)

    def contestant(self, method: str, reset: str = "never", *, model: str = "resnet") -> dict[str, Any]:
        return contestants.full(method, contestants.policy(reset, self), model, self.folders)

    def experiment(self, place: Place, method: str, reset: str = "never", **changes: Any) -> Experiment:
        made = super().experiment(place, method, reset, **changes)
        if place.stream.name != "in-d109-recurring":
            return made
        network = Specification(made.model.name, {**made.model.options, "classes": "d109"}, made.model.title)
        return replace(made, model=network)

    def interval(self, published: int) -> int:
        return published
