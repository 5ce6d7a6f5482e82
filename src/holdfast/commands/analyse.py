"""`holdfast analyse`."""

from __future__ import annotations

import argparse

PURPOSE = "answer one of the paper's questions with data, a table and a figure, on runs there are or that it launches"
EXAMPLE = "holdfast analyse collapse --out analyses"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    from holdfast.commands import studies

    parser.add_argument("what", nargs="?", help="the analysis, or all (default: list them)")
    parser.add_argument("folder", nargs="*", help="folders with runs to look at (default: launch what is needed)")
    parser.add_argument("--out", default="analyses", help="folder of the results (default %(default)s)")
    studies.arguments(parser)


def run(options: argparse.Namespace) -> None:
    """List, or analyse."""
    from pathlib import Path

    from holdfast.commands import studies
    from holdfast.report import formats
    from holdfast.studies import analyses, launch
    from holdfast.studies.analysis import registry

    if options.what is None:
        for name in registry.names():
            print(f"{name:16}  {registry.get(name).title}")
        return
    chosen = [registry.get(name)() for name in (registry.names() if options.what == "all" else [options.what])]
    assert analyses.__all__
    there = launch.finished(options.folder) if options.folder else []
    if options.folder and not there:
        raise ValueError(f"there is no finished run in {', '.join(options.folder)}")
    setting = studies.setting(options)
    if not options.folder:
        studies.obtain([one for analysis in chosen for one in analysis.experiments(setting)], options)
    for analysis in chosen:
        runs = [one for one in there if analysis.accepts(one)]
        if not options.folder:
            runs = launch.obtain(analysis.experiments(setting), Path(options.runs))
        if not runs:
            print(f"{analysis.name}: none of these runs says anything about it\n")
            continue
        finding = analysis.evaluate(runs)
        written = finding.write(Path(options.out), analysis.name)
        print(formats.render(finding.sheets, "terminal"), *(f"- {said}" for said in finding.remarks), sep="\n")
        print(f"wrote {', '.join(str(path) for path in written)}\n")
