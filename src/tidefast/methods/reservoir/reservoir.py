"""ReservoirTTA: a reservoir of adapted models, one for each style of images, around a base method."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor, nn

from tidefast.core import losses, optim
from tidefast.core.constraints import Count, NonNegative, Share
from tidefast.core.network import Network
from tidefast.core.normalization import Statistics
from tidefast.core.source import SourceData
from tidefast.core.specification import Given
from tidefast.core.state import Field, State, Value
from tidefast.core.step import Forward, Objective, Step
from tidefast.core.validation import require_count
from tidefast.methods.about import About, Paper
from tidefast.methods.base import Method, registry
from tidefast.methods.reservoir.clusters import Clusters
from tidefast.methods.reservoir.style import ChannelMoments, Extractor, ExtractorName, extractor, measure
from tidefast.methods.source import Source
from tidefast.resets.base import Reset, Verdict

_EXTRACTOR = "_style_extractor"


@registry.register("reservoir")
@dataclass(frozen=True)
class Reservoir(Method):
    """Up to `models` sets of adapted parameters; the style of a batch says which of them adapts.

    Styles are clustered online; a style far from all centroids opens an entry, a copy of the one whose predictions on
    the batch have the most mutual information. The answer is that of sum_k w_k theta_k, with w the softmax of the
    negative distances to the centroids; the entry nearest to the batch takes one step of the base method.

    The adapted parameters are those of the latest entry, which is all that a reset policy touches; the others wait in
    the state, each with its moments of the optimiser and its own state of the base method.
    """

    about: ClassVar[About] = About(
        title="Reservoir",
        family="Domains",
        adapts="as the base method, up to 16 times",
        equation=r"""
        \hat\theta = \sum_k w_k\,\theta_k, \qquad w = \mathrm{softmax}_k\left(-\lVert v - c_k \rVert\right), \qquad
        \theta_{k^*} \leftarrow \text{one step of the base method}, \quad k^* = \arg\max_k w_k
        """,
        paper=Paper(
            "Vray and others",
            "ReservoirTTA: Prolonged Test-time Adaptation for Evolving and Recurring Domains",
            "NeurIPS 2025",
            code="LTS5/ReservoirTTA",
        ),
        cost="and a few layers, for the style",
    )
    quick: ClassVar[Mapping[str, Any]] = {"models": 3, "quantile": 0.0, "source_styles": 50}
    busiest: ClassVar[Mapping[str, Any]] = {"base": {"name": "eta", "entropy_margin": 1.1, "similarity_margin": 2.0}}

    prepared_with: ClassVar[tuple[str, ...]] = (
        *("quantile", "batch_size", "source_images", "source_styles"),
        *("style_name", "base_settings"),
    )

    base: Method | Given = "eta"
    """A method, its name, or a mapping with its name and hyperparameters."""
    models: Count = 16
    """At most; K_max."""
    buffer: Count = 1024
    """Styles that are remembered for clustering when all entries are open; S."""
    quantile: Share = 0.999
    """Of the distances between source batches: a style that is further from all centroids opens an entry."""
    rate: NonNegative = 1e-4
    """At which centroids learn."""
    style: ExtractorName | Extractor = "model"
    """Whose feature maps give the style: "model", the source model's first three convolutions; "vgg19", as published;
    or a callable from images to a list of feature maps."""
    batch_size: Count = 64
    """Of the stream, for which the distances between source batches are measured."""
    source_images: Annotated[int, Ge(2)] = 2000
    """Source images that random batches are drawn from."""
    source_styles: Annotated[int, Ge(2)] = 1000
    """Source batches whose distances are measured."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "base", _made(self.base))
        require_count("buffer", self.buffer, low=self.models)

    @classmethod
    def for_cifar(cls, base: Method | Given = "eta", **changes: Any) -> Reservoir:
        """The published settings for CIFAR-10 and CIFAR-100: batches of 200."""
        return cls(base, **{"batch_size": 200, **changes})

    @property
    def method(self) -> Method:
        """The base method."""
        assert isinstance(self.base, Method)
        return self.base

    @property
    def style_name(self) -> str:
        """What the style is taken from, in words."""
        if isinstance(self.style, str):
            return self.style
        named = self.style if hasattr(self.style, "__qualname__") else type(self.style)
        return f"{named.__module__}.{named.__qualname__}"

    @property
    def base_settings(self) -> dict[str, Any]:
        """The base method's name, and the hyperparameters that its preparation depends on."""
        settings = {name: getattr(self.method, name) for name in self.method.prepared_with}
        return {"name": self.method.name, **{k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}}

    @property
    def needs_source(self) -> str:
        own, needed = "source images, unlabelled", self.method.needs_source
        return own if needed is None else f"{own} (and {type(self.method).__name__}, {needed})"

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        names = self.method.configure(model, statistics)
        device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
        model.__dict__[_EXTRACTOR] = extractor(self.style, device)  # no submodule: its weights are not the model's
        return names

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return self.method.optimizer(parameters)

    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        """The mean style of source batches, how far apart they are, and what the base method prepares."""
        extract, parts, missing = _extractor_of(network), [], self.source_images
        for images in source:
            parts.append(measure(network, images[:missing], extract))
            missing -= len(parts[-1])
            if missing <= 0:
                break
        styles = ChannelMoments.joined(parts).styles_of_batches(self.batch_size, self.source_styles)
        distances = torch.pdist(styles)
        apart = distances[distances > 0]
        threshold = torch.quantile(apart, self.quantile) if len(apart) else distances.new_zeros(())
        own = {"source_style": styles.mean(0), "style_threshold": threshold}
        prepared = self.method.prepare(network, source) if self.method.needs_source is not None else {}
        return {**{name: value.to(network.arena.values) for name, value in own.items()}, **prepared}

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        base, entries = self.method.fields(network, num_classes), (self.models, len(network.arena))
        return [
            *base,
            *_shelves(base, self.models),
            *self._clusters(network).fields(),
            # The parameters of all entries, but for the one at `current`, whose own are in the arena.
            Field("entries", lambda: network.arena.values.new_zeros(entries), "stream"),
            Field("current", lambda: 0, "stream"),
            Field("moments", lambda: None, "stream", shape=(self.models, ...)),
            Field("moment_shapes", lambda: "", "stream"),
            Field("largest_batch", lambda: 0, "stream"),
        ]

    def start(self, constants: Mapping[str, Tensor]) -> Tensor | None:
        return self.method.start(constants)

    def _clusters(self, network: Network) -> Clusters:
        return Clusters(network.constants["source_style"], self.models, self.buffer, self.rate)

    # -- answering --------------------------------------------------------------------------------------------

    def forward(self, network: Network, images: Tensor, state: State) -> Forward:
        route = self._route(network, images, state)
        if route.weights is None:
            return Forward(network(images), for_loss=route)
        with torch.no_grad(), network.arena.holding(_average(network, state, route)):
            return Forward(network(images), for_loss=route)

    @torch.no_grad()
    def _route(self, network: Network, images: Tensor, state: State) -> _Route:
        """Where a batch belongs; changes nothing."""
        current, opened = int(state.number("current")), int(state.number("opened"))
        seen = measure(network, images, _extractor_of(network)).style().to(network.arena.values)
        if not bool(torch.isfinite(seen).all()):
            return _Route(None, current)
        distances = self._clusters(network).distances(state, seen)
        parent = None
        full = len(images) >= state.number("largest_batch")
        if full and opened < self.models and bool(distances.min() > network.constants["style_threshold"]):
            parent = _most_informed(network, images, state)
            distances = torch.cat([distances, distances.new_zeros(1)])
        weights = (-distances).softmax(0) if len(distances) > 1 else None
        return _Route(seen, int(distances.argmin()), weights, parent)

    def output(self, logits: Tensor) -> Tensor:
        return self.method.output(logits)

    # -- adapting ---------------------------------------------------------------------------------------------

    def gradient(self, step: Step, state: State) -> Objective:
        network, arena, optimizer = step.network, step.network.arena, step.optimizer
        assert optimizer is not None
        route = step.from_forward(_Route)
        updates: dict[str, Value] = {"current": route.index}
        if route.style is not None:
            opens = route.parent is not None
            updates |= self._clusters(network).learn(state, route.style, step.generator, opens=opens)
            updates["largest_batch"] = max(len(step.images), int(state.number("largest_batch")))
        seen, sound, moves = state, False, route.index != state.number("current")
        before = arena.values.clone(), optim.flatten(optimizer)
        try:
            if moves:
                base = self.method.fields(network, step.num_classes)
                updates |= self._exchange(network, optimizer, base, state, route)
                seen = State(base)
                seen.update({name: updates[name] for name in seen})
            objective = self.method.gradient(self._live(step, route), seen)
            sound = _sound(objective, arena.gradients)
        finally:
            if moves and not sound:
                arena.assign(before[0])
                optim.restore(optimizer, *before[1])
        return dataclasses.replace(objective, updates={**updates, **objective.updates}, answer=None)

    def _live(self, step: Step, route: _Route) -> Step:
        """The step as the base method sees it: with the logits of the live entry, attached to the graph."""
        if route.weights is None:
            return dataclasses.replace(step, for_loss=None)
        with step.network.taking(step.images):
            return dataclasses.replace(step, logits=step.network(step.images), for_loss=None)

    def _exchange(
        self, network: Network, optimizer: torch.optim.Optimizer, base: Sequence[Field], state: State, route: _Route
    ) -> dict[str, Value]:
        """Put the live entry away and another one in its place; a new one begins as a copy of its parent."""
        arena, old = network.arena, int(state.number("current"))
        origin = route.index if route.parent is None else route.parent
        entries = state.tensor("entries").clone()
        entries[old] = arena.values
        arena.assign(entries[origin])
        updates: dict[str, Value] = {"entries": entries, **_swap(base, state, old, route.index, origin)}
        packed, shapes = _packed(optimizer, entries)
        shapes = shapes or str(state["moment_shapes"])
        if shapes:  # else no entry has stepped yet
            stored = state.optional_tensor("moments")
            moments = entries.new_zeros((self.models, _length(shapes))) if stored is None else stored.clone()
            moments[old] = 0.0 if packed is None else packed
            optim.restore(optimizer, _unpacked(moments[origin], shapes), {})
            updates |= {"moments": moments, "moment_shapes": shapes}
        return updates

    def after_step(self, step: Step, state: State) -> None:
        self.method.after_step(step, state)

    def own_reset(self) -> Reset | None:
        own = self.method.own_reset()
        return None if own is None else _OfEntry(own, self.models)

    def passes(self, selected: float) -> tuple[float, float]:
        forwards, backwards = self.method.passes(selected)
        return forwards + 1.0, backwards


@dataclass(frozen=True)
class _Route:
    """Where a batch belongs."""

    style: Tensor | None
    """[channels]; None where it cannot be told, and then the live entry takes the batch."""
    index: int
    """The entry that adapts."""
    weights: Tensor | None = None
    """Of each entry in the answer, the new one last; None: the live entry alone."""
    parent: int | None = None
    """The entry that a new one starts from; None where none opens."""


def _extractor_of(network: Network) -> Extractor | None:
    """What takes the style of images; goes with a private model from `configure` on."""
    extractor: Extractor | None = network.module.__dict__[_EXTRACTOR]
    return extractor


@dataclass(frozen=True)
class _OfEntry(Reset):
    """The base method's own reset rule, with state of its own for each entry."""

    rule: Reset
    models: int

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "measures", self.rule.measures)  # of the object: rules differ in what they measure

    def configure(self, model: nn.Module) -> None:
        self.rule.configure(model)

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        own = self.rule.fields(network, num_classes)
        return [*own, *_shelves(own, self.models), Field("current", lambda: 0, "stream")]

    def watching(self, network: Network) -> contextlib.AbstractContextManager[Any]:
        return self.rule.watching(network)

    def begin(self, step: Step, state: State, watched: Any) -> None:
        self.rule.begin(step, state, watched)

    def adjust_gradient(self, step: Step, state: State) -> None:
        assert step.objective is not None
        old, new = int(state.number("current")), step.objective.updates["current"]
        if old != new:
            assert isinstance(new, int)
            own = self.rule.fields(step.network, step.num_classes)
            state.update({**_swap(own, state, old, new, new), "current": new})
        self.rule.adjust_gradient(step, state)

    def observe(self, step: Step, state: State) -> Verdict:
        return self.rule.observe(step, state)


def _made(base: Method | Given) -> Method:
    """The base method, from whatever named it; an error where it cannot be one."""
    made = registry.make(base)
    if not _supported(type(made)):
        able = ", ".join(name for name in registry.names() if _supported(registry.get(name)))
        raise ValueError(
            f"a reservoir keeps the adapted parameters of its base method, and {type(made).__name__} has none or "
            f"answers with others; methods that it can hold: {able}"
        )
    return made


def _supported(kind: type[Method]) -> bool:
    plain = kind.forward is Method.forward and kind.predict is Method.predict
    return plain and not issubclass(kind, Source)


def _shelves(fields: Sequence[Field], count: int) -> list[Field]:
    """For each entry, where the values of `fields` are while another entry is live."""
    return [
        Field(f"{field.name}.{k}", field.initial, "stream", shape=field.shape) for field in fields for k in range(count)
    ]


def _swap(fields: Sequence[Field], state: State, old: int, new: int, origin: int) -> dict[str, Value]:
    """What puts the values of entry `old` away and those of `new` in their place.

    Those that are laid out like the parameters come from entry `origin`, as the parameters do.
    """
    updates: dict[str, Value] = {}
    for field in fields:
        updates[f"{field.name}.{old}"] = state[field.name]
        place = origin if field.layered else new
        value = state[field.name] if place == old else state[f"{field.name}.{place}"]
        updates[field.name] = value.clone() if isinstance(value, Tensor) else value
    return updates


def _parameters(network: Network, state: State, index: int) -> Tensor:
    """Those of an entry [len(arena)]."""
    return network.arena.values if index == state.number("current") else state.tensor("entries")[index]


def _average(network: Network, state: State, route: _Route) -> Tensor:
    """sum_k w_k theta_k [len(arena)]; a new entry counts as its parent, whose parameters it has."""
    assert route.weights is not None
    opened, current = int(state.number("opened")), int(state.number("current"))
    weights = route.weights[:opened].clone()
    if route.parent is not None:
        weights[route.parent] += route.weights[opened]
    live = weights[current].clone()
    weights[current] = 0.0
    waiting = (weights[:, None] * state.tensor("entries")[:opened]).sum(0)  # no matmul: autocast would round it
    return waiting + live * network.arena.values


@torch.no_grad()
def _most_informed(network: Network, images: Tensor, state: State) -> int:
    """The entry whose predictions have the most mutual information: each sure, and together of many classes."""
    opened = int(state.number("opened"))
    if opened == 1:
        return 0
    values = []
    for index in range(opened):
        with network.arena.holding(_parameters(network, state, index)):
            logits = network(images)
        values.append(float(losses.entropy(logits).mean() - losses.marginal_entropy(logits)))
    return values.index(min(values))


def _packed(optimizer: torch.optim.Optimizer, like: Tensor) -> tuple[Tensor | None, str]:
    """An optimiser's moments as one vector, and their names and shapes as JSON; None and "" before its first step."""
    tensors = optim.flatten(optimizer)[0]
    held = {name: tensors[name] for name in sorted(tensors) if name.startswith("state.")}  # a snapshot has no order
    if not held:
        return None, ""
    vector = torch.cat([value.flatten().to(like) for value in held.values()])
    return vector, json.dumps({name: list(value.shape) for name, value in held.items()})


def _length(shapes: str) -> int:
    return sum(math.prod(shape) for shape in json.loads(shapes).values())


def _unpacked(vector: Tensor, shapes: str) -> dict[str, Tensor]:
    """Inverse of `_packed`; no moments where all are zero."""
    if not bool(vector.any()):
        return {}
    shape_of = json.loads(shapes)
    parts = torch.split(vector, [math.prod(shape) for shape in shape_of.values()])
    whole = {name: part.clone().view(shape) for (name, shape), part in zip(shape_of.items(), parts, strict=True)}
    return {name: value if value.dim() else value.cpu() for name, value in whole.items()}  # where torch counts steps


def _sound(objective: Objective, gradients: Tensor) -> bool:
    """Whether the adapter will accept the step."""
    finite = bool(torch.isfinite(gradients).all())
    return finite and (objective.loss is None or math.isfinite(float(objective.loss.detach())))
