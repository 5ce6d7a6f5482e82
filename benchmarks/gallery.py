"""Bring docs/analyses.md and docs/reproduced.md up to date with what the bundled benchmark gives.

tidefast analyse all --out analyses
tidefast reproduce all --format markdown --out analyses/reproduced.md --figures analyses
python benchmarks/gallery.py analyses

What the folder does not have stays as it is: after `tidefast analyse timer --out analyses` one section is made anew.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "analyses.md"
TABLES = ROOT / "docs" / "reproduced.md"
FIGURES = ROOT / "docs" / "images" / "analyses"
_SECTION = re.compile(r"(<!-- analysis (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def names(page: str) -> list[str]:
    """The analyses that a page has a section for, in its order."""
    return [found["name"] for found in _SECTION.finditer(page)]


def filled(page: str, results: Path) -> str:
    """The page with what the files in `results` say; sections without a file stay."""

    def section(found: re.Match[str]) -> str:
        name = found["name"]
        if not (results / f"{name}.md").is_file():
            return found[0]
        text = (results / f"{name}.md").read_text(encoding="utf-8").strip()
        text = re.sub(r"^#+ (.*)$", r"**\1**", text, flags=re.MULTILINE)  # titles of tables are no headings of the page
        return f"{found[1]}\n![{name}](images/analyses/{name}.png)\n\n{text}\n\n{found[3]}"

    return _SECTION.sub(section, page)


def tables(reproduced: str) -> str:
    """The page of all tables, from what `tidefast reproduce` wrote; figures have a page of their own."""
    sheets = re.split(r"^(?=## )", reproduced, flags=re.MULTILINE)
    kept = [sheet for sheet in sheets if not sheet.startswith("## Figure")]
    return (
        "# Every table beside ours\n\n"
        "Made by `tidefast reproduce all`; [Reproducing the paper](reproduction.md) says what to make of it, "
        "[the gallery](analyses.md) has the figures.\n\n" + "".join(kept).strip() + "\n"
    )


def main(results: Path) -> None:
    """Copy the figures, fill the pages."""
    page = PAGE.read_text(encoding="utf-8")
    FIGURES.mkdir(parents=True, exist_ok=True)
    for name in names(page):
        if (results / f"{name}.md").is_file():
            shutil.copyfile(results / f"{name}.png", FIGURES / f"{name}.png")
    PAGE.write_text(filled(page, results), encoding="utf-8")
    if (results / "reproduced.md").is_file():
        TABLES.write_text(tables((results / "reproduced.md").read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "analyses"))
