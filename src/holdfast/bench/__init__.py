"""Experiments: run one, sweep over many, read the results."""

from holdfast.bench.component import Component
from holdfast.bench.experiment import Experiment
from holdfast.bench.results import Run, find, load
from holdfast.bench.runner import run
from holdfast.bench.sweep import Outcome, Progress, experiments, sweep

__all__ = ["Component", "Experiment", "Outcome", "Progress", "Run", "experiments", "find", "load", "run", "sweep"]
