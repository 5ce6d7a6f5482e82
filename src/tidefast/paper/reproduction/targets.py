"""What can be reproduced: every table and figure, by its number, its id or its label."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tidefast.bench.experiment import Experiment
from tidefast.bench.metrics import PairedDifference
from tidefast.bench.results import Run
from tidefast.errors import UnknownNameError
from tidefast.paper import published
from tidefast.paper.analyses import registry
from tidefast.paper.analysis import Analysis
from tidefast.paper.reproduction import outcome, settings
from tidefast.paper.reproduction.claims import Agreement, judge
from tidefast.paper.reproduction.outcome import TargetOutcome
from tidefast.paper.reproduction.plan import Plan, plan
from tidefast.paper.scale import Setting

LABELS = (
    *("ours_vs_rdumb", "overview", "C_t_vs_acc", "sig(mu)_vs_mu(sig)", "var_logit", "fp_vs_tp", "label_imbalance"),
    *("inc+cdc", "collapse", "stable", "batch", "hyper", "dynamics", "cifar10", "cifar100"),
)
"""In the order of the paper."""
DIAGRAM = "overview"
"""The one that shows no data."""


class ReproductionTarget(ABC):
    """A table or a figure."""

    label: str
    """`table 5`, `figure collapse`."""
    title: str
    experiments: list[Experiment]
    """What must be run for it."""

    @abstractmethod
    def outcome(self, runs: Mapping[str, Run], folder: Path) -> TargetOutcome:
        """What the finished runs, by their keys, say; a figure's files go into the folder."""


class Results(ReproductionTarget):
    """A table of results."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.label, self.title = plan, f"table {plan.table.number}", plan.table.title
        self.experiments = plan.experiments

    def outcome(self, runs: Mapping[str, Run], folder: Path) -> TargetOutcome:
        plan, values = self.plan, self.plan.values(runs)
        names = [line.name for line in plan.lines if line.published]
        theirs = {
            (line.name, column.key): value
            for line in plan.lines
            for column in plan.columns
            if (value := outcome.published_value(line, column)) is not None
        }
        ours = {place: value.number for place, value in values.items()}

        def compare(above: str, below: str, column: str) -> PairedDifference:
            return values[above, column].over(values[below, column])

        here, there = judge(plan.claims, ours, names, compare), judge(plan.claims, theirs, names)
        order = sum(outcome.agreements(plan, values).values(), Agreement())
        sheets = (outcome.sheet(plan, values), *([outcome.claims(plan, here, there)] if here else []))
        finished = sum(experiment.key in runs for experiment in self.experiments)
        return TargetOutcome(self.label, self.title, sheets, finished, len(self.experiments), tuple(here), order)


class Constants(ReproductionTarget):
    """A table of settings."""

    def __init__(self, number: int) -> None:
        self.number, self.label, self.title = number, f"table {number}", published.table(number).title
        self.experiments = []

    def outcome(self, runs: Mapping[str, Run], folder: Path) -> TargetOutcome:
        sheet, verdict = settings.sheet(self.number)
        return TargetOutcome(self.label, self.title, (sheet,), remark=verdict)


@dataclass
class Figures(ReproductionTarget):
    """Figures of which one analysis makes the counterpart."""

    analysis: Analysis
    labels: tuple[str, ...]
    experiments: list[Experiment]

    def __post_init__(self) -> None:
        self.label = f"figure{'s' if len(self.labels) > 1 else ''} {', '.join(self.labels)}"
        self.title = self.analysis.title

    def outcome(self, runs: Mapping[str, Run], folder: Path) -> TargetOutcome:
        keys = list(dict.fromkeys(experiment.key for experiment in self.experiments))
        there, wanted = [runs[key] for key in keys if key in runs], len(keys)
        if len(there) < wanted:
            return TargetOutcome(
                self.label, self.title, (), len(there), wanted, remark="drawn when its runs are finished"
            )
        finding = self.analysis.evaluate(there)
        files = tuple(finding.write(folder, self.analysis.name))
        sheets = list(finding.sheets)
        if sheets:
            sheets[-1] = replace(sheets[-1], notes=(*sheets[-1].notes, *finding.remarks))
        named = tuple(replace(sheet, title=f"{self.label.capitalize()}: {sheet.title}") for sheet in sheets)
        return TargetOutcome(self.label, self.title, named, wanted, wanted, files=files)


class Diagram(ReproductionTarget):
    """A figure that shows no data."""

    def __init__(self, label: str) -> None:
        self.label, self.title, self.experiments = f"figure {label}", "A diagram of the reset rule", []

    def outcome(self, runs: Mapping[str, Run], folder: Path) -> TargetOutcome:
        return TargetOutcome(self.label, self.title, (), remark="no data: nothing to reproduce")


def everything(setting: Setting, *, base: str | None = None, all_rows: bool = False) -> list[ReproductionTarget]:
    """All of them: the tables in order, then the figures in order."""
    tables = [_table(table.number, setting, base, all_rows) for table in published.tables()]
    drawn: dict[str, ReproductionTarget] = {}
    for label in LABELS:
        if label == DIAGRAM or label in by_figure():
            target = _figure(label, setting)
            drawn.setdefault(target.label, target)
    return [*tables, *drawn.values()]


def chosen(
    what: Sequence[str], setting: Setting, *, base: str | None = None, all_rows: bool = False
) -> list[ReproductionTarget]:
    """Those with the given names: `5`, `table 5`, `tab:ablate`, `ablate`, `fig:collapse`, `figure collapse`, `all`."""
    distinct: dict[str, ReproductionTarget] = {}
    for name in _joined(what):
        targets = (
            everything(setting, base=base, all_rows=all_rows)
            if name == "all"
            else [_one(name, setting, base, all_rows)]
        )
        distinct.update({target.label: target for target in targets})
    return list(distinct.values())


def _joined(what: Sequence[str]) -> list[str]:
    """`table 5` may come as two words.

    >>> _joined(["table", "5", "figure", "collapse", "tab:vit"])
    ['table 5', 'figure collapse', 'tab:vit']
    """
    words, names = list(what), []
    while words:
        word = words.pop(0)
        names.append(f"{word} {words.pop(0)}" if word.lower() in ("table", "figure", "fig", "tab") and words else word)
    return names


def _one(name: str, setting: Setting, base: str | None, all_rows: bool) -> ReproductionTarget:
    text = name.strip()
    for prefix in ("figure ", "fig ", "fig:", "table ", "tab ", "tab:"):
        if text.lower().startswith(prefix):
            kind, text = prefix[:3], text[len(prefix) :].strip()
            break
    else:
        kind = ""
    labels = {plain(label): label for label in LABELS}
    if kind != "tab" and plain(text) in labels:
        return _figure(labels[plain(text)], setting)
    if kind != "fig":
        ids = {table.id.lower(): table.number for table in published.tables()}
        ids |= {str(table.number): table.number for table in published.tables()}
        number = ids.get(text.lower().replace("_", "-"))
        if number is not None:
            return _table(number, setting, base, all_rows)
    near = difflib.get_close_matches(text, [*(table.id for table in published.tables()), *LABELS], n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UnknownNameError(
        f"the paper has no table or figure {name!r}; {hint}`tidefast reproduce --list` names them all"
    )


def _table(number: int, setting: Setting, base: str | None, all_rows: bool) -> ReproductionTarget:
    if number in settings.NUMBERS:
        return Constants(number)
    return Results(plan(number, setting, base=base, all_rows=all_rows))


def _figure(label: str, setting: Setting) -> ReproductionTarget:
    if label == DIAGRAM:
        return Diagram(label)
    known = by_figure()
    if label not in known:
        raise UnknownNameError(f"no analysis is the counterpart of the figure {label!r}; `tidefast analyse` lists them")
    analysis = known[label]
    labels = tuple(figure for figure, other in known.items() if other.name == analysis.name)
    return Figures(analysis, labels, analysis.experiments(setting))


def plain(label: str) -> str:
    """A label as it is compared: small letters and digits.

    >>> plain("sig(mu)_vs_mu(sig)")
    'sigmuvsmusig'
    """
    return "".join(letter for letter in label.lower() if letter.isalnum())


def by_figure() -> dict[str, Analysis]:
    """The analysis of each figure that has one."""
    analyses: dict[str, Analysis] = {}
    for name in registry.names():
        analysis = registry.get(name)()
        for counterpart in analysis.paper:
            kind, _, label = counterpart.partition(" ")
            if kind == "figure":
                analyses.setdefault(plain(label), analysis)
    return {label: analyses[plain(label)] for label in LABELS if plain(label) in analyses}
