"""Which networks of torchvision, timm and transformers adapt, what of them, and what a step costs: docs/networks.md.

python benchmarks/networks.py            prints the table
python benchmarks/networks.py convnext   only of names that contain this
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import tidefast

CLASSES, BATCH = 10, 8
TRIED = ("batchnorm", "tent", "eta", "sar", "roid", "cmf", "t3a", "lame")


@dataclass(frozen=True)
class Candidate:
    """A network by the name that its library has for it; random weights, small images."""

    library: str
    name: str
    size: int = 64

    def build(self) -> nn.Module:
        """The network, in evaluation mode."""
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the libraries say of their own future
            network = BUILDERS[self.library](self).eval()
        for parameter in network.parameters():
            if parameter.ndim == 2 and not bool(parameter.any()):
                nn.init.normal_(parameter, std=0.02)  # a classifier of zeros: no gradient would pass it
        return network

    def images(self) -> Tensor:
        """A batch."""
        return torch.rand(BATCH, 3, self.size, self.size, generator=torch.Generator().manual_seed(0))


def _torchvision(candidate: Candidate) -> nn.Module:
    import torchvision

    options = {"image_size": candidate.size} if candidate.name.startswith("vit") else {}
    network: nn.Module = torchvision.models.get_model(candidate.name, weights=None, num_classes=CLASSES, **options)
    return network


def _timm(candidate: Candidate) -> nn.Module:
    import timm

    sized = candidate.name.startswith(("vit", "deit", "swin", "mixer", "beit"))
    options = {"img_size": candidate.size} if sized else {}
    network: nn.Module = timm.create_model(candidate.name, pretrained=False, num_classes=CLASSES, **options)
    return network


def _transformers(candidate: Candidate) -> nn.Module:
    import transformers

    small = {
        "ResNet": {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]},
        "ConvNext": {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]},
        "ViT": {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128},
        "Swin": {"embed_dim": 24, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "patch_size": 4},
    }[candidate.name]
    config = getattr(transformers, f"{candidate.name}Config")(
        **small, num_labels=CLASSES, **({"image_size": candidate.size} if candidate.name in ("ViT", "Swin") else {})
    )
    network: nn.Module = getattr(transformers, f"{candidate.name}ForImageClassification")(config)
    return network


BUILDERS: dict[str, Callable[[Candidate], nn.Module]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "transformers": _transformers,
}
CANDIDATES = [
    *(Candidate("torchvision", name) for name in ("resnet18", "mobilenet_v2", "efficientnet_b0", "convnext_tiny")),
    Candidate("torchvision", "vit_b_16", size=32),
    Candidate("torchvision", "swin_t"),
    *(
        Candidate("timm", name)
        for name in (
            *("resnet18", "resnet26t", "mobilenetv3_small_050", "efficientnet_lite0", "regnetx_002", "densenet121"),
            *("convnext_atto", "vit_tiny_patch16_224", "deit_tiny_patch16_224", "swin_tiny_patch4_window7_224"),
            *("mixer_s32_224", "resnetv2_50x1_bit", "nf_resnet26"),
        )
    ),
    *(Candidate("transformers", name) for name in ("ResNet", "ConvNext", "ViT", "Swin")),
]


def refusal(model: nn.Module, images: Tensor, method: str) -> str | None:
    """Why a method does not adapt a network: what it says itself; None when a step of it works."""
    try:
        if not bool(torch.isfinite(tidefast.adapt(model, method)(images)).all()):
            return "answers that are not finite"
    except (ValueError, TypeError) as error:
        return str(error)
    return None


def cpu_seconds(call: Callable[[], object], repeats: int = 3) -> float:
    """The least that a call took of the processor."""
    taken = []
    for _ in range(repeats):
        started = time.process_time()
        call()
        taken.append(time.process_time() - started)
    return min(taken)


def row(candidate: Candidate) -> str:
    """A line of the table."""
    model, images = candidate.build(), candidate.images()
    refused = {method: refusal(model, images, method) for method in TRIED}
    works = [method for method, why in refused.items() if why is None]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if "roid" not in works:
        return f"| {candidate.library} | {candidate.name} | 0 | 0 | {', '.join(works) or 'none'} | - |"
    adapter = tidefast.adapt(model, "roid", reset="asr")
    with torch.no_grad():
        plain = cpu_seconds(lambda: model(images))
    step = cpu_seconds(lambda: adapter(images))
    arena = adapter.network.arena
    methods = "all" if len(works) == len(TRIED) else f"all but {', '.join(sorted(set(TRIED) - set(works)))}"
    facts = (len(arena.layers), f"{100 * len(arena) / parameters:.2g}", methods, f"{step / plain:.1f}")
    return f"| {candidate.library} | {candidate.name} | {' | '.join(map(str, facts))} |"


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    print("| library | network | adapted layers | of its parameters, % | methods | ROID + ASR, forwards |")
    print("| --- | --- | --- | --- | --- | --- |")
    for candidate in CANDIDATES:
        if wanted in candidate.name:
            print(row(candidate), flush=True)


if __name__ == "__main__":
    main()
