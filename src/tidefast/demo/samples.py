"""Sample images along the stream, kept beside the results so that the page can be made without the stream."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tidefast import report
from tidefast.core.files import write_atomically
from tidefast.streams import Seekable

MOMENTS, PER_MOMENT = 18, 4


def save(path: Path, stream: Seekable, steps: int) -> None:
    """Write a few images of batches spread evenly over the stream."""
    chosen = np.unique(np.linspace(0, steps - 1, MOMENTS).round().astype(int)).tolist()
    batches = [stream[index] for index in chosen]
    images = np.stack([batch.images[:PER_MOMENT].mul(255).round().byte().numpy() for batch in batches])
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        steps=np.array(chosen) + 1,
        images=images.transpose(0, 1, 3, 4, 2),
        labels=np.stack([batch.labels[:PER_MOMENT].numpy() for batch in batches]),
        domains=np.array([str(batch.domain) for batch in batches]),
        classes=np.array(stream.classes),
    )
    write_atomically(path, buffer.getvalue())


def load(path: Path) -> tuple[list[report.Sample], Sequence[str]]:
    """The samples in the order of the stream, and the names of the classes."""
    if not path.is_file():
        return [], []
    with np.load(path, allow_pickle=False) as stored:
        classes = stored["classes"].tolist()
        samples = [
            report.Sample(int(step), str(domain), images, tuple(classes[label] for label in labels))
            for step, domain, images, labels in zip(
                stored["steps"], stored["domains"], stored["images"], stored["labels"], strict=True
            )
        ]
    return samples, classes
