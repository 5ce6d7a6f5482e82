"""The network of the paper's table on ViT-Tiny: timm's, which the paper does not name but is the usual one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidefast.errors import how_to_install

if TYPE_CHECKING:
    from torch import nn

NAME = "vit_tiny_patch16_224"


def network(pretrained: bool = True) -> nn.Module:
    """timm's ViT-Tiny with its ImageNet weights; it takes images in [0, 1] and normalises them itself."""
    try:
        import timm
    except ImportError as error:
        raise ImportError(f"ViT-Tiny comes from timm: {how_to_install('vision')}") from error
    from torch.nn import Sequential

    from tidefast.models.pixels import PixelNormalization

    half = (0.5, 0.5, 0.5)
    return Sequential(PixelNormalization(half, half), timm.create_model(NAME, pretrained=pretrained)).eval()
