"""`tidefast reproduce`."""

from __future__ import annotations

import argparse

from tidefast.commands import output, paper_runs

PURPOSE = "run what a table or figure of the paper needs, and show ours beside theirs"
EXAMPLE = "tidefast reproduce table 5"
EXTRA = "bench"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "what", nargs="*", help="tables and figures: 5, table 5, tab:ablate, fig:collapse; or all (default: list them)"
    )
    parser.add_argument(
        "--list", action="store_true", help="only say what each needs, how much is finished, how long the rest takes"
    )
    parser.add_argument("--no-run", action="store_true", help="launch nothing: show what finished runs say, and dashes")
    parser.add_argument(
        "--base", help="the method that the ablation tables are about (default: ETA; with --full the paper's ROID)"
    )
    parser.add_argument("--all-rows", action="store_true", help="all contestants also where few are run by default")
    output.arguments(parser)
    parser.add_argument(
        "--figures", metavar="FOLDER", default="reproduction", help="where figures go (default %(default)s)"
    )
    paper_runs.arguments(parser)


def run(options: argparse.Namespace) -> None:
    """List, or run what is missing and show what came out."""
    import sys
    from pathlib import Path

    from tidefast.paper import reproduction, study
    from tidefast.paper.reproduction.catalogue import absent, catalogue

    listed = options.list or not options.what
    setting, folder = paper_runs.setting(options), Path(options.runs)
    targets = reproduction.chosen(options.what or ["all"], setting, base=options.base, all_rows=options.all_rows)
    if listed:
        output.put([catalogue(targets, folder, options.jobs)], options.format, options.out)
        return
    failure: study.StudyError | None = None
    wanted = [experiment for target in targets for experiment in target.experiments]
    if not options.no_run and wanted:
        lacking = absent(wanted)
        if lacking:
            raise ValueError(f"{', '.join(target.label for target in targets)}: give {', and '.join(lacking)}")
        try:
            paper_runs.obtain(wanted, options)
        except study.StudyError as error:  # what did finish is shown all the same
            failure = error
    runs = study.there(wanted, folder)
    outcomes = [target.outcome(runs, Path(options.figures)) for target in targets]
    sheets = [sheet for outcome in outcomes for sheet in outcome.sheets]
    if len(outcomes) > 1:
        sheets.insert(0, reproduction.summary(outcomes))
    for outcome in outcomes:
        if outcome.remark and not outcome.sheets:
            print(f"{outcome.label}: {outcome.remark}", file=sys.stderr)
        if outcome.files:
            print(f"wrote {', '.join(str(path) for path in outcome.files)}", file=sys.stderr)
    if sheets:
        output.put(sheets, options.format, options.out)
    if failure is not None:
        raise failure
