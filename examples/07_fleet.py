"""A fleet: many streams, each adapting on its own, over one set of frozen weights; restored bit for bit."""

from __future__ import annotations

import functools
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import tidefast
from tidefast import methods, models, streams

CAMERAS = {"north": "gaussian_noise", "east": "contrast", "south": "fog", "west": "defocus_blur"}
model = models.load("bundled-resnet")


def new_fleet() -> tidefast.Fleet:
    """Streams begin with their first images; more of them than `resident` are kept on disk."""
    optimizer = functools.partial(torch.optim.Adam, lr=1e-3)
    return tidefast.Fleet(model, methods.ETA.for_classes(10), reset="asr", optimizer=optimizer, resident=2, workers=2)


def watch(fleet: tidefast.Fleet, camera: str, batches: range) -> float:
    """Feed a camera's images; the accuracy. Any number of threads may do so at the same time."""
    domain = streams.Domain((CAMERAS[camera], 5))
    stream = streams.Stream(None, streams.hold(domain, images=20 * 16), batch=16, seed=1)
    hits = [fleet[camera](stream[k].images).argmax(1) == stream[k].labels for k in batches]
    return float(torch.cat(hits).float().mean())


fleet = new_fleet()
with ThreadPoolExecutor() as threads:
    accuracies = threads.map(lambda camera: watch(fleet, camera, range(10)), CAMERAS)
for camera, accuracy in zip(CAMERAS, accuracies, strict=True):
    print(f"{camera:<6} {CAMERAS[camera]:<15} {fleet[camera].step} batches, {accuracy:.1%}")

network = sum(parameter.numel() for parameter in model.parameters())
share, resident = fleet.numbers_held() / network, sum(fleet[camera].numbers_held() > 0 for camera in fleet)
print(f"{resident} of {len(fleet)} streams are in memory, with {share:.1%} of the numbers of the network they share")

with tempfile.TemporaryDirectory() as folder:
    fleet.snapshot(Path(folder) / "fleet")
    again = new_fleet()
    again.restore(Path(folder) / "fleet")

images = streams.make("clean", steps=1, batch=16)[0].images
same = all(torch.equal(fleet[camera](images), again[camera](images)) for camera in CAMERAS)
print(f"restored fleet: {'equal bit for bit' if same else 'DIFFERENT'}")

together = again.adapt(dict.fromkeys(CAMERAS, images))  # all cameras in one pass
difference = max(float((together[camera] - fleet[camera](images)).abs().max()) for camera in CAMERAS)
print(f"stepped together: {'equal within rounding' if difference < 1e-4 else 'DIFFERENT'}")
