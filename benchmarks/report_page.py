"""The picture of the report in docs/index.md, from the page of a demonstration.

tidefast demo
python benchmarks/report_page.py runs/demo/report.html

Needs the system's Chromium (or TIDEFAST_BROWSER), and shows the page down to its curves.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import PIL.Image
from live_page import opened

OUT = Path(__file__).parents[1] / "docs" / "images" / "report.png"


def main(report: str) -> None:
    """Photograph, write."""
    with opened(Path(report).resolve().as_uri(), height=1000) as page:
        page.wait_for_timeout(1000)
        end = page.get_by_role("heading", level=2).nth(3).bounding_box()
        height = 1500.0 if end is None else end["y"] - 24
        page.set_viewport_size({"width": 1100, "height": int(height)})
        page.wait_for_timeout(500)
        taken = PIL.Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    taken.save(OUT, optimize=True)
    print(f"{OUT} ({OUT.stat().st_size} bytes)")


if __name__ == "__main__":
    main(*sys.argv[1:])
