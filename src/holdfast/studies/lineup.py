"""Who is compared with whom: runs by base method and place, with names that tell them apart."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import resets
from holdfast.bench.component import Component
from holdfast.bench.experiment import Experiment
from holdfast.bench.results import Run
from holdfast.report.entries import Arrangement, Contestant, Entry
from holdfast.report.protocols import protocol
from holdfast.resets import ASR
from holdfast.studies import figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PARTS = ("measure", "when", "extent", "accumulation", "strength", "momentum")
"""Those of ASR that a study exchanges; its numbers may be as the network needs them."""
NO_RESET = "no reset"
_KNOWN = {"ASR": "ASR", "RDumb": "RDumb", NO_RESET: "never"}
"""Those the paper is about, with the names of their colours."""


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
        return self.base if self.add_on == NO_RESET else f"{self.base} + {self.add_on}"

    @property
    def title(self) -> str:
        """Method, policy and place."""
        return f"{self.label}, {self.place}"


def lineup(runs: Sequence[Run]) -> list[Entrant]:
    """Finished runs with their names, sorted: streams, base methods, no reset before RDumb before ASR."""
    entries = {run.folder: Entry(run.folder, run.experiment, True, False, run.total, run.result or {}) for run in runs}
    arranged = Arrangement(list(entries.values()))
    bases = _bases(arranged)
    add_ons = _add_ons([arranged.experiment(row).reset for row in arranged.rows])
    by_folder = {run.folder: run for run in runs}
    found = []
    for column in arranged.columns:
        cells = {row: arranged.at(row, column).values() for row in arranged.rows}
        differing = _differing([entry.experiment for cell in cells.values() for entry in cell])
        stream = arranged.heading(column)
        for row, cell in cells.items():
            for entry in cell:
                place = ", ".join([stream, *_told(entry.experiment, differing)])
                add_on = add_ons[entry.experiment.reset.spelled]
                found.append(Entrant(by_folder[entry.folder], bases[_base(row)], add_on, stream, place))
    places, methods = _first_seen(one.place for one in found), list(bases.values())
    return sorted(found, key=lambda one: (places[one.place], methods.index(one.base)))


def asr_of(run: Run) -> ASR | None:
    """The reset policy of a run if it is ASR in some form."""
    cls, usual = resets.base.registry.resolve(run.experiment.reset.name)
    if cls is not ASR:
        return None
    options = {**usual, **run.experiment.reset.options}
    options.pop("preset", None)  # chooses numbers and switches, no parts
    return ASR(**options)


def exchanged(policy: ASR) -> set[str]:
    """The parts of ASR that are not the usual ones.

    >>> exchanged(ASR(extent="full", alpha0=0.1))
    {'extent'}
    """
    usual = ASR()
    return {name for name in PARTS if getattr(policy, name) != getattr(usual, name)}


def plain(run: Run, *others: str) -> bool:
    """Whether a run has no reset, one of the `others` by name, or ASR with nothing exchanged."""
    policy = asr_of(run)
    return run.experiment.reset.name in ("never", *others) if policy is None else not exchanged(policy)


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


def strokes(add_ons: Iterable[str]) -> dict[str, dict[str, Any]]:
    """For each reset policy colour, dash and marker of its line; those the paper is about always have the same.

    >>> chosen = strokes(["no reset", "ASR (no recovery)", "ASR"])
    >>> len({one["color"] for one in chosen.values()}), len({one["marker"] for one in chosen.values()})
    (3, 3)
    """
    names = list(dict.fromkeys(add_ons))
    others = [name for name in names if name not in _KNOWN]
    free = [one for one in figure.PALETTE if one not in {figure.colour(name) for name in _KNOWN.values()}]
    chosen = {}
    for name in names:
        known = name in _KNOWN
        at = list(_KNOWN).index(name) if known else len(_KNOWN) + others.index(name)
        chosen[name] = {
            "color": figure.colour(_KNOWN[name]) if known else free[others.index(name) % len(free)],
            "linestyle": figure.DASHES[at % len(figure.DASHES)],
            "marker": figure.MARKERS[at % len(figure.MARKERS)],
        }
    return chosen


def legend(drawn: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all panels, below them."""
    handles = {}
    for one in axes:
        handles.update({label: handle for handle, label in zip(*one.get_legend_handles_labels(), strict=True)})
    drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(handles)))


def _base(row: Contestant) -> Contestant:
    return (row[0], *row[2:])


def _bases(arranged: Arrangement) -> dict[Contestant, str]:
    """The methods without their reset policies, named among themselves."""
    kept = {_base(row): arranged.experiment(row) for row in arranged.rows}
    bare = [dataclasses.replace(experiment, reset=Component("never")) for experiment in kept.values()]
    alone = Arrangement([Entry(Path(), one, True, False, 0, {"batches": 0}) for one in bare])
    names = {_base(row): alone.label(row).replace(", never", "") for row in alone.rows}
    return {base: names[base] for base in kept}


def _add_ons(policies: list[Component]) -> dict[str, str]:
    """By how a policy is spelt, what it is called; policies of one title are spelt out."""
    titles = {one.spelled: Experiment("-", Component("-", title="-"), reset=one).label[4:] for one in policies}
    shared = {title for title in titles.values() if list(titles.values()).count(title) > 1}
    return {
        spelled: f"{title} ({spelled})" if title in shared else title or NO_RESET for spelled, title in titles.items()
    }


def _differing(experiments: list[Experiment]) -> list[str]:
    """What is pooled in tables, and differs between these experiments on one stream."""
    names = protocol(experiments[0].stream).pooled if experiments else ()
    return [name for name in names if len({_value(one, name) for one in experiments}) > 1]


def _told(experiment: Experiment, names: list[str]) -> list[str]:
    return [f"{name.replace('_', ' ')} {_value(experiment, name)}" for name in names]


def _value(experiment: Experiment, name: str) -> str:
    return str(experiment.stream.options.get(name, experiment.seed if name == "seed" else ""))


def _first_seen(names: Iterable[str]) -> dict[str, int]:
    return {name: at for at, name in enumerate(dict.fromkeys(names))}
