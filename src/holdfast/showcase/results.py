"""From a folder of results, whole or partial, to what the page tells."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from holdfast import report
from holdfast.showcase import journal, samples
from holdfast.showcase.contestants import NUM_CLASSES, Contestant
from holdfast.showcase.folder import STEPS, Folder
from holdfast.showcase.settings import Settings


def track(path: Path, contestant: Contestant, total: int) -> report.Track:
    """What a contestant's journal holds."""
    lines = journal.read(path)

    def measured(name: str) -> report.Floats:
        return np.array([getattr(line, name) for line in lines], dtype=np.float64)  # None becomes nan

    return report.Track(
        key=contestant.key,
        label=contestant.label,
        total=total,
        correct=measured("correct"),
        count=measured("count"),
        predicted=np.array([line.predicted for line in lines], dtype=np.int64).reshape(len(lines), NUM_CLASSES),
        labels=np.array([line.labels for line in lines], dtype=np.int64).reshape(len(lines), NUM_CLASSES),
        domains=[line.domain for line in lines],
        reset_fraction=measured("reset_fraction"),
        concentration=measured("concentration"),
        threshold=measured("threshold"),
        seconds=measured("seconds"),
    )


def story(out: str | os.PathLike[str], lineup: list[Contestant]) -> report.Story:
    """Everything that the page shows, from what is on disk now."""
    folder = Folder(out)
    settings = folder.settings()
    shown, classes = samples.load(folder.samples)
    tracks = [track(folder.of(contestant.key) / STEPS, contestant, settings.steps) for contestant in lineup]
    return report.Story(
        title="Does it hold? Test-time adaptation on a stream that never stops drifting",
        tracks=tracks,
        reference="source",
        classes=classes,
        samples=shown,
        facts=_facts(settings, lineup),
    )


def _facts(settings: Settings, lineup: list[Contestant]) -> dict[str, str]:
    images = settings.steps * settings.batch
    return {
        "Stream": f"{settings.stream}: {settings.steps:,} batches of {settings.batch} images ({images:,} in all), "
        f"seed {settings.seed}",
        "Network": settings.model,
        "Settings": "the same for all: "
        + "; ".join(sorted({contestant.description()["optimizer"] for contestant in lineup}))
        + "; RDumb's period is a quarter of the stream; nothing was tuned on it",
        **{contestant.label: _recipe(contestant) for contestant in lineup},
    }


def _recipe(contestant: Contestant) -> str:
    return f"{contestant.method!r}, reset {contestant.reset!r}"
