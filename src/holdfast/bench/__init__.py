"""Experiments: run one, sweep over many, read the results."""

from holdfast.bench.assembly import adapter_of, model_of, stream_of
from holdfast.bench.component import Component
from holdfast.bench.experiment import Experiment
from holdfast.bench.results import Run, dominant_domains, find, load
from holdfast.bench.runner import run
from holdfast.bench.sweep import Outcome, Progress, experiments, sweep

__all__ = [
    "Component",
    "Experiment",
    "Outcome",
    "Progress",
    "Run",
    "adapter_of",
    "dominant_domains",
    "experiments",
    "find",
    "load",
    "model_of",
    "run",
    "stream_of",
    "sweep",
]
