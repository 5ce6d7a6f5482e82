"""When the alarm by canaries comes, how long before the collapse is total, and what asking costs.

    python benchmarks/canaries.py

bundled-resnet on `drift` without a policy, batches of 16, 256 canaries that the stream does not show, as `tidefast
serve --canaries bundled:part=held` has them. Accuracies in per cent, over 32 batches; in brackets those of batch
statistics alone. Total: less than a third of those. Asking: its share of the processor's time for the steps themselves.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

import tidefast
from tidefast import datasets, models, serve, streams
from tidefast.serve import ImageStatistics

PUBLISHED, BATCH, WINDOW = 1e-3, 16, 32
ETA = "eta:similarity_margin=0.4"
RUNS = ("tent@10", "tent@30", f"{ETA}@10", f"{ETA}@30", "roid@1", "roid@10")
SEEN = ImageStatistics(0.45, 0.22, 0.0, 1.0, count=BATCH)


@dataclass(frozen=True)
class WatchedStep:
    """One batch of a stream that a service watches."""

    right: float
    """Share of its images that were answered right, """
    reference: float
    """and by batch statistics alone."""
    alarms: tuple[str, ...]
    measurements: dict[str, float]
    seconds: float
    """Of the processor, for the step itself, """
    asking: float
    """and for the canaries."""


def watched(method: str, times: float, steps: int, *, canaries: int = 256, seed: int = 3) -> list[WatchedStep]:
    """A stream in a service without a policy, at so many times the published rate."""
    model = models.load("bundled-resnet")
    shown = streams.make("drift", part="stream", seed=seed, batch=BATCH, steps=steps)
    options = {"method": method, "reset": "never", "optimizer": f"adam:lr={times * PUBLISHED}"}
    reference, taken = tidefast.adapt(model, "batchnorm"), []
    with tempfile.TemporaryDirectory() as folder:
        settings = serve.Settings(state=Path(folder), threads=1, side=(32, 32))
        known = datasets.open_unlabelled("bundled:part=held", canaries)
        service = serve.Service(settings, model, options, canaries=known)
        for step in range(steps):
            batch = shown[step]
            started = time.thread_time()
            answer = service.fleet.take("camera", batch.images)
            between = time.thread_time()
            assert answer.record is not None
            record = service._with_canaries("camera", answer.record, batch.images)
            ended = time.thread_time()
            service.watch.step("camera", record, latency=0.01, images=SEEN)
            right, other = (
                float((logits.argmax(1) == batch.labels).float().mean())
                for logits in (answer.logits, reference.predict(batch.images))
            )
            kinds = tuple(alarm.kind for alarm in service.watch.alarms())
            taken.append(
                WatchedStep(right, other, kinds, dict(record.measurements), between - started, ended - between)
            )
        service.snapshots.close()
    return taken


def first_with(kind: str, taken: list[WatchedStep]) -> int | None:
    """The batch, counted from 1, after which the alarm was there."""
    return next((number for number, step in enumerate(taken, start=1) if kind in step.alarms), None)


def main() -> None:
    """Print a line for each run, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--runs", nargs="+", default=RUNS, metavar="METHOD@TIMES")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tidefast.keep_memory()
    print("| method @ times its rate | alarm after batch | accuracy then | total after batch | at the end | asking |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for run in options.runs:
        method, _, times = run.rpartition("@")
        taken = watched(method, float(times), options.steps)
        own, other = (_smooth([getattr(step, name) for step in taken]) for name in ("right", "reference"))
        lost = np.flatnonzero(own < other / 3)
        alarm = first_with("canaries", taken)
        cells = [
            "never" if alarm is None else str(alarm),
            "" if alarm is None else _against(own, other, max(0, alarm - WINDOW)),
            str(lost[0] + WINDOW) if len(lost) else "not",
            _against(own, other, -1),
            f"{sum(step.asking for step in taken) / sum(step.seconds for step in taken):.1%}",
        ]
        print(f"| {run} | {' | '.join(cells)} |", flush=True)


def _smooth(values: list[float]) -> npt.NDArray[np.float64]:
    """Means over `WINDOW` batches: the first is of those up to batch `WINDOW`."""
    return np.convolve(values, np.full(WINDOW, 1 / WINDOW), "valid")


def _against(own: npt.NDArray[np.float64], other: npt.NDArray[np.float64], at: int) -> str:
    return f"{100 * own[at]:.0f} ({100 * other[at]:.0f})"


if __name__ == "__main__":
    main()
