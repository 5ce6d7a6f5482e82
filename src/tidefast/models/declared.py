"""What a network says of the images that it takes: their size, and how their pixels are normalised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from tidefast.core.constraints import Constrained, Count
from tidefast.models.pixels import PixelNormalization


@dataclass(frozen=True)
class ModelInput(Constrained):
    """The images that a network was trained on; None where it does not say.

    A network of your own declares it by an attribute: `net.model_input = ModelInput(size=128)`. With `mean` and
    `deviation` of the colour channels, `tidefast.models.load` puts the normalisation in front of it.

    size: side of the square image. resize: length of the shorter side before the square is cut out.
    """

    size: Count | None = None
    resize: Count | None = None
    mean: tuple[float, float, float] | None = None
    deviation: tuple[float, float, float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.mean is None) != (self.deviation is None):
            raise ValueError("mean and deviation go together: give both, or neither")


def declared_input(model: nn.Module) -> ModelInput:
    """What a network declares: its `model_input`, timm's `pretrained_cfg`, or the `image_size` of Hugging Face.

    >>> net = nn.Conv2d(3, 10, 1)
    >>> net.model_input = ModelInput(size=128)
    >>> declared_input(net).size, declared_input(nn.Identity()).size
    (128, None)
    """
    own = getattr(model, "model_input", None)
    if isinstance(own, ModelInput):
        return own
    of_timm = getattr(model, "pretrained_cfg", None)
    if isinstance(of_timm, Mapping) and "input_size" in of_timm:
        return _of_timm(of_timm)
    side = getattr(getattr(model, "config", None), "image_size", None)
    side = side[0] if isinstance(side, (list, tuple)) and side else side
    return ModelInput(size=side if type(side) is int else None)


def with_normalization(model: nn.Module, declared: ModelInput | None = None) -> nn.Module:
    """The network behind the normalisation that it declares, so that it takes images in [0, 1]; or as it is."""
    told = declared_input(model) if declared is None else declared
    if told.mean is None or told.deviation is None:
        if declared is not None:
            model.model_input = told  # type: ignore[assignment]  # a plain attribute, which torch's stubs do not know
        return model
    whole = nn.Sequential(PixelNormalization(told.mean, told.deviation), model).train(model.training)
    whole.model_input = ModelInput(told.size, told.resize)  # type: ignore[assignment]  # likewise
    classes = getattr(model, "classes", None) or _labels_of(model)
    if classes is not None:
        whole.classes = classes  # type: ignore[assignment]  # likewise
    return whole


def _labels_of(model: nn.Module) -> tuple[str, ...] | None:
    labels = getattr(getattr(model, "config", None), "id2label", None)
    return tuple(map(str, labels.values())) if isinstance(labels, Mapping) else None


def _of_timm(settings: Mapping[str, Any]) -> ModelInput:
    size = int(settings["input_size"][-1])
    share = settings.get("crop_pct") or 0.875
    return ModelInput(size, int(size / share), _three(settings.get("mean")), _three(settings.get("std")))


def _three(values: Any) -> tuple[float, float, float] | None:
    if values is None or len(values) != 3:
        return None
    red, green, blue = map(float, values)
    return red, green, blue
