"""Who is compared with whom: runs by base method and place."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run
from tidefast.core.specification import Specification
from tidefast.paper import naming
from tidefast.report.entries import Arrangement, Contestant, Entry
from tidefast.report.protocols import usual_batch


@dataclass(frozen=True, eq=False)
class Entrant:
    """A run, and what it is called among the others."""

    run: Run
    base: str
    """The method that the reset policy is added to."""
    add_on: str
    """The reset policy."""
    stream: str
    place: str
    """The stream, and the seed where there are several."""

    @property
    def label(self) -> str:
        """Method and policy."""
        return naming.joined(self.base, self.add_on)

    @property
    def title(self) -> str:
        """Method, policy and place."""
        return f"{self.label}, {self.place}"


def lineup(runs: Sequence[Run]) -> list[Entrant]:
    """Finished runs with their names, sorted: streams, base methods, no reset before RDumb before ASR."""
    by_folder = {run.folder: run for run in runs}
    entries = [Entry(run.folder, run.experiment, True, False, run.total, run.result or {}) for run in runs]
    arranged = Arrangement(entries)
    rows = {row: arranged.experiment(row) for row in arranged.rows}
    bases, add_ons, streams = _bases(rows), _add_ons(rows), _streams(arranged)
    found = []
    for column, stream in zip(arranged.columns, streams, strict=True):
        here = [(row, by_folder[entry.folder]) for row in rows for entry in arranged.at(row, column).values()]
        seen = [Experiment(run.experiment.stream, "-", seed=run.experiment.seed) for _, run in here]
        for (row, run), place in zip(here, naming.apart([stream] * len(seen), seen), strict=True):
            found.append(Entrant(run, bases[_base(row)], add_ons[row[1]], stream, place))
    places, methods = list(dict.fromkeys(one.place for one in found)), list(bases.values())
    return sorted(found, key=lambda one: (places.index(one.place), methods.index(one.base)))


def panels(entrants: Iterable[Entrant]) -> dict[tuple[str, str], list[Entrant]]:
    """Those who meet: by base method and place."""
    found: dict[tuple[str, str], list[Entrant]] = {}
    for one in entrants:
        found.setdefault((one.base, one.place), []).append(one)
    return found


def heading(panel: tuple[str, str], among: Iterable[tuple[str, str]]) -> str:
    """What a panel is called: its base, and its place where there are several."""
    base, place = panel
    return base if len({other for _, other in among}) == 1 else textwrap.fill(f"{base}, {place}", 44)


def standing(value: float, other: float) -> str:
    """How a number compares with another, as they are printed: with one decimal.

    >>> standing(69.34, 69.26), standing(69.0, 67.7)
    ('level with', 'above')
    """
    mine, its = round(value, 1), round(other, 1)
    return "above" if mine > its else "below" if mine < its else "level with"


def _base(row: Contestant) -> Contestant:
    return (row[0], *row[2:])


def _bases(rows: dict[Contestant, Experiment]) -> dict[Contestant, str]:
    """The methods without their reset policies, named among themselves."""
    kept = {_base(row): experiment for row, experiment in rows.items()}
    bare = [
        dataclasses.replace(
            one,
            stream=naming.ANY,
            reset=Specification("never"),
            seed=0,
            steps=None,
            batch=None if usual_batch(one) else one.batch,
        )
        for one in kept.values()
    ]
    return dict(zip(kept, naming.names(bare), strict=True))


def _add_ons(rows: dict[Contestant, Experiment]) -> dict[str, str]:
    """The reset policies, named among themselves."""
    kept = {row[1]: experiment for row, experiment in rows.items()}
    bare = [Experiment("-", "-", reset=one.reset) for one in kept.values()]
    return dict(zip(kept, naming.apart(list(map(naming.add_on, bare)), bare), strict=True))


def _streams(arranged: Arrangement) -> list[str]:
    """The columns, named among themselves."""
    streams = [Experiment(arranged.stream(column), "-", steps=column[1]) for column in arranged.columns]
    return naming.apart([one.stream.label for one in streams], streams)
