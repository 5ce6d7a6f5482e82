"""Experiments: run one, sweep over many, read the results."""

from tidefast.core.extras import needed
from tidefast.core.specification import Specification

with needed("bench", by=__name__):
    from tidefast.bench.assembly import adapter_of, model_of, stream_of
    from tidefast.bench.experiment import Experiment
    from tidefast.bench.results import Run, dominant_domains, find, load
    from tidefast.bench.runner import run
    from tidefast.bench.sweep import Outcome, Progress, experiments, sweep

__all__ = [
    "Experiment",
    "Outcome",
    "Progress",
    "Run",
    "Specification",
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
