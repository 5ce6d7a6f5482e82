"""Names that tell runs apart, and who is compared with whom."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidefast.bench.experiment import Experiment
from tidefast.bench.protocols import usual_batch
from tidefast.bench.results import Run
from tidefast.core.specification import Specification
from tidefast.report.arrangement import Arrangement, ContestantKey, Entry

FIRST = "ETA"
"""The method that the paper's figures are about."""
NO_RESET = "no reset"
ANY = Specification("any")
"""Instead of the stream, where that does not matter."""


def names(experiments: Sequence[Experiment], *, placed: bool = False) -> list[str]:
    """A short name for each; experiments that differ have different names.

    The stream is named where there are several, or always when `placed`.

    >>> names([Experiment("drift", "eta"), Experiment("drift", "eta", reset="asr", seed=43)])
    ['ETA', 'ETA + ASR']
    >>> names([Experiment("drift", "eta"), Experiment("ccc-mini:level=hard", "eta")])
    ['ETA, drift', 'ETA, ccc-mini level=hard']
    >>> names([Experiment("drift", "eta", batch=8, seed=43), Experiment("drift", "eta", batch=8, seed=44)])
    ['ETA, seed 43', 'ETA, seed 44']
    """
    placed = placed or len({experiment.stream.label for experiment in experiments}) > 1
    return apart(
        [experiment.label + (f", {experiment.stream.label}" if placed else "") for experiment in experiments],
        experiments,
    )


def streams(experiments: Sequence[Experiment]) -> list[str]:
    """What the stream of each is called.

    >>> streams([Experiment("drift", "eta"), Experiment("drift", "eta", reset="asr")])
    ['drift', 'drift']
    """
    return apart(
        [experiment.stream.label for experiment in experiments],
        [Experiment(experiment.stream, "-") for experiment in experiments],
    )


def contestants(experiments: Sequence[Experiment]) -> list[str]:
    """What each is called, wherever it runs.

    >>> contestants([Experiment("drift", "eta", reset="asr"), Experiment("ccc-mini", "eta", reset="asr")])
    ['ETA + ASR', 'ETA + ASR']
    """
    return names([dataclasses.replace(experiment, stream=ANY) for experiment in experiments])


def apart(labels: Sequence[str], experiments: Sequence[Experiment]) -> list[str]:
    """Labels of experiments; where several have the same one, with what tells them apart.

    >>> apart(["RDumb", "RDumb"], [Experiment("-", "-", reset=f"periodic:every={n}") for n in (200, 500)])
    ['RDumb, every 200', 'RDumb, every 500']
    """
    distinct = list(labels)
    clashing: dict[str, list[int]] = {}
    for at, name in enumerate(distinct):
        clashing.setdefault(name, []).append(at)
    for name, group in clashing.items():
        told = _differences([_facts(experiments[at]) for at in group])
        for at, words in zip(group, told, strict=True):
            distinct[at] = ", ".join([name, *words])
    return distinct


def add_on(experiment: Experiment) -> str:
    """The reset policy that is added to the method.

    >>> add_on(Experiment("drift", "eta", reset="asr")), add_on(Experiment("drift", "eta"))
    ('ASR', 'no reset')
    """
    base = dataclasses.replace(experiment, reset=Specification("never")).label
    return experiment.label.removeprefix(base).removeprefix(" + ") or NO_RESET


def joined(base: str, add_on: str) -> str:
    """The contestant of a method and an `add_on`."""
    return base if add_on == NO_RESET else f"{base} + {add_on}"


def place(run: Run) -> tuple[str, int, int | None, int | None]:
    """What runs share that see the same batches."""
    experiment = run.experiment
    return experiment.stream.spelled, experiment.seed, experiment.steps, experiment.batch


def pooled(runs: Iterable[Run], *, streams: bool = False) -> dict[str, list[Run]]:
    """Runs that differ in nothing but the seed, by name; with `streams`, nor in the options of the stream.

    A run that is there twice counts once.
    """
    groups: dict[Hashable, tuple[Experiment, list[Run]]] = {}
    for run in {run.experiment.digest: run for run in runs}.values():
        changes: dict[str, Any] = {"seed": 0}
        if streams:
            changes["stream"] = Specification(run.experiment.stream.name)
        common = dataclasses.replace(run.experiment, **changes)
        groups.setdefault(common.digest, (common, []))[1].append(run)
    commons = [common for common, _ in groups.values()]
    return dict(zip(names(commons), (members for _, members in groups.values()), strict=True))


def featured(contestants: Sequence[str], limit: int) -> list[str]:
    """At most `limit` names for a figure: those of the method that the paper's figures are about come first.

    >>> featured(["CMF + ASR", "ETA", "ETA + ASR"], 2)
    ['ETA', 'ETA + ASR']
    """
    return sorted(contestants, key=lambda name: name.split(",")[0].split(" + ")[0] != FIRST)[:limit]


def on_one_stream(runs: Mapping[str, Run], limit: int) -> list[str]:
    """At most `limit` names for a figure of runs that saw the same batches; see `featured`."""
    places = {name: place(run) for name, run in runs.items()}
    first = featured([*runs], 1)[0]
    return featured([name for name in runs if places[name] == places[first]], limit)


def where(runs: Sequence[Run]) -> str:
    """The streams of some runs in brackets, for the end of a title; seeds where there are several.

    Nothing when there are more than three.
    """
    streams = list(dict.fromkeys(run.experiment.stream.label for run in runs))
    seeds = {run.experiment.seed for run in runs}
    if len(streams) > 3:
        return ""
    listed = " and ".join(filter(None, [", ".join(streams[:-1]), streams[-1]]))
    return f" ({listed}, {len(seeds)} seeds)" if len(seeds) > 1 else f" ({listed})"


def _facts(experiment: Experiment) -> dict[str, str]:
    """Everything that may tell experiments apart, by a key, in words."""
    facts = {}
    for field in dataclasses.fields(experiment):
        value = getattr(experiment, field.name)
        if isinstance(value, Specification):
            facts[field.name] = value.name
            facts |= {f"{field.name} {key}": f"{key} {option}" for key, option in value.options.items()}
        elif field.name == "steps" and value is not None:
            facts[field.name] = f"{value:,} batches"
        elif value is not None:
            facts[field.name] = f"{field.name} {value}"
    return facts


def _differences(facts: Sequence[dict[str, str]]) -> list[list[str]]:
    keys = list(dict.fromkeys(key for own in facts for key in own))
    telling = [key for key in keys if len({own.get(key) for own in facts}) > 1]
    return [[own[key] for key in telling if key in own] for own in facts]


@dataclass(frozen=True, eq=False)
class NamedRun:
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
        return joined(self.base, self.add_on)

    @property
    def title(self) -> str:
        """Method, policy and place."""
        return f"{self.label}, {self.place}"


def with_names(runs: Sequence[Run]) -> list[NamedRun]:
    """Finished runs with their names, sorted: streams, base methods, no reset before RDumb before ASR."""
    by_folder = {run.folder: run for run in runs}
    entries = [Entry(run.folder, run.experiment, True, False, run.total, run.result or {}) for run in runs]
    arranged = Arrangement(entries)
    rows = {row: arranged.experiment(row) for row in arranged.rows}
    bases, add_ons, streams = _bases(rows), _add_ons(rows), _streams(arranged)
    named = []
    for column, stream in zip(arranged.columns, streams, strict=True):
        here = [(row, by_folder[entry.folder]) for row in rows for entry in arranged.at(row, column).values()]
        seen = [Experiment(run.experiment.stream, "-", seed=run.experiment.seed) for _, run in here]
        for (row, run), place in zip(here, apart([stream] * len(seen), seen), strict=True):
            named.append(NamedRun(run, bases[_base(row)], add_ons[row[1]], stream, place))
    places, methods = list(dict.fromkeys(named_run.place for named_run in named)), list(bases.values())
    return sorted(named, key=lambda named_run: (places.index(named_run.place), methods.index(named_run.base)))


def panels(named_runs: Iterable[NamedRun]) -> dict[tuple[str, str], list[NamedRun]]:
    """Those who meet: by base method and place."""
    met: dict[tuple[str, str], list[NamedRun]] = {}
    for named_run in named_runs:
        met.setdefault((named_run.base, named_run.place), []).append(named_run)
    return met


def heading(panel: tuple[str, str], among: Iterable[tuple[str, str]]) -> str:
    """What a panel is called: its base, and its place where there are several."""
    base, place = panel
    return base if len({other for _, other in among}) == 1 else textwrap.fill(f"{base}, {place}", 44)


def _base(row: ContestantKey) -> ContestantKey:
    return (row[0], *row[2:])


def _bases(rows: dict[ContestantKey, Experiment]) -> dict[ContestantKey, str]:
    """The methods without their reset policies, named among themselves."""
    kept = {_base(row): experiment for row, experiment in rows.items()}
    bare = [
        dataclasses.replace(
            experiment,
            stream=ANY,
            reset=Specification("never"),
            seed=0,
            steps=None,
            batch=None if usual_batch(experiment) else experiment.batch,
        )
        for experiment in kept.values()
    ]
    return dict(zip(kept, names(bare), strict=True))


def _add_ons(rows: dict[ContestantKey, Experiment]) -> dict[str, str]:
    """The reset policies, named among themselves."""
    kept = {row[1]: experiment for row, experiment in rows.items()}
    bare = [Experiment("-", "-", reset=experiment.reset) for experiment in kept.values()]
    return dict(zip(kept, apart(list(map(add_on, bare)), bare), strict=True))


def _streams(arranged: Arrangement) -> list[str]:
    """The columns, named among themselves."""
    streams = [Experiment(arranged.stream(column), "-", steps=column[1]) for column in arranged.columns]
    return apart([experiment.stream.label for experiment in streams], streams)
