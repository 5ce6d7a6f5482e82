"""Run one experiment: adapt, write down, take a snapshot now and then; the same call again goes on where it was."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from tidefast.adapter import Adapter
from tidefast.bench import assembly, calibration, environment, metrics
from tidefast.bench.experiment import Experiment
from tidefast.bench.ledger import DIGESTS, VARIANTS, Ledger, LedgerRow, digest
from tidefast.bench.results import (
    ENVIRONMENT,
    ERROR,
    EXPERIMENT,
    RESULT,
    SNAPSHOT,
    Run,
    load,
    read_environment,
    read_json,
)
from tidefast.core import losses, snapshot
from tidefast.core.files import LOCK, locked, write_atomically
from tidefast.core.validation import require_count
from tidefast.datasets import DatasetError
from tidefast.errors import FolderError, SnapshotError
from tidefast.streams import Batch, Seekable

_log = logging.getLogger("tidefast")

ProgressCallback = Callable[[int, int, float], None]
"""Called with the batches seen, those of the whole stream, and the accuracy so far."""


def run(
    experiment: Experiment,
    out: str | os.PathLike[str],
    *,
    snapshot_every: int = 100,
    prefetch: int = 0,
    tensorboard: str | os.PathLike[str] | None = None,
    progress: ProgressCallback | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    fresh: bool = False,
    patience: float = 0.0,
    batches: Path | None = None,
) -> Run:
    """Run an experiment in the folder `out`, from its last snapshot on, and return what is on disk then.

    A finished run is not run again; with more `steps` it goes on, to the bits of a run that had them from the first.
    A folder that holds another experiment is refused; `fresh` deletes what was there.
    snapshot_every: a killed run loses at most so many batches. prefetch: processes that make batches ahead of time.
    should_stop: asked after every batch; True ends early, with a snapshot. patience: seconds to wait while another
    process is in the folder. batches: a folder of batches that runs share (see `streams.CachedStream`), to the same
    bits.
    """
    require_count("snapshot_every", snapshot_every)
    require_count("prefetch", prefetch, low=0)
    assembly.check(experiment)
    folder = Path(out)
    _refuse_foreign(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, patience=patience):
        if fresh:
            clear(folder)
        claim(folder, experiment)
        if not (folder / RESULT).is_file():
            (folder / ERROR).unlink(missing_ok=True)
            with _tensorboard(tensorboard) as log:
                _go_on(experiment, folder, snapshot_every, prefetch, log, progress, should_stop, batches)
    return load(folder)


def _go_on(
    experiment: Experiment,
    folder: Path,
    snapshot_every: int,
    prefetch: int,
    log: Callable[[LedgerRow], None],
    progress: ProgressCallback | None,
    should_stop: Callable[[], bool],
    kept: Path | None,
) -> None:
    model, stream = assembly.model_of(experiment), assembly.stream_of(experiment, kept)
    clean = assembly.clean_accuracy_of(experiment)
    if clean is not None and clean.at_chance:
        _log.warning("%s", clean.doubt)
    adapter = assembly.adapter_of(experiment, model, stream)
    ledger = Ledger(folder, adapter.measures)
    _note_environment(folder, model, stream, given_length=experiment.steps is not None)
    _resume(adapter, ledger)
    correct, images = _so_far(folder)
    with contextlib.closing(stream.batches(start=adapter.step, workers=prefetch)) as batches:
        for batch in batches:
            row = _step(adapter, batch)
            ledger.append(row)
            log(row)
            correct, images = correct + row.correct, images + row.images
            stop = should_stop()
            if stop or row.step % snapshot_every == 0 or row.step == len(stream):
                _save(adapter, ledger)
            if progress is not None:
                progress(row.step, len(stream), correct / images)
            if stop and row.step < len(stream):
                return
    _finish(folder, ledger, len(stream))


def _step(adapter: Adapter, batch: Batch) -> LedgerRow:
    started = time.perf_counter()
    logits = adapter(batch.images.to(adapter.network.device)).cpu()
    seconds = time.perf_counter() - started
    record = adapter.last
    assert record is not None
    classes = logits.shape[1]
    if int(batch.labels.max()) >= classes:
        raise DatasetError(
            f"batch {batch.index} of the stream has the label {int(batch.labels.max())}, the model answers with "
            f"{classes} classes: labels are to be the model's, 0 to {classes - 1}"
        )
    predicted = logits.argmax(1)
    right = predicted == batch.labels
    spans, first = [], 0
    for span in batch.spans:
        spans.append(
            {
                "domain": str(span.domain),
                "visit": span.visit,
                "images": span.images,
                "correct": int(right[first : first + span.images].sum()),
            }
        )
        first += span.images
    return LedgerRow(
        step=record.step,
        images=len(predicted),
        correct=int(right.sum()),
        selected=record.selected,
        loss=record.loss,
        # Every run has the concentration, to be compared by; a policy that measures it sees uncorrected logits.
        measurements={**_of_predictions(logits), **record.measurements},
        reset_fraction=record.reset_fraction,
        nonfinite=record.nonfinite,
        skipped=record.skipped,
        predicted=torch.bincount(predicted, minlength=classes).tolist(),
        labels=torch.bincount(batch.labels, minlength=classes).tolist(),
        reliability=calibration.kept_of(logits, batch.labels),
        spans=spans,
        seconds=seconds,
    )


def _of_predictions(logits: torch.Tensor) -> dict[str, float]:
    """The concentration, and its variants."""
    tenth = max(1, logits.numel() // 10)
    variants = (-losses.marginal_entropy(logits), *(losses.trimmed_concentration(logits, n) for n in (1, tenth)))
    return {
        "concentration": float(losses.concentration(logits)),
        **dict(zip(VARIANTS, map(float, variants), strict=True)),
    }


def _save(adapter: Adapter, ledger: Ledger) -> None:
    """The rows first: a snapshot is never ahead of them."""
    ledger.flush()
    adapter.save(ledger.folder / SNAPSHOT)


def _resume(adapter: Adapter, ledger: Ledger) -> None:
    path = ledger.folder / SNAPSHOT
    if path.is_file():
        try:
            adapter.load(path)
        except SnapshotError as error:
            raise SnapshotError(f"{error}; start over with --fresh (fresh=True)") from error
    ledger.rewind(adapter.step)


def _finish(folder: Path, ledger: Ledger, total: int) -> None:
    """The result is written last: where it is, everything else is."""
    digests = ledger.finish(total)
    result = json.dumps(metrics.summary(load(folder)), indent=1, allow_nan=False).encode()
    digests |= {RESULT: digest(result), ENVIRONMENT: digest((folder / ENVIRONMENT).read_bytes())}
    write_atomically(folder / DIGESTS, json.dumps(digests, indent=1).encode())
    write_atomically(folder / RESULT, result)
    ledger.clear()


def _so_far(folder: Path) -> tuple[int, int]:
    steps = load(folder).steps
    return int(steps["correct"].sum()), int(steps["images"].sum())


def _note_environment(folder: Path, model: torch.nn.Module, stream: Seekable, *, given_length: bool) -> None:
    """given_length: the stream is as long as was asked, so another length than noted means that more was asked."""
    noted = read_environment(folder)
    if noted is not None and given_length and noted["batches"] != len(stream):
        (folder / DIGESTS).unlink(missing_ok=True)  # of an end that was interrupted, and written anew at the next
        write_atomically(folder / ENVIRONMENT, json.dumps({**noted, "batches": len(stream)}, indent=1).encode())
    if noted is None:
        facts = {
            **environment.describe(),
            "weights": snapshot.digest_of(model.state_dict()),
            "batches": len(stream),
            "classes": list(stream.classes),
        }
        write_atomically(folder / ENVIRONMENT, json.dumps(facts, indent=1).encode())


def claim(folder: Path, experiment: Experiment) -> None:
    """Make the folder this experiment's, under its present titles; refuse one that holds another.

    One that holds the beginning of this experiment is made ready to go on.
    """
    stored, wanted = read_json(folder / EXPERIMENT), experiment.as_plain()
    if stored is not None:
        there = Experiment.of(stored)
        if there == experiment:
            pass
        elif not _has_rows(folder):  # nothing was done that could mix
            clear(folder)
        elif _is_longer(experiment, there):
            _require_same_beginning(there, experiment, folder)
            _reopen(folder)
        else:
            old, new = there.as_plain(), wanted
            names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
            differences = ", ".join(f"{name} {old.get(name)!r} there, {new.get(name)!r} asked" for name in names)
            raise FolderError(
                f"{folder} holds another experiment ({differences}): choose another folder, or start over with "
                "--fresh, which deletes it"
            )
    write_atomically(folder / EXPERIMENT, json.dumps(wanted, indent=1).encode())


def _has_rows(folder: Path) -> bool:
    """Whether a run got so far that anything of it is kept."""
    return any((folder / name).exists() for name in (SNAPSHOT, RESULT, *Ledger.FILES)) or Ledger(folder).written() > 0


def _is_longer(experiment: Experiment, there: Experiment) -> bool:
    """Whether an experiment is another one with more steps, and nothing else is different."""
    if experiment.steps is None or there.steps is None or "steps" in experiment.stream.options:
        return False
    return experiment.steps > there.steps and dataclasses.replace(there, steps=experiment.steps) == experiment


def _require_same_beginning(there: Experiment, experiment: Experiment, folder: Path) -> None:
    """That the longer stream begins like the shorter one: the domains of all batches, and the images of three."""
    shorter, longer = assembly.stream_of(there), assembly.stream_of(experiment)
    last = len(shorter) - 1
    same = (
        shorter.classes == longer.classes
        and all(shorter.spans(k) == longer.spans(k) for k in range(len(shorter)))
        and all(_same_images(shorter[k], longer[k]) for k in sorted({0, last // 2, last}))
    )
    if not same:
        raise FolderError(
            f"{folder} holds a run of {there.steps} steps that cannot be extended to {experiment.steps}: the stream "
            f"{experiment.stream.name!r} depends on its length, so the longer one does not begin like the shorter. "
            "Choose another folder, or start over with --fresh, which deletes it"
        )


def _same_images(batch: Batch, other: Batch) -> bool:
    return torch.equal(batch.labels, other.labels) and torch.equal(batch.images, other.images)


def _reopen(folder: Path) -> None:
    """Make a run, finished or not, one that is under way; killed at any moment, either length can go on."""
    if (folder / RESULT).is_file():
        Ledger(folder).reopen()
    for name in (RESULT, *Ledger.FILES, DIGESTS):
        (folder / name).unlink(missing_ok=True)


def _refuse_foreign(folder: Path) -> None:
    if folder.is_symlink() and not folder.exists():
        raise FolderError(f"{folder} is a symbolic link to {folder.readlink()}, which is not there: make it first")
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file: choose another folder")
    held = {entry.name for entry in folder.iterdir()} - {LOCK} if folder.exists() else set()
    if held and EXPERIMENT not in held:
        raise FolderError(f"{folder} is not empty and holds no run: choose another folder")


def clear(folder: Path) -> None:
    """Delete a run, and nothing that is not one's."""
    ledger = Ledger(folder)
    ledger.clear()
    for name in (RESULT, SNAPSHOT, DIGESTS, *Ledger.FILES, ENVIRONMENT, ERROR, EXPERIMENT):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "tensorboard", ignore_errors=True)


@contextlib.contextmanager
def _tensorboard(folder: str | os.PathLike[str] | None) -> Iterator[Callable[[LedgerRow], None]]:
    if folder is None:
        yield lambda row: None
        return
    from tidefast.bench.tensorboard import TensorBoard

    with TensorBoard(folder) as board:
        yield lambda row: board.step(row.step, **_scalars(row))


def _scalars(row: LedgerRow) -> dict[str, Any]:
    trust = {name: row.reliability[name] / row.images for name in ("likelihood_loss", "brier_score")}
    own = {"accuracy": row.correct / row.images, **trust, "loss": row.loss, "selected": row.selected}
    measured = {name: value for name, value in row.measurements.items() if name not in VARIANTS}
    return {**own, "reset_fraction": row.reset_fraction, **measured}
