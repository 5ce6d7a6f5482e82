"""Run the demonstration from beginning to end: let the contestants run, write the page."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from tidefast import bench, report
from tidefast.bench import Experiment
from tidefast.core.files import LOCK
from tidefast.core.validation import require_count, require_device
from tidefast.demo import display, samples
from tidefast.demo.contestants import TOO_HIGH, Contestant, pick_contestants
from tidefast.errors import FolderError

LEARNING_RATE = 1e-3
CANARIES = {"bundled-resnet": "bundled-train", "bundled-vit": "bundled-train"}
"""Images that a network was trained on, for the guard; of others it gets clean images of the stream's own set."""
SAMPLES, REPORT = "samples.npz", "report.html"


@dataclass(frozen=True)
class Demonstration:
    """Which stream and network, how long, and where: the runs, the sample images and the page are below `out`."""

    out: Path
    steps: int = 1600
    batch: int = 32
    seed: int = 0
    stream: str = "drift"
    model: str = "bundled-resnet"
    device: str = "cpu"

    @property
    def title(self) -> str:
        """Of the page."""
        return "Does it hold? Test-time adaptation on a stream that never stops drifting"

    def __post_init__(self) -> None:
        require_count("--steps", self.steps, low=8)
        require_count("--batch", self.batch, low=2)
        require_count("--seed", self.seed, low=0)

    def experiment(self, contestant: Contestant) -> Experiment:
        """What a contestant runs."""
        return Experiment(
            self.stream,
            contestant.method,
            reset=contestant.reset,
            model=self.model,
            optimizer={"name": "adam", "lr": contestant.rate * LEARNING_RATE},
            source=CANARIES.get(self.model) if contestant.reset.name == "guard" else None,
            seed=self.seed,
            steps=self.steps,
            batch=self.batch,
            device=self.device,
        )

    def content(self, contestants: list[Contestant]) -> report.ReportData:
        """Everything that the page shows, from what is on disk now."""
        shown, classes = samples.load(self.out / SAMPLES)
        return report.ReportData(
            title=self.title,
            histories=[self._track(contestant) for contestant in contestants],
            reference="source",
            classes=classes,
            samples=shown,
            facts=self.facts(contestants),
            floor="batchnorm",
        )

    def _track(self, contestant: Contestant) -> report.ContestantHistory:
        try:
            run = bench.load(self.out / self.experiment(contestant).key)
        except FolderError:
            return report.ContestantHistory.empty(contestant.key, contestant.label, self.steps)
        return report.history_of(run, contestant.key, contestant.label)

    def facts(self, contestants: list[Contestant]) -> dict[str, str]:
        """How it was made."""
        return {
            "Stream": f"{self.stream}: {self.steps:,} batches of {self.batch} images "
            f"({self.steps * self.batch:,} in all), seed {self.seed}",
            "Network": self.model,
            "Settings": f"the same for all but the learning rate: Adam, {LEARNING_RATE:g}, or as many times that as a "
            "name says; RDumb's period is a quarter of the stream; nothing was tuned on it",
            "Who is to fall": f"Tent at {TOO_HIGH:g} times its rate: the lowest of 1, 10 and 30 times at which it ends "
            "at chance on a stream of another seed; that alone decided",
            **{c.label: f"{c.method.spelled}, reset {c.reset.spelled}" for c in contestants},
        }


@dataclass(frozen=True)
class DemoOutcome:
    """How it ended: the page, the numbers behind it, whether it was interrupted, and who failed and why."""

    page: Path
    content: report.ReportData
    interrupted: bool
    failures: dict[str, str]


def run(
    out: str | os.PathLike[str] = "runs/demo",
    *,
    steps: int = 1600,
    batch: int = 32,
    seed: int = 0,
    full: bool = False,
    fresh: bool = False,
    keys: list[str] | None = None,
    workers: int = 2,
    snapshot_every: int = 50,
    stream: str = "drift",
    model: str = "bundled-resnet",
    device: str = "cpu",
    console: Console | None = None,
) -> DemoOutcome:
    """Let the contestants adapt side by side to one stream, and write `report.html` into the folder `out`.

    What is in the folder already is continued, bit for bit, from the last snapshot; finished contestants are not run
    again, and runs of other settings stay beside them. `fresh` deletes earlier runs of these settings first.

    full: the longer line-up. keys: only these contestants. workers: processes at once, one thread each.
    snapshot_every: a killed run loses at most so many batches; Ctrl-C loses none.
    stream, model, device: parts of an `Experiment`.
    """
    require_count("--workers", workers)
    require_device(device)
    require_count("--snapshot-every", snapshot_every)
    demonstration = Demonstration(Path(out), steps, batch, seed, stream, model, device)
    contestants = pick_contestants(steps, full, keys)
    return perform(demonstration, contestants, workers, snapshot_every, fresh=fresh, console=console or Console())


def perform(
    demonstration: Demonstration,
    contestants: list[Contestant],
    workers: int,
    snapshot_every: int,
    *,
    fresh: bool,
    console: Console,
) -> DemoOutcome:
    """Let them run, and write the page."""
    steps, batch = demonstration.steps, demonstration.batch
    dearest_first = sorted(contestants, key=lambda contestant: -contestant.cost)
    experiments = [demonstration.experiment(contestant) for contestant in dearest_first]
    keys_of = {
        experiment.key: contestant.key for experiment, contestant in zip(experiments, dearest_first, strict=True)
    }
    claim(demonstration.out)
    with console.status("making the stream"):
        samples.save(demonstration.out / SAMPLES, bench.stream_of(experiments[0]), steps)
    console.print(
        f"{steps} batches of {batch} images; {len(contestants)} contestants, {workers} processes at a time. "
        "Ctrl-C ends early, with a report of what ran; the same command then continues.",
        highlight=False,
    )
    outcomes, interrupted = [], False
    with display.Live(console, demonstration.out, contestants) as live:
        try:
            outcomes = bench.sweep(
                experiments,
                demonstration.out,
                jobs=workers,
                threads=1,
                snapshot_every=snapshot_every,
                fresh=fresh,
                watch=lambda progress: live.show({keys_of[status.experiment.key]: status for status in progress}),
            )
        except KeyboardInterrupt:
            interrupted = True
    failures = {keys_of[o.experiment.key]: o.error for o in outcomes if o.error is not None}
    told = demonstration.content(contestants)
    page = demonstration.out / REPORT
    report.write(told, page)
    console.print(display.results(told))
    for contestant in contestants:
        if contestant.key in failures:
            console.print(f"[red]{contestant.label} failed:[/] {failures[contestant.key]}", highlight=False)
    for line in report.conclusions(told):
        console.print(line, highlight=False)
    if interrupted:
        console.print("Interrupted: the same command continues where it stopped; --fresh starts over.")
    console.print(f"Report: {page}", highlight=False, soft_wrap=True)
    return DemoOutcome(page, told, interrupted, failures)


def claim(folder: Path) -> None:
    """Make and mark the folder of a demonstration: not one that holds something else."""
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file: choose another folder")
    if folder.exists() and any(folder.iterdir()) and not (folder / LOCK).is_file():
        raise FolderError(f"{folder} is not empty and holds no demonstration: choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LOCK).touch()
