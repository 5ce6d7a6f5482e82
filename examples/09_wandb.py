"""Log a run of an adapter to Weights & Biases, offline: no account (needs `pip install wandb`)."""

from __future__ import annotations

from pathlib import Path

import wandb

import tidefast
from tidefast import models, streams


class Log:
    """A callback that hands every tenth record to Weights & Biases."""

    def __call__(self, adapter: tidefast.Adapter, record: tidefast.StepRecord) -> None:
        if record.step % 10 == 0:
            numbers = {"loss": record.loss, "reset_fraction": record.reset_fraction, **record.measurements}
            wandb.log({name: value for name, value in numbers.items() if value is not None}, step=record.step)


right = images = 0
with wandb.init(project="drift", mode="offline", config={"method": "roid", "reset": "asr"}) as run:
    adapter = tidefast.adapt(models.load("bundled-resnet"), "roid", reset="asr", callbacks=[Log()])
    for batch in streams.make("drift", steps=50, batch=32, seed=43):
        right += int((adapter(batch.images).argmax(1) == batch.labels).sum())
        images += len(batch)
    run.summary["accuracy"] = right / images
    folder = Path(run.dir).parent

files = [path.name for path in folder.glob("*.wandb")]
print(f"Weights & Biases wrote {len(files)} run of accuracy {right / images:.1%}; `wandb sync {folder}` uploads it")
