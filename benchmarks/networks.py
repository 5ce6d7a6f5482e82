"""Which networks of torchvision, timm and transformers adapt, what of them, and what a step costs: docs/networks.md.

python benchmarks/networks.py            prints the table
python benchmarks/networks.py convnext   only of names that contain this
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor, nn

import tidefast
from tidefast.methods.base import registry as methods

CLASSES, BATCH = 10, 16


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


def torchvision() -> ModuleType:
    """torchvision, also where its compiled operators do not fit the installed torch: the missing ones are declared."""
    with contextlib.suppress(RuntimeError):
        return importlib.import_module("torchvision")
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    module = importlib.import_module("torchvision")
    module._declared_operators = library  # they last as long as the library object
    return module


def _torchvision(candidate: Candidate) -> nn.Module:
    options = {"image_size": candidate.size} if candidate.name.startswith("vit") else {}
    network: nn.Module = torchvision().models.get_model(candidate.name, weights=None, num_classes=CLASSES, **options)
    return network


def _timm(candidate: Candidate) -> nn.Module:
    torchvision()  # which timm needs
    timm = importlib.import_module("timm")
    sized = candidate.name.startswith(("vit", "deit", "swin", "mixer", "beit"))
    options = {"img_size": candidate.size} if sized else {}
    network: nn.Module = timm.create_model(candidate.name, pretrained=False, num_classes=CLASSES, **options)
    return network


def _transformers(candidate: Candidate) -> nn.Module:
    torchvision()
    transformers = importlib.import_module("transformers")
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


def refusal(model: nn.Module, candidate: Candidate, name: str) -> str | None:
    """Why a method does not adapt a network: what it says itself; None when a step of it works."""
    kind, images = methods.get(name), candidate.images()
    method = kind(**kind.quick)
    known = {"source": (images, torch.arange(BATCH) % CLASSES)} if method.needs_source else {}
    try:
        adapter = tidefast.adapt(model, method, **known)
        if not bool(torch.isfinite(adapter(images)).all()) or adapter.last.skipped is not None:
            return f"no step: {adapter.last.skipped or 'answers that are not finite'}"
    except (ValueError, TypeError) as error:
        return str(error)
    return None


def least_cpu_seconds(*calls: Callable[[], object], rounds: int = 5) -> list[float]:
    """The least that each of some calls, made in turn, took of the processor."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, seconds in zip(calls, taken, strict=True):
            started = time.process_time()
            call()
            seconds.append(time.process_time() - started)
    return [min(seconds) for seconds in taken]


def row(candidate: Candidate, refusals: dict[str, str]) -> str:
    """A line of the table; what ROID says where it does not apply goes into `refusals`."""
    model, images, tried = candidate.build(), candidate.images(), tidefast.list_methods()
    refused = {name: why for name in tried if (why := refusal(model, candidate, name)) is not None}
    applies = "all but " * (2 * len(refused) < len(tried)) + ", ".join(
        sorted(refused if 2 * len(refused) < len(tried) else set(tried) - refused.keys())
    )
    if "roid" in refused:
        refusals[candidate.name] = refused["roid"]
        return f"| {candidate.library} | {candidate.name} | none | - | {applies} | - |"
    adapter = tidefast.adapt(model, "roid", reset="asr")
    plain, step = least_cpu_seconds(torch.no_grad()(lambda: model(images)), lambda: adapter(images))
    arena, parameters = adapter.network.arena, sum(parameter.numel() for parameter in model.parameters())
    facts = (len(arena.layers), f"{100 * len(arena) / parameters:.2g}", applies if refused else "all")
    return f"| {candidate.library} | {candidate.name} | {' | '.join(map(str, facts))} | {step / plain:.1f} |"


def main() -> None:
    """Print the table, and what those that cannot be adapted are told."""
    torch.set_num_threads(1)
    wanted, refusals = sys.argv[1] if len(sys.argv) > 1 else "", dict[str, str]()
    print("| library | network | adapted layers | of its parameters, % | methods that apply | ROID + ASR, forwards |")
    print("| --- | --- | ---: | ---: | --- | ---: |")
    for candidate in CANDIDATES:
        if wanted in candidate.name:
            print(row(candidate, refusals), flush=True)
    for name, sentence in refusals.items():
        print(f"\n{name}: {sentence}")


if __name__ == "__main__":
    main()
