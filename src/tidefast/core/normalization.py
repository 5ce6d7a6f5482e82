"""Which layers normalise, which of their parameters adapt, and whose statistics they use."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.utils.hooks import RemovableHandle

from tidefast.core.sliding import SlidingPass, fitting, moments

_RUNNING = ("running_mean", "running_var")
_KNOWN = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

LAST_LAYERS = (
    *("layer4", "blocks.9", "blocks.10", "blocks.11", "norm."),
    *("encoder_layer_9", "encoder_layer_10", "encoder_layer_11", "encoder.ln"),
)
"""The last stage of a ResNet; the last three blocks and the final norm of a ViT, by timm's and torchvision's names."""


def is_normalization(module: nn.Module) -> bool:
    """Whether a module normalises: PyTorch's own classes, and hand-written ones called `...Norm...`.

    >>> is_normalization(nn.GroupNorm(2, 4)), is_normalization(nn.Linear(2, 2))
    (True, False)
    """
    if isinstance(module, _KNOWN):
        return True
    own = [parameter for parameter in module._parameters.values() if parameter is not None]
    return "norm" in type(module).__name__.lower() and bool(own) and all(parameter.dim() == 1 for parameter in own)


def affine_names(model: nn.Module, keep: Callable[[str], bool] = lambda name: True) -> list[str]:
    """Names of the scale and shift parameters of the normalisation layers, in registration order.

    `keep` is asked with the name of each normalisation module.

    >>> affine_names(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    ['1.weight', '1.bias']
    """
    return [
        f"{path}.{leaf}" if path else leaf
        for path, module in model.named_modules()
        if is_normalization(module) and keep(path)
        for leaf, parameter in module._parameters.items()
        if parameter is not None
    ]


def outside(skip: Collection[str]) -> Callable[[str], bool]:
    """Whether a layer may adapt when those whose name contains one of `skip` may not, nor one called exactly `norm`.

    >>> [name for name in ("layer1.0.bn1", "layer4.2.bn3", "norm") if outside(LAST_LAYERS)(name)]
    ['layer1.0.bn1']
    """
    return lambda name: name != "norm" and not any(part in name for part in skip)


def require_affine_names(model: nn.Module, method: str, keep: Callable[[str], bool] = lambda name: True) -> list[str]:
    """Like `affine_names`, with a clear error when the network has none."""
    names = affine_names(model, keep)
    if not names:
        kinds = sorted({type(module).__name__ for module in model.modules() if not list(module.children())})
        raise ValueError(
            f"{method} adapts the scale and shift of normalisation layers, and this network has none that it may "
            f"adapt (its layers: {', '.join(kinds)}); use a network with BatchNorm, LayerNorm, GroupNorm or affine "
            "InstanceNorm layers, or the method 'source'"
        )
    return names


@dataclass(frozen=True)
class _Layer:
    module: _NormBase
    mean: Tensor | None
    variance: Tensor | None
    tracks: bool


class Statistics:
    """The batch and instance normalisation layers of a private network, and whose statistics they use.

    Batch statistics come from removing the running ones, which every PyTorch-style layer understands and
    which leaves nothing that a forward pass could change. The source's own are kept aside, never written.

    >>> net = nn.Sequential(nn.BatchNorm1d(1)).eval()
    >>> statistics = Statistics(net)
    >>> statistics.use_batch()
    >>> net(torch.tensor([[1.0], [3.0]])).flatten().round(decimals=3).tolist()
    [-1.0, 1.0]
    >>> with statistics.of_source():
    ...     net(torch.tensor([[1.0], [3.0]])).flatten().round(decimals=3).tolist()
    [1.0, 3.0]
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [
            _Layer(module, module.running_mean, module.running_var, module.track_running_stats)
            for module in model.modules()
            if isinstance(module, _NormBase)
        ]
        self._coupling = [(m.module, m.module.num_features) for m in self._layers if isinstance(m.module, _BatchNorm)]
        self._use: Callable[[], None] = self.use_source
        self._sliding: SlidingPass | None = None
        self._hooks: list[RemovableHandle] = []

    @property
    def needs_batch(self) -> bool:
        """Whether a lone sample cannot be normalised as configured."""
        return bool(self._coupling) and self._use == self.use_batch

    @property
    def can_slide(self) -> bool:
        """Whether a lone sample can be normalised by statistics that slide: float16 ends at 65,504, and a kernel takes
        variances in the type of the layer's own numbers."""
        return self.needs_batch and all(
            layer.weight is None or layer.weight.dtype != torch.float16 for layer, _ in self._coupling
        )

    def source_buffers(self) -> list[Tensor]:
        """The source's running statistics."""
        return [t for layer in self._layers for t in (layer.mean, layer.variance) if t is not None]

    def use_source(self) -> None:
        """Normalise with the source's running statistics, where it has any."""
        self._use = self.use_source
        for layer in self._layers:
            layer.module.running_mean, layer.module.running_var = layer.mean, layer.variance
            layer.module.track_running_stats = layer.tracks

    def use_batch(self) -> None:
        """Normalise with the statistics of the batch at hand (biased variance)."""
        self._use = self.use_batch
        for layer in self._layers:
            layer.module.running_mean = layer.module.running_var = None
            layer.module.track_running_stats = False

    def use_mixture(self, alpha: float) -> None:
        """Normalise with (1 - alpha) x source + alpha x batch statistics (unbiased batch variance)."""

        def mix() -> None:
            self.use_source()
            self._use = mix

        mix()
        for layer in self._layers:
            if isinstance(layer.module, _BatchNorm) and layer.mean is not None and layer.variance is not None:
                blend = functools.partial(_mix, layer.mean, layer.variance, alpha)
                layer.module.register_forward_pre_hook(
                    lambda module, inputs, blend=blend: blend(module, inputs[0]) if self._use is mix else None
                )

    @property
    def in_use(self) -> Callable[[], None]:
        """What puts the statistics back in use that are now."""
        return self._use

    @contextmanager
    def of_source(self) -> Iterator[None]:
        """Within the block, the source's statistics; afterwards whatever was in use."""
        use = self._use
        try:
            self.use_source()
            yield
        finally:
            use()

    def sliding(self, before: Tensor | None, share: float | Tensor, *, normalizes: bool) -> SlidingPass:
        """A pass that begins sliding statistics, or moves those of before it; see there."""
        return SlidingPass(self._coupling, before, share, normalizes=normalizes)

    @contextmanager
    def by(self, sliding: SlidingPass) -> Iterator[None]:
        """Around the pass."""
        self._sliding = sliding
        try:
            for layer, _ in self._coupling:
                hook = functools.partial(self._before_layer, sliding)
                self._hooks.append(layer.register_forward_pre_hook(hook, with_kwargs=True))
            yield
        finally:
            self.unhook()
            for layer, _ in self._coupling:  # as `use_batch` left them
                layer._buffers.update(dict.fromkeys(_RUNNING))

    def _before_layer(
        self, sliding: SlidingPass, layer: _NormBase, inputs: tuple[Tensor, ...], named: dict[str, Tensor]
    ) -> None:
        if sliding is not self._sliding:  # one whose end was interrupted
            return
        images = inputs[0] if inputs else next(iter(named.values()))
        statistics = sliding.moved(layer, moments(images, (0, *range(2, images.dim()))))
        if sliding.normalizes:
            layer._buffers.update(zip(_RUNNING, fitting(statistics, layer, images), strict=True))

    def unhook(self) -> None:
        """No pass is under way any more."""
        self._sliding = None
        while self._hooks:
            self._hooks.pop().remove()


@torch.no_grad()
def _mix(mean: Tensor, variance: Tensor, alpha: float, module: _NormBase, inputs: Tensor) -> None:
    """Give a BatchNorm layer, before it runs, statistics between the source's and the batch's."""
    mean, variance = mean.clone(), variance.clone()
    if inputs.numel() > inputs.shape[1]:  # a single value per channel has no variance: the source's stands
        functional.batch_norm(inputs, mean, variance, training=True, momentum=alpha)  # updates them in place
    module.running_mean, module.running_var = mean, variance
