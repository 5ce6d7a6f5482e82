"""Log a run of an adapter to MLflow, in a local file: no server, no account (needs `pip install mlflow`)."""

from __future__ import annotations

from pathlib import Path

import mlflow

import tidefast
from tidefast import models, streams


class Log:
    """A callback that hands every tenth record to MLflow."""

    def __call__(self, adapter: tidefast.Adapter, record: tidefast.StepRecord) -> None:
        if record.step % 10 == 0:
            numbers = {"loss": record.loss, "reset_fraction": record.reset_fraction, **record.measurements}
            mlflow.log_metrics({name: value for name, value in numbers.items() if value is not None}, step=record.step)


mlflow.set_tracking_uri(f"sqlite:///{Path('mlflow.db').resolve()}")
mlflow.set_experiment("drift")
right = images = 0
with mlflow.start_run() as run:
    mlflow.log_params({"method": "roid", "reset": "asr"})
    adapter = tidefast.adapt(models.load("bundled-resnet"), "roid", reset="asr", callbacks=[Log()])
    for batch in streams.make("drift", steps=50, batch=32, seed=43):
        right += int((adapter(batch.images).argmax(1) == batch.labels).sum())
        images += len(batch)
    mlflow.log_metric("accuracy", right / images)

stored = mlflow.MlflowClient()
losses = stored.get_metric_history(run.info.run_id, "loss")
accuracy = stored.get_run(run.info.run_id).data.metrics["accuracy"]
print(f"MLflow has {len(losses)} losses, the last of step {losses[-1].step}, and the accuracy {accuracy:.1%}")
