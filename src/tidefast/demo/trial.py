"""Somebody's own model on their own images under drift, for a few minutes: is adapting worth it, and how is it done?"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from tidefast import bench, report
from tidefast.bench import Experiment, assembly
from tidefast.core.files import write_atomically
from tidefast.core.specification import Specification
from tidefast.core.validation import require_count, require_device
from tidefast.datasets import DatasetError
from tidefast.demo.contestants import Contestant, pick_contestants
from tidefast.demo.demo import CANARIES, Demonstration, DemoOutcome, claim, perform
from tidefast.report.headline import percent

CONTESTANTS = ("source", "batchnorm", "roid", "roid+guard")
SAME = 0.5
"""Points of accuracy within which the guarded method is preferred: it holds the floor when something goes wrong."""
SHORTEST, LONGEST = 24, 2000
"""Batches."""
LENGTH = "trial.json"


@dataclass(frozen=True)
class Trial(Demonstration):
    """The same with somebody's own images, at the published learning rate or one of theirs."""

    data: str = "bundled"
    optimizer: str | None = None
    images: dict[str, Any] = field(default_factory=dict)
    """Size, resize and classes, as streams take them."""
    advice: str = ""

    @property
    def title(self) -> str:
        return f"Does adapting help? {self.model} on {self.data}, under drift"

    @property
    def canaries(self) -> str | None:
        """For the guard; left out, clean images of the stream's own set."""
        return CANARIES.get(self.model) if self.data == "bundled" else None

    def experiment(self, contestant: Contestant) -> Experiment:
        stream = Specification.parse(self.stream)
        return Experiment(
            Specification(stream.name, {"data": self.data, **self.images, **stream.options}),
            contestant.method,
            reset=contestant.reset,
            model=self.model,
            optimizer=self.optimizer,
            source=self.canaries if contestant.reset.name == "guard" else None,
            seed=self.seed,
            steps=self.steps,
            batch=self.batch,
            device=self.device,
        )

    def facts(self, contestants: list[Contestant]) -> dict[str, str]:
        chosen = self.optimizer or "as published for each method"
        told = {name: value for name, value in super().facts(contestants).items() if name != "Who is to fall"}
        told |= {"Images": self.data, "Settings": f"optimiser: {chosen}; nothing was tuned on this stream"}
        return {**told, **({"What to use": self.advice} if self.advice else {})}


def run(
    model: str,
    data: str,
    out: str | os.PathLike[str] = "runs/try",
    *,
    minutes: float = 5.0,
    steps: int | None = None,
    batch: int = 16,
    seed: int = 0,
    stream: str = "drift",
    optimizer: str | None = None,
    images: dict[str, Any] | None = None,
    workers: int = 2,
    device: str = "cpu",
    fresh: bool = False,
    console: Console | None = None,
) -> DemoOutcome:
    """Let source, batch statistics and the recommended method, with and without its policy, see one drifting stream.

    model: a registered network or "module:function". data: images with labels, as `datasets.open` takes them;
    images: how they are made ready (size, resize, classes).
    minutes: about so long; `steps` says it in batches instead. What is in the folder `out` already goes on.
    device: where the network is.
    A model that knows clean images no better than chance is refused: a trial would say nothing.
    """
    console = console or Console()
    require_count("--workers", workers)
    require_device(device)
    trial = Trial(Path(out), 8, batch, seed, stream, model, device, os.fspath(data), optimizer, images or {})
    contestants = pick_contestants(LONGEST, keys=list(CONTESTANTS))
    _tell_clean_accuracy(trial, contestants[0], console)
    if steps is None:
        steps = _length(trial, contestants, minutes, workers, fresh, console)
    trial = dataclasses.replace(trial, steps=steps)
    outcome = perform(trial, contestants, workers, 50, fresh=fresh, console=console)
    if not outcome.interrupted and not outcome.failures:
        side = bench.stream_of(trial.experiment(contestants[0]))[0].images.shape[-1]
        advice = recommended(outcome.content, contestants, trial, side if Path(trial.data).is_dir() else None)
        trial = dataclasses.replace(trial, advice=advice)
        content = trial.content(contestants)
        report.write(content, outcome.page)
        console.print(advice, highlight=False, soft_wrap=True)
        outcome = dataclasses.replace(outcome, content=content)
    return outcome


def recommended(
    content: report.ReportData, contestants: list[Contestant], trial: Trial, side: int | None = None
) -> str:
    """Which of the contestants was best, by how much over the model as it is, and the line of code that makes it.

    side: of the images, where they come from files.
    """
    overall = {history.key: history.overall for history in content.histories}
    best = max(contestants, key=lambda c: overall[c.key] + SAME / 100 * (c.reset.name == "guard"))
    gain = 100 * (overall[best.key] - overall["source"])
    if best.key == "source" or gain < 1.0:
        return (
            f"Stay with the model as it is: {percent(overall['source'])} % of this stream right, and nobody is a point "
            "above it."
        )
    python, shell = f'"{best.method.name}"', f"--method {best.method.name}"
    if best.reset.name == "guard":
        python += ', reset="guard", source=canaries'
        size = "" if side is None else f":size={side}"
        shell += f" --reset guard --canaries {shlex.quote(trial.canaries or trial.data + size)}"
    if trial.optimizer is not None:
        python += f', optimizer="{trial.optimizer}"'
        shell += f" --optimizer {shlex.quote(trial.optimizer)}"
    canaries = ", with some hundred unlabelled images from before the drift as canaries" * (best.reset.name == "guard")
    return (
        f"{best.label} has {percent(overall[best.key])} % of this stream right, {gain:.1f} points more than the model "
        f"as it is: adapter = tidefast.adapt(model, {python}){canaries}; or over HTTP: "
        f"tidefast serve --model {shlex.quote(trial.model)} {shell}"
    )


def _tell_clean_accuracy(trial: Trial, contestant: Contestant, console: Console) -> None:
    with console.status("asking about clean images"):
        clean = assembly.clean_accuracy_of(trial.experiment(contestant))
    if clean is not None and clean.at_chance:
        raise DatasetError(f"{clean.doubt}; until then a trial would say nothing")
    console.print(f"{trial.model}, not adapted: {clean or 'no clean images to ask about'}", highlight=False)


def _length(
    trial: Trial, contestants: list[Contestant], minutes: float, workers: int, fresh: bool, console: Console
) -> int:
    """Batches that take about so many minutes, measured once for a folder."""
    kept = trial.out / LENGTH
    if kept.is_file() and not fresh:
        return int(json.loads(kept.read_text())["steps"])
    costliest = max(contestants, key=lambda contestant: contestant.cost)
    short = trial.experiment(costliest)
    with console.status("timing a step"):
        stream = bench.stream_of(short)
        adapter = bench.adapter_of(short, bench.model_of(short), stream)
        seconds = []
        for at in range(3):
            images = stream[at].images
            started = time.perf_counter()
            adapter(images)
            seconds.append(time.perf_counter() - started)
    of_all = min(seconds) * sum(contestant.cost for contestant in contestants) / costliest.cost
    steps = int(min(LONGEST, max(SHORTEST, 60 * minutes * workers / of_all)))
    claim(trial.out)
    write_atomically(kept, json.dumps({"steps": steps, "minutes": minutes}).encode())
    return steps
