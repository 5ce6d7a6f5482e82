"""Run the demonstration from beginning to end: settle the folder, let the contestants run, write the page."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from holdfast import report, snapshot
from holdfast.showcase import contestants, display, results, samples
from holdfast.showcase.crew import Crew
from holdfast.showcase.folder import STEPS, Folder
from holdfast.showcase.settings import Settings
from holdfast.validation import require_count


@dataclass(frozen=True)
class Outcome:
    """How it ended: the page, the numbers behind it, whether it was interrupted, and who failed and why."""

    page: Path
    story: report.Story
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
    console: Console | None = None,
) -> Outcome:
    """Let the contestants adapt side by side to one stream, and write `report.html` into the folder `out`.

    What is in the folder already is continued, bit for bit, from the last snapshot; finished contestants are not run
    again. `fresh` deletes earlier results first. A folder of other settings is refused with a FolderError.

    full: the longer line-up. keys: only these contestants. workers: processes at once, one thread each.
    snapshot_every: a killed run loses at most so many batches; Ctrl-C loses none.
    stream, model: registered names, or `module:function`; see `Settings`.
    """
    require_count("--workers", workers)
    require_count("--snapshot-every", snapshot_every)
    settings = Settings(steps=steps, batch=batch, seed=seed, stream=stream, model=model)
    lineup = contestants.lineup(steps, full, keys)
    console = console or Console()
    folder = Folder(out)
    with folder.lock():
        weights = snapshot.digest_of(settings.load_model().state_dict())
        folder.claim(settings, weights, lineup, fresh)
        if not folder.samples.is_file():
            with console.status("making the stream"):
                samples.save(folder.samples, settings.make_stream(), steps)
        tracks = {c.key: results.track(folder.of(c.key) / STEPS, c, steps) for c in lineup}
        unfinished = [c for c in lineup if tracks[c.key].batches < steps]
        console.print(
            f"{steps} batches of {batch} images; {len(lineup)} contestants, {workers} processes at a time. "
            "Ctrl-C ends early, with a report of what ran; the same command then continues.",
            highlight=False,
        )
        with display.Live(console, lineup, steps, workers) as live:
            for contestant in lineup:
                if contestant not in unfinished:
                    live.finished(contestant.key, tracks[contestant.key])
            crew = Crew(settings, folder, workers, snapshot_every, live)
            complete = crew.run(unfinished)
        told = results.story(folder.path, lineup)
        report.write(told, folder.report)
    console.print(display.results(told))
    for line in report.conclusions(told):
        console.print(line, highlight=False)
    if not complete:
        console.print("Interrupted: the same command continues where it stopped; --fresh starts over.")
    console.print(f"Report: {folder.report}", highlight=False, soft_wrap=True)
    return Outcome(folder.report, told, not complete, crew.failures)
