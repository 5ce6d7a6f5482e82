"""From a row of a published table to the contestant that it names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tidefast.bench.ledger import VARIANTS
from tidefast.paper.published import PaperTable, Published
from tidefast.paper.reproduction import quantity
from tidefast.paper.reproduction.quantity import Metric
from tidefast.report.sheet import Cell

ABLATED = (5, 13, *range(16, 22))
"""Tables about parts of ASR on one base, ROID in the paper."""
_METHODS = {"C-MAE": "CMAE"}
_OWN = ("COME", "ReservoirTTA", "Source-free")
"""Add-ons that are methods of their own, not reset policies."""
_RESETS: tuple[tuple[str, Callable[[str], str]], ...] = (
    (r"(RDumb|ASR)", lambda matched: matched),
    (r"RDumb reset", lambda matched: "RDumb"),
    (r"(SAR reset|DA-TTA reset)", lambda matched: matched),
    (r"ASR w/o C_t, mu_0", lambda matched: "asr-interval-20000"),
    (r"ASR w/o r_t", lambda matched: "asr-full"),
    (r"ASR w/o (?:F_bar|recovery|knowledge recovery)", lambda matched: "asr-no-recovery"),
    (r"ASR w/o lambda_0", lambda matched: "asr-strength-constant"),
    (r"ASR w/o mu_0", lambda matched: "asr-momentum-constant"),
    (r"ASR w/o on-the-fly", lambda matched: "asr-no-adjustment"),
    (r"ASR with fixed interval T=(\d+) batches", lambda matched: f"asr-interval-{matched}"),
    (r"ASR with fixed share (\d+)%", lambda matched: "asr-full" if matched == "100" else f"asr-share-{matched}"),
    (r"ASR \(reset only\)", lambda matched: "asr-reset-only"),
    (r"ASR, CMA only", lambda matched: "asr-cumulative"),
    (r"ASR, EMA only", lambda matched: "asr-exponential"),
    (r"ASR, delayed reset \(epsilon ([\d.]+)\)", lambda matched: f"asr-delay-{matched}"),
)
_FORMULAS = {
    20: {
        "lambda_0": "asr-strength-constant",
        "phi_t": "asr-strength-inconsistency",
        "lambda_0*(1-phi_t)^2": "asr-strength-inverse",
        "lambda_0*phi_t": "asr-strength-linear",
        "lambda_0*phi_t^2": "ASR",
    },
    21: {
        "1-mu_0": "asr-momentum-constant",
        "phi_t": "asr-momentum-inconsistency",
        "1-mu_0*phi_t": "asr-momentum-inverse",
        "1-mu_0*(1-phi_t^2)": "asr-momentum-squared",
        "1-mu_0*(1-phi_t)": "ASR",
    },
}
_MEASURES = {"None": "concentration", "Top-1": VARIANTS[1], "Top-10%": VARIANTS[2]}
_EXTRA = {19: ("ROID + ASR, EMA only", "ROID + ASR w/o recovery")}
"""Rows of ours that the paper has not."""


@dataclass(frozen=True)
class Line:
    """A row: what the paper calls it, what we call it, and who runs."""

    name: str
    """Claims use this."""
    label: str
    method: str
    reset: str = "never"
    group: str = ""
    metric: Metric | None = None
    """For a table whose rows are metrics."""
    published: dict[str, Cell] = field(default_factory=dict)
    """By the keys of the columns."""


def lines(table: PaperTable, base: str = "ROID") -> list[Line]:
    """The rows of a table with their contestants; in tables about one base, `base` stands in for it."""
    printed = [_line(table, row, base) for row in table.rows]
    return printed + [_made(name, name, table.number, base, {}) for name in _EXTRA.get(table.number, ())]


def contestant(label: str) -> tuple[str, str]:
    """The method and the reset policy of a row, by the names of `contestants`.

    >>> contestant("ROID + ASR w/o r_t"), contestant("ETA + COME"), contestant("C-MAE")
    (('ROID', 'asr-full'), ('ETA + COME', 'never'), ('CMAE', 'never'))
    """
    method, plus, add_on = label.partition(" + ")
    if not plus or add_on in _OWN:
        return _METHODS.get(label, label), "never"
    for pattern, policy in _RESETS:
        if match := re.fullmatch(pattern, add_on):
            return method, policy(match[1] if match.groups() else match[0])
    raise ValueError(f"the paper's row {label!r} names no reset policy that is known here")


def _line(table: PaperTable, row: Published, base: str) -> Line:
    epsilon = row.cells.get("epsilon")
    delayed = epsilon is not None and epsilon.value is not None
    name = f"{row.method} (epsilon {epsilon.text})" if epsilon is not None and delayed else row.method
    return _made(name, row.base or row.method, table.number, base, row.cells)


def _made(name: str, group: str, number: int, base: str, published: dict[str, Cell]) -> Line:
    if number in _FORMULAS:
        return Line(name, name, base, _FORMULAS[number][name], "", None, published)
    if number == 8:
        return Line(name, name, "ETA", "never", "", quantity.correlation(_MEASURES[name]), published)
    label = re.sub(r"^ROID\b", base, name) if number in ABLATED else name
    return Line(name, label, *contestant(label), group, None, published)
