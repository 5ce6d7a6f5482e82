"""ImageNet-D109: the classes of DomainNet that stand for exactly one class of ImageNet, from folders or lists."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np

from tidefast.datasets.errors import DatasetError
from tidefast.datasets.folder import ImageFolder, image_names

DOMAINS = {"clipart": 16_049, "infograph": 15_700, "painting": 23_926, "sketch": 22_298}
"""The four domains of IN-D109 recurring in their order, with the number of their images."""

IMAGENET_INDEX = {
    "aircraft_carrier": 403,
    "ambulance": 407,
    "ant": 310,
    "backpack": 414,
    "banana": 954,
    "barn": 425,
    "basket": 790,
    "basketball": 430,
    "bathtub": 435,
    "bed": 831,
    "bee": 309,
    "belt": 785,
    "bench": 703,
    "binoculars": 447,
    "bottlecap": 455,
    "bowtie": 457,
    "broccoli": 937,
    "broom": 462,
    "bucket": 463,
    "camel": 354,
    "candle": 470,
    "cannon": 471,
    "canoe": 472,
    "castle": 483,
    "cello": 486,
    "church": 497,
    "compass": 635,
    "crocodile": 49,
    "dishwasher": 534,
    "door": 799,
    "dragon": 48,
    "drill": 740,
    "duck": 103,
    "dumbbell": 543,
    "ear": 998,
    "envelope": 549,
    "eraser": 767,
    "fan": 545,
    "feather": 552,
    "flamingo": 130,
    "frying_pan": 567,
    "hammer": 587,
    "hat": 515,
    "hedgehog": 334,
    "hockey_puck": 746,
    "hot_air_balloon": 417,
    "hourglass": 604,
    "kangaroo": 104,
    "knee": 615,
    "knife": 623,
    "lantern": 607,
    "lighter": 626,
    "lighthouse": 437,
    "lipstick": 629,
    "mailbox": 637,
    "microphone": 650,
    "microwave": 651,
    "mushroom": 947,
    "nail": 677,
    "necklace": 679,
    "ocean": 628,
    "oven": 544,
    "owl": 24,
    "paintbrush": 696,
    "parachute": 701,
    "penguin": 145,
    "pillow": 721,
    "pineapple": 953,
    "pizza": 963,
    "purse": 748,
    "remote_control": 761,
    "saw": 491,
    "saxophone": 776,
    "scorpion": 71,
    "screwdriver": 784,
    "sheep": 349,
    "shovel": 792,
    "sleeping_bag": 797,
    "snail": 113,
    "snorkel": 801,
    "soccer_ball": 805,
    "sock": 806,
    "speedboat": 814,
    "spoon": 910,
    "squirrel": 335,
    "stethoscope": 823,
    "stop_sign": 919,
    "stove": 827,
    "strawberry": 949,
    "submarine": 833,
    "swing_set": 843,
    "syringe": 845,
    "t-shirt": 610,
    "teapot": 849,
    "teddy-bear": 850,
    "television": 851,
    "tent": 672,
    "tiger": 292,
    "toaster": 859,
    "tractor": 866,
    "traffic_light": 920,
    "train": 466,
    "trombone": 875,
    "trumpet": 513,
    "umbrella": 879,
    "vase": 883,
    "violin": 889,
    "washing_machine": 897,
    "zebra": 340,
}
"""The index of each class among the 1000 of ImageNet, in the order of the labels 0 to 108.

A duck is a platypus there, an ocean an ocean liner, an ear an ear of corn, a dragon a Komodo dragon.
"""

CLASSES = tuple(IMAGENET_INDEX)
INDICES = tuple(IMAGENET_INDEX.values())
_MERGED = {"bed": ("bed", "couch"), "bathtub": ("bathtub", "hot_tub"), "fan": ("fan", "ceiling_fan")}


def d109(
    root: str | os.PathLike[str], domain: str, lists: str | os.PathLike[str] | None = None, *, whole: bool = True
) -> ImageFolder:
    """One domain of ImageNet-D109, resized to 256 pixels and cropped to 224.

    Without `lists`, the images are those in `root/<domain>/<class>/`; couches count as beds, hot tubs as bathtubs and
    ceiling fans as fans. With it, they are those of `lists/<domain>_list.txt`, whose lines are a path under `root` and
    a label. `whole` warns when their number is not the published one.
    """
    root = Path(root)
    if not root.is_dir():
        raise DatasetError(f"no ImageNet-D109 in {root}: the folder does not exist")
    files = _from_folders(root, domain) if lists is None else _from_list(root, Path(lists) / f"{domain}_list.txt")
    if whole and len(files) != DOMAINS.get(domain, len(files)):
        warnings.warn(
            f"{domain} has {len(files)} images, the published set {DOMAINS[domain]}: is this the cleaned version of "
            "DomainNet, and all of it?",
            stacklevel=3,
        )
    labels = np.array([label for _, label in files], np.int64)
    return ImageFolder(root, [name for name, _ in files], labels, CLASSES)


def _from_folders(root: Path, domain: str) -> list[tuple[str, int]]:
    if not (root / domain).is_dir():
        raise DatasetError(f"no domain {domain!r} in {root}: looked for the folder {root / domain}")
    files, missing = [], []
    for label, name in enumerate(CLASSES):
        of_class = [file for part in _MERGED.get(name, (name,)) for file in image_names(root, f"{domain}/{part}")]
        files += [(file, label) for file in of_class]
        if not of_class:
            missing.append(name)
    if missing:
        raise DatasetError(
            f"no images of {len(missing)} of the {len(CLASSES)} classes in {root / domain}: {', '.join(missing[:5])}"
            f"{' and more' if len(missing) > 5 else ''}; expected a folder for each class of DomainNet"
        )
    return files


def _from_list(root: Path, path: Path) -> list[tuple[str, int]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"cannot read the list {path}: {error}") from None
    files = []
    for number, line in enumerate(lines, start=1):
        name, _, label = line.strip().rpartition(" ")
        if not name or not label.isdecimal() or int(label) >= len(CLASSES):
            raise DatasetError(
                f"line {number} of {path} is {line!r}, expected a path under {root}, a blank and a label 0..108"
            )
        files.append((name, int(label)))
    if not files:
        raise DatasetError(f"the list {path} is empty")
    return files
