"""Reset policies as analyses see them: whether one is ASR, and which of its parts are exchanged."""

from __future__ import annotations

from tidefast.bench import assembly
from tidefast.bench.experiment import Experiment
from tidefast.resets import ASR
from tidefast.resets.base import registry

PARTS = ("measure", "when", "extent", "accumulation", "strength", "momentum")
"""Those of ASR that a study exchanges; its numbers may be as the network needs them."""


def asr_of(experiment: Experiment) -> ASR | None:
    """The reset policy of an experiment if it is ASR, or one of its named variants.

    >>> asr_of(Experiment("drift", "eta", reset="asr:alpha0=0.1")).alpha0
    0.1
    >>> asr_of(Experiment("drift", "eta", reset="periodic")) is None
    True
    """
    reset = experiment.reset
    if registry.variants().get(reset.name, (reset.name,))[0] != "asr":  # it may be one of a package that is not here
        return None
    policy = assembly.policy_of(experiment)
    assert isinstance(policy, ASR)
    return policy


def exchanged(policy: ASR) -> set[str]:
    """The parts of ASR that are not the usual ones.

    >>> exchanged(ASR(extent="full", alpha0=0.1))
    {'extent'}
    """
    usual = ASR()
    return {name for name in PARTS if getattr(policy, name) != getattr(usual, name)}


def plain(experiment: Experiment, *others: str) -> bool:
    """Whether it has no reset, one of the `others` by name, or ASR with nothing exchanged."""
    policy = asr_of(experiment)
    return experiment.reset.name in ("never", *others) if policy is None else not exchanged(policy)
