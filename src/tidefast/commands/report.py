"""`tidefast report`."""

from __future__ import annotations

import argparse

from tidefast.commands import output

PURPOSE = "tables and a page of any set of runs, finished or not"
EXAMPLE = "tidefast report runs/main --format latex --table accuracy --out accuracy.tex"
EXTRA = "bench"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("folder", nargs="+", help="folders with runs in them, at any depth")
    parser.add_argument(
        "--table",
        action="append",
        choices=("accuracy", "gains", "resets", "visits", "signs", "published", "beside"),
        help="only this table; may be repeated (default: all that have something to say)",
    )
    output.arguments(parser)
    page = parser.add_mutually_exclusive_group()
    page.add_argument("--html", metavar="FILE", help="where the page goes (default: report.html in the first folder)")
    page.add_argument("--no-html", action="store_true", help="write no page")
    parser.add_argument("--partial", action="store_true", help="count runs that are not finished")
    parser.add_argument(
        "--accuracy",
        choices=("auto", "images", "domains", "visits"),
        default="auto",
        help="what an accuracy is the mean over (default: what is usual for each stream)",
    )
    parser.add_argument(
        "--pool", action="append", default=[], metavar="OPTION", help="average over this option of the streams too"
    )
    parser.add_argument(
        "--beside", action="store_true", help="show the paper's numbers beside small benchmarks, for orientation"
    )


def run(options: argparse.Namespace) -> None:
    """Read the runs, write the tables and the page."""
    from pathlib import Path

    from rich.console import Console

    from tidefast.paper import beside
    from tidefast.report import runs_page
    from tidefast.report.arrangement import Arrangement, read
    from tidefast.report.comparison import Comparison

    with Console(stderr=True).status("reading runs"):
        arrangement = Arrangement(read(options.folder), options.pool)
    comparison = Comparison(arrangement, partial=options.partial, accuracy=options.accuracy)
    sheets = [*comparison.sheets(), beside.reproduced(comparison)]
    if options.beside or "beside" in (options.table or ()):
        sheets.append(beside.for_orientation(comparison))
    sheets = [sheet for sheet in sheets if sheet.rows]
    chosen = [sheet for sheet in sheets if not options.table or sheet.key in options.table]
    if not chosen:
        raise ValueError(f"these runs have nothing for the table {', '.join(options.table)}")
    if not options.no_html:
        page = options.html or str(Path(options.folder[0]) / "report.html")
        with Console(stderr=True).status("drawing"):
            text = runs_page.render(f"Runs in {', '.join(options.folder)}", arrangement, sheets)
        output.write(page, text, "--html")
    output.put(chosen, options.format, options.out)
