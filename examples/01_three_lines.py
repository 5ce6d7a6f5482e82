"""Three lines: wrap a trained classifier and feed it the stream. It follows the drift; the model you pass in stays.

The stream is real images under corruptions that come one after the other. Labels are used to count, never to adapt.
"""

from __future__ import annotations

import functools
from collections import Counter

import torch

import tidefast
from tidefast import models, streams

model = models.load("bundled-resnet")  # any PyTorch classifier with normalisation layers
stream = streams.make("recurring", images=320, steps=40, batch=32, seed=0)

# The learning rate matters most: this one suits small images; left out, it is the published one for ImageNet.
adapter = tidefast.adapt(model, "roid", reset="asr", optimizer=functools.partial(torch.optim.Adam, lr=1e-3))

seen, source, adapted = Counter[str](), Counter[str](), Counter[str]()
for batch in stream:
    logits = adapter(batch.images)  # predict, then adapt
    with torch.no_grad():
        alone = model(batch.images)  # the same network, never adapted
    for domain in (str(batch.domain), "overall"):
        seen[domain] += len(batch)
        source[domain] += int((alone.argmax(1) == batch.labels).sum())
        adapted[domain] += int((logits.argmax(1) == batch.labels).sum())

print(f"{'accuracy':<18}  source  adapted")
for domain in sorted(seen, key=lambda name: name == "overall"):
    print(f"{domain:<18} {source[domain] / seen[domain]:7.1%}  {adapted[domain] / seen[domain]:7.1%}")
