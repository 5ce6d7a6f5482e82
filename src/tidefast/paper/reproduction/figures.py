"""The paper's figures, and the analyses that make our counterparts."""

from __future__ import annotations

from tidefast.paper.analyses import registry
from tidefast.paper.analysis import Analysis

LABELS = (
    *("ours_vs_rdumb", "overview", "C_t_vs_acc", "sig(mu)_vs_mu(sig)", "var_logit", "fp_vs_tp", "label_imbalance"),
    *("inc+cdc", "collapse", "stable", "batch", "hyper", "dynamics", "cifar10", "cifar100"),
)
"""In the order of the paper."""
DIAGRAM = "overview"
"""The one that shows no data."""


def plain(label: str) -> str:
    """A label as it is compared: small letters and digits.

    >>> plain("sig(mu)_vs_mu(sig)")
    'sigmuvsmusig'
    """
    return "".join(letter for letter in label.lower() if letter.isalnum())


def by_figure() -> dict[str, Analysis]:
    """The analysis of each figure that has one."""
    found: dict[str, Analysis] = {}
    for name in registry.names():
        analysis = registry.get(name)()
        for said in analysis.paper:
            kind, _, label = said.partition(" ")
            if kind == "figure":
                found.setdefault(plain(label), analysis)
    return {label: found[plain(label)] for label in LABELS if plain(label) in found}
