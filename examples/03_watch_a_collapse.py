"""Watch a collapse: ETA at forty times its published rate, alone and with ASR, and what the records say of each step.

Such a rate does in a hundred batches what a good one may do in a hundred thousand: the model learns from its own
errors, and predicts fewer classes. ASR measures how far predictions concentrate, and resets the deepest layers often.
"""

from __future__ import annotations

import functools

import torch

import tidefast
from tidefast import methods, models, streams

STEPS, PART = 120, 30
model = models.load("bundled-resnet")
stream = list(streams.make("recurring", steps=STEPS, batch=16, seed=0))
optimizer = functools.partial(torch.optim.Adam, lr=4e-2)


def follow(reset: str | None) -> float:
    """Adapt along the stream, print how it went, and return the accuracy in the last part."""
    history = tidefast.History()  # a callback that keeps the record of every step
    adapter = tidefast.adapt(model, methods.ETA.for_classes(10), reset=reset, optimizer=optimizer, callbacks=[history])
    answers = [adapter(batch.images).argmax(1) for batch in stream]
    records = list(history)
    print(f"\nETA {'alone' if reset is None else 'with ' + reset.upper()}")
    print("batches   accuracy   classes per batch   samples used   resets   layers per reset")
    for start in range(0, STEPS, PART):
        part = slice(start, start + PART)
        predicted, true = torch.cat(answers[part]), torch.cat([batch.labels for batch in stream[part]])
        accuracy = float((predicted == true).float().mean())
        classes = sum(len(answer.unique()) for answer in answers[part]) / PART
        used = sum(record.selected for record in records[part]) / len(predicted)
        resets = [record.reset_fraction for record in records[part] if record.reset_fraction > 0]
        depth = f"{sum(resets) / len(resets):.0%}" if resets else "-"
        print(f"{start + PART:7}   {accuracy:8.1%}   {classes:17.1f}   {used:12.1%}   {len(resets):6}   {depth:>16}")
    return accuracy


alone, protected = follow(None), follow("asr")
print(f"\nin the last {PART} batches: alone {alone:.1%}, with ASR {protected:.1%}")
