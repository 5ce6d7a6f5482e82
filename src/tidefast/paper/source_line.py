"""The model that does not adapt, beside those that do: the line below which one has collapsed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run
from tidefast.paper import figure
from tidefast.paper.scale import Place, Setting
from tidefast.paper.study import accuracy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME, LABEL = "Source", "source model"
Sources = Mapping[tuple[str, int], Run]
"""Its runs by stream and seed."""


def with_source(setting: Setting, experiments: Iterable[Experiment]) -> list[Experiment]:
    """The experiments, and the source model once on each of their streams, whatever the size of batches."""
    wanted = [*experiments]
    places = {
        (one.stream.spelled, one.seed): Place(one.stream, one.seed, one.steps, one.batch) for one in reversed(wanted)
    }
    return [*wanted, *(setting.experiment(place, NAME) for place in reversed(places.values()))]


def is_source(run: Run) -> bool:
    """Whether a run is the source model's."""
    return run.experiment.method.name == "source"


def apart(runs: Iterable[Run]) -> tuple[list[Run], dict[tuple[str, int], Run]]:
    """The runs that adapt, and those of the source model; when there are no others, these are looked at themselves."""
    every = [*runs]
    adapting = [run for run in every if not is_source(run)]
    if not adapting:
        return every, {}
    return adapting, {_key(run): run for run in every if is_source(run)}


def level(runs: Sequence[Run], sources: Sources) -> float | None:
    """The source model's accuracy in percent, the mean over the streams of some runs; None where one is missing."""
    own = [sources.get(_key(run)) for run in runs]
    found = [accuracy(run) for run in own if run is not None]
    return float(np.mean(found)) if found and len(found) == len(own) else None


def draw(axes: Axes, height: float | None) -> None:
    """A line across a panel."""
    if height is not None:
        axes.axhline(height, color=figure.GREY, linestyle="--", linewidth=1.0, label=LABEL, zorder=1)


def _key(run: Run) -> tuple[str, int]:
    return run.experiment.stream.spelled, run.experiment.seed
