"""`tidefast bake`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

PURPOSE = "from a snapshot to an ordinary network with the adapted weights, that needs no tidefast"
EXAMPLE = "tidefast bake --model yours:net --snapshot state.safetensors --data folder --out adapted.onnx"
EXTRA = "data"
KINDS = {".pt2": "torch.export", ".onnx": "ONNX", ".safetensors": "its state dict", ".pt": "the module of torch.save"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--model", default="bundled-resnet", help="registered or module:function (default %(default)s)")
    parser.add_argument("--snapshot", required=True, metavar="FILE", help="of adapter.save, a run or a service")
    parser.add_argument("--data", required=True, help="images that fix the statistics of normalisation layers")
    parser.add_argument("--images", type=int, default=256, help="so many of them (default %(default)s)")
    parser.add_argument("--source", help="images or prepared file, if the method was given source data")
    parser.add_argument(
        "--out", required=True, metavar="FILE", help="; ".join(f"{kind}: {what}" for kind, what in KINDS.items())
    )


def run(options: argparse.Namespace) -> None:
    """Rebuild the adapter that the snapshot tells of, bake it, write it."""
    import torch

    from tidefast import datasets, models
    from tidefast.adapter import Adapter
    from tidefast.core import checkpoint
    from tidefast.models.images import images_as_taken, source_for

    out = Path(options.out)
    if out.suffix not in KINDS:
        raise ValueError(f"--out must end in {', '.join(KINDS)}, got {options.out!r}")
    if not out.resolve().parent.is_dir():
        raise ValueError(f"--out: there is no folder {out.resolve().parent}; make it first")
    made = checkpoint.configuration(options.snapshot)
    model = models.load(options.model)
    source = None if options.source is None else source_for(model, options.source)
    adapter = Adapter(model, source=source, **made)
    adapter.reopen(options.snapshot)  # at what rate it would go on matters to nobody
    batches = datasets.source_batches(images_as_taken(model, options.data), options.images)
    images = torch.cat([images for images, _ in batches])
    module = adapter.bake(images)
    _write(module, images[:2], out)
    made_of = f"{adapter.step} steps of {adapter.method.name}, statistics of {len(images)} images"
    print(f"wrote {out} ({KINDS[out.suffix]}): {made_of}")


def _write(module: nn.Module, images: Tensor, out: Path) -> None:
    """As the suffix says."""
    import torch
    from safetensors.torch import save_file

    if out.suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, out)
    elif out.suffix == ".pt":
        torch.save(module, out)
    else:
        shapes: Any = ({0: torch.export.Dim.AUTO},)  # any number, unless the network's own code settles on one
        program = torch.export.export(module, (images,), dynamic_shapes=shapes)
        if out.suffix == ".pt2":
            torch.export.save(program, out)
        else:
            torch.onnx.export(program, (), out, input_names=["images"], output_names=["logits"])
