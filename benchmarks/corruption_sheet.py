"""Draw the contact sheet of all corruptions at severities 1 to 5 (docs/images/corruptions.png).

    pip install pillow scikit-learn
    python benchmarks/corruption_sheet.py docs/images/corruptions.png

Tiles are cut from 224-pixel images without rescaling, so that noise and blocks have their true size.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_sample_image

from tidefast.corruptions import corrupt, names

SIDE, TILE, GAP, LABEL, HEADER, BLOCKS = 224, 112, 2, 122, 20, 2
CUT = (22, 10)  # top left corner of the tile in the image
SEVERITIES = (1, 2, 3, 4, 5)


def photograph() -> np.ndarray:
    """The middle of a photograph [224, 224, 3]: fine petals before a dark, smooth background."""
    picture = Image.fromarray(load_sample_image("flower.jpg")).crop((130, 40, 500, 410))
    return np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS))


def tile(image: np.ndarray) -> Image.Image:
    """The part that is shown."""
    top, left = CUT
    return Image.fromarray(image[top : top + TILE, left : left + TILE])


def sheet() -> Image.Image:
    """All corruptions in two blocks of rows, the clean image last."""
    rows = [*names(), "(no corruption)"]
    height = -(-len(rows) // BLOCKS)
    block = LABEL + len(SEVERITIES) * (TILE + GAP)
    canvas = Image.new("RGB", (BLOCKS * block, HEADER + height * (TILE + GAP)), "white")
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(size=13)
    image = photograph()
    for i, name in enumerate(rows):
        left, top = block * (i // height), HEADER + (i % height) * (TILE + GAP)
        draw.text((left + LABEL - 8, top + TILE // 2), name, fill="black", font=font, anchor="rm")
        for column, severity in enumerate(SEVERITIES):
            x = left + LABEL + column * (TILE + GAP)
            if i % height == 0:
                draw.text((x + TILE // 2, HEADER // 2), str(severity), fill="black", font=font, anchor="mm")
            if name in names():
                canvas.paste(tile(corrupt(image[None], name, severity, seed=14)[0]), (x, top))
            elif column == 0:
                canvas.paste(tile(image), (x, top))
    return canvas


def main() -> None:
    """Save the sheet with a dithered palette: a third of the size, and hardly a visible loss at this scale."""
    path = Path(sys.argv[1])
    full = sheet()
    palette = full.quantize(256, kmeans=2)
    full.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
