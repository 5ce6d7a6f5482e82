"""`tidefast analyse`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tidefast.commands import paper_runs

if TYPE_CHECKING:
    from tidefast.bench import Run
    from tidefast.paper.analysis import Analysis

PURPOSE = "answer one of the paper's questions with data, a table and a figure, on runs there are or that it launches"
EXAMPLE = "tidefast analyse collapse --out analyses"
EXTRA = "figures"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("what", nargs="?", help="the analysis, or all (default: list them)")
    parser.add_argument("folder", nargs="*", help="folders with runs to look at (default: launch what is needed)")
    parser.add_argument("--out", default="analyses", help="folder of the results (default %(default)s)")
    paper_runs.arguments(parser)


def run(options: argparse.Namespace) -> None:
    """List, or analyse."""
    from tidefast.paper import study
    from tidefast.paper.analyses import registry

    if options.what is None:
        for name in registry.names():
            print(f"{name:16}  {registry.get(name).title}")
        return
    every = options.what == "all"
    chosen = [registry.get(name)() for name in (registry.names() if every else [options.what])]
    there = study.finished(options.folder)
    if options.folder and not there:
        raise ValueError(f"there is no finished run in {', '.join(options.folder)}")
    setting = paper_runs.setting(options)
    if not options.folder:
        paper_runs.obtain([experiment for analysis in chosen for experiment in analysis.experiments(setting)], options)
    written = 0
    for analysis in chosen:
        try:
            runs = there or study.obtain(analysis.experiments(setting), Path(options.runs))
            _write(
                analysis,
                [candidate for candidate in runs if not there or analysis.accepts(candidate)],
                Path(options.out),
            )
            written += 1
        except (study.StudyError, ValueError) as error:
            if not every:
                raise
            print(f"{analysis.name}: {' '.join(str(error).split())}\n")
    if every:
        print(f"{written} of {len(chosen)} analyses were written to {options.out}")


def _write(analysis: Analysis, runs: list[Run], folder: Path) -> None:
    """Evaluate runs, and write and show what they say."""
    from tidefast.report import formats

    if not runs:
        raise ValueError(
            f"none of these runs says anything about {analysis.name}; without a folder it runs what it needs"
        )
    finding = analysis.evaluate(runs)
    files = finding.write(folder, analysis.name)
    print(formats.render(finding.sheets, "terminal"), *(f"- {remark}" for remark in finding.remarks), sep="\n")
    print(f"wrote {', '.join(str(path) for path in files)}\n")
