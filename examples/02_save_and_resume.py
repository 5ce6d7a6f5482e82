"""Save and resume: stop within a stream, go on in another adapter, and get the same bits as without the stop."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import tidefast
from tidefast import methods, models, streams

model = models.load("bundled-resnet")
stream = streams.make("drift", steps=20, batch=16, seed=0)


def new_adapter() -> tidefast.Adapter:
    """An adapter that has seen nothing."""
    return tidefast.adapt(model, methods.ETA.for_classes(10), reset="asr", seed=7)


whole = new_adapter()
expected = [whole(batch.images) for batch in stream]

first = new_adapter()
for batch in stream.batches(stop=12):
    first(batch.images)

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "state.safetensors"
    first.save(path)  # parameters, optimiser, the method's and the policy's state, counters; whole or not at all
    print(f"saved after {first.step} batches: {path.stat().st_size / 1024:.0f} KiB, the frozen weights are not in it")
    second = new_adapter()
    second.load(path)  # checked whole before anything changes

# Streams are seekable: nothing has to be read again to get to batch 12.
rest = [second(batch.images) for batch in stream.batches(start=second.step)]
same = all(torch.equal(ours, theirs) for ours, theirs in zip(rest, expected[12:], strict=True))
print(f"the other {len(rest)} batches: {'equal bit for bit' if same else 'DIFFERENT'}")

second.reset()
images = stream[0].images
again = torch.equal(second.predict(images), new_adapter().predict(images))
print(f"after reset(): {'the source model again, bit for bit' if again else 'DIFFERENT'}")
