"""One pass for the images of several streams: frozen layers see all of them, adapted ones each stream's by itself."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from tidefast.core.arena import ArenaRow
from tidefast.core.network import Network
from tidefast.core.sliding import HALF_PRECISION, SlidingPass, fitting, moments, moments_of_each

_FEW_BYTES = 256 * 2**10
"""Inputs of one stream up to which, on a processor, a call of the batch normalisation kernel for each costs more than
expressions over those of all; more of them would leave the cache from one expression to the next."""
_PLAIN_BATCH_NORM = _BatchNorm.forward
_PLAIN_OF_EACH_IMAGE = (nn.LayerNorm.forward, nn.GroupNorm.forward)


class InseparableError(Exception):
    """A network whose layers do not tell which images are whose: streams cannot share its passes."""


@dataclass(frozen=True)
class _PassByStream:
    """Whose images a pass holds, in the order of the streams."""

    values: tuple[Tensor, ...]
    """Of each tensor of the arena those of every stream [streams, numbers]."""
    sizes: tuple[int, ...]
    """Images of each stream."""
    device: torch.device
    alone: tuple[bool, ...]
    """Whether a stream's images are normalised by the source's statistics: one alone has none of its own."""
    sliding: SlidingPass | None
    """What the pass does to the streams' sliding statistics [2, streams, channels]."""
    seen: set[int] = field(default_factory=set)
    """Layers that have run."""

    @functools.cached_property
    def owners(self) -> Tensor:
        """Of each image the number of its stream; counted on the host, so that nobody waits for a device."""
        numbers = torch.arange(len(self.sizes), device="cpu").repeat_interleave(torch.tensor(self.sizes, device="cpu"))
        return numbers.to(self.device, non_blocking=True)

    @functools.cached_property
    def size(self) -> int | None:
        """Images of every stream, where they are equally many."""
        return self.sizes[0] if len(set(self.sizes)) == 1 else None

    @functools.cached_property
    def counts(self) -> Tensor | int:
        """Images of each stream [streams, 1], or of every one."""
        if self.size is not None:
            return self.size
        return torch.tensor(self.sizes, device="cpu")[:, None].to(self.device, non_blocking=True)

    @functools.cached_property
    def given(self) -> Tensor | None:
        """Which streams are `alone` [streams, 1]; None where none is."""
        if not any(self.alone):
            return None
        return torch.tensor(self.alone, device="cpu")[:, None].to(self.device, non_blocking=True)

    def owners_of(self, rows: int) -> Tensor:
        """Of each row, of which an image may have several, the number of its stream."""
        each = rows // len(self.owners)
        return self.owners if each == 1 else self.owners.repeat_interleave(each)

    def of_rows(self, values: Tensor, rows: int) -> Tensor:
        """Of each row its stream's values [streams, ...]."""
        return values if rows == len(self.sizes) else values.index_select(0, self.owners_of(rows))

    def totals(self, values: Tensor) -> Tensor:
        """Of each stream the sum over its rows [rows, channels]."""
        rows, streams = len(values), len(self.sizes)
        if rows == streams:
            return values
        if self.size is not None:
            return values.view(streams, rows // streams, -1).sum(1)
        return values.new_zeros(streams, values.shape[1]).index_add_(0, self.owners_of(rows), values)

    def means(self, values: Tensor, each: int = 1) -> Tensor:
        """Of each stream the mean, where a row [rows, channels] is the sum of `each` values."""
        return self.totals(values) / (self.counts * (each * (len(values) // len(self.owners))))

    def of_streams(self, moments: Tensor) -> Tensor:
        """Means and variances [2, streams, channels] of rows that have these ones [2, rows, channels]."""
        rows = moments.shape[1]
        if rows == len(self.sizes):
            return moments
        mean = self.means(moments[0])
        return torch.stack([mean, self.means(moments[1] + (moments[0] - self.of_rows(mean, rows)).square_())])


class JointNetwork:
    """A private network whose passes are for the images of several streams at once.

    network: a copy that serves nothing else from now on; its layers are changed.
    streams: at most so many in a pass; each has a row of `parameter` [streams, numbers], which is that stream's arena.

    >>> network = Network(nn.Sequential(nn.BatchNorm1d(1)), lambda module, statistics: ["0.weight", "0.bias"])
    >>> network.statistics.use_batch()
    >>> joint = JointNetwork(network, streams=2)
    >>> with torch.no_grad():
    ...     _ = joint.parameter.copy_(torch.tensor([[1.0, 0.0], [2.0, 5.0]]))
    >>> images = torch.tensor([[1.0], [3.0], [10.0], [10.5], [11.0]])
    >>> joint(images, joint.parameter, (2, 3)).flatten().mul(10).round().int().tolist()
    [-10, 10, 26, 50, 74]
    """

    def __init__(self, network: Network, streams: int) -> None:
        if network.model is not network.module:
            raise InseparableError("the model is compiled")
        self.network, arena = network, network.arena
        self.parameter = nn.Parameter(arena.values.new_zeros(streams, len(arena)))
        self.gradients = torch.zeros_like(self.parameter.data)
        self.parameter.grad = self.gradients
        self.rows = [StreamNetwork(self, row) for row in range(streams)]
        """The network as each of the streams has it, for what they do one by one."""
        self._lengths = [span.stop - span.start for span in arena.tensors]
        self._current: _PassByStream | None = None
        self._layers = self._replaced()

    def _replaced(self) -> set[int]:
        """Replace the forward of every layer in which streams differ."""
        network = self.network
        parameters = dict(network.module.named_parameters(remove_duplicate=False))
        numbers = {id(parameters[span.name]): number for number, span in enumerate(network.arena.tensors)}
        batch = network.statistics.needs_batch
        with network.statistics.of_source():
            running: dict[nn.Module, tuple[Tensor | None, Tensor | None]] = {
                m: (m.running_mean, m.running_var) for m in network.module.modules() if isinstance(m, _NormBase)
            }
        layers = set()
        for module in network.module.modules():
            own = {leaf: numbers[id(p)] for leaf, p in module._parameters.items() if id(p) in numbers}
            if own or (batch and isinstance(module, _BatchNorm)):
                layers.add(id(module))
                module.forward = _LayerByStream(self, module, own, running.get(module, (None, None)))
        return layers

    def __call__(
        self,
        images: Tensor,
        values: Tensor,
        sizes: Sequence[int],
        alone: Sequence[bool] | None = None,
        sliding: SlidingPass | None = None,
    ) -> Tensor:
        """Logits [images, classes] of images that lie stream by stream, `sizes` of each, whose adapted parameters are
        the rows of `values`; gradients reach these."""
        of_source = tuple(alone) if alone is not None else (False,) * len(sizes)
        self._current = _PassByStream(
            torch.split(values, self._lengths, 1), tuple(sizes), images.device, of_source, sliding
        )
        try:
            logits = self.network(images)
            if self._current.seen != self._layers:
                raise InseparableError("layers with adapted parameters are used by something else than their forward")
        finally:
            self._current = None
        return logits

    def rest(self) -> None:
        """End all that is meant for a pass only, whatever interrupted it."""
        self._current = None
        self.network.rest()
        for row in self.rows:
            row.arena.forget()

    def under_way(self, layer: nn.Module) -> _PassByStream:
        """Of the pass under way."""
        assert self._current is not None, "a joint network runs in joint passes only"
        self._current.seen.add(id(layer))
        return self._current


class StreamNetwork(Network):
    """A joint network as one of its streams has it: with a row as arena."""

    def __init__(self, joint: JointNetwork, row: int) -> None:
        vars(self).update(vars(joint.network))
        self._joint, self._row = joint, slice(row, row + 1)
        self.arena: ArenaRow = ArenaRow(joint.network.arena, joint.parameter.data[row], joint.gradients[row])

    def __call__(self, images: Tensor) -> Tensor:
        return self._joint(images, self._joint.parameter[self._row], (len(images),))


class _LayerByStream:
    """What takes the place of a layer's forward."""

    def __init__(
        self,
        joint: JointNetwork,
        module: nn.Module,
        own: dict[str, int],
        running: tuple[Tensor | None, Tensor | None],
    ) -> None:
        self._joint, self._module, self._own, self._running = joint, module, own, running
        self._forward: Callable[..., Tensor] = module.forward
        kind: Any = type(module).forward
        if kind is _PLAIN_BATCH_NORM:
            self._run = self._batch_norm
        elif kind in _PLAIN_OF_EACH_IMAGE and "weight" in own:
            self._run = self._norm_of_each_image
        else:
            self._run = self._one_by_one

    def __call__(self, inputs: Tensor, *others: Any, **named: Any) -> Tensor:
        current = self._joint.under_way(self._module)
        each, rest = divmod(len(inputs), sum(current.sizes))  # one image may be several rows, such as its windows
        if rest or not each:
            raise InseparableError(f"{type(self._module).__name__} does not get the images in the first dimension")
        return self._run(current, [each * size for size in current.sizes], inputs, *others, **named)

    def _values(self, current: _PassByStream, leaf: str) -> Tensor | None:
        """Of a parameter those of every stream [streams, *shape]; where it does not adapt, the same for all."""
        parameter = self._module._parameters.get(leaf)
        if parameter is None:
            return None
        if leaf not in self._own:
            return parameter.detach().expand(len(current.sizes), *parameter.shape)
        values = current.values[self._own[leaf]]
        return values if parameter.dim() == 1 else torch.unflatten(values, 1, parameter.shape)

    def _batch_norm(self, current: _PassByStream, sizes: list[int], inputs: Tensor) -> Tensor:
        module: Any = self._module
        weight, bias = self._values(current, "weight"), self._values(current, "bias")
        if weight is None or bias is None:
            return self._one_by_one(current, sizes, inputs)
        module._check_input_dim(inputs)
        sliding, (mean, variance) = current.sliding, self._running
        slides = sliding is not None and sliding.normalizes
        if slides or module.running_mean is not None:
            if sliding is not None and slides:
                mean, variance = sliding.moved(module, current.of_streams(moments(inputs, range(2, inputs.dim()))))
            assert mean is not None
            assert variance is not None
            scale = weight * torch.rsqrt(variance + module.eps)
            shift = torch.addcmul(bias, mean, scale, value=-1.0)
            scale, shift = (_beside(inputs, current.of_rows(values, len(inputs))) for values in (scale, shift))
            return torch.addcmul(shift, inputs, scale).to(inputs.dtype)
        if _pixels(inputs) == 1 and any(size == 1 and not own for size, own in zip(sizes, current.alone, strict=True)):
            raise ValueError("one value of each channel has no variance")
        few = inputs.device.type != "cpu" or inputs.nbytes <= _FEW_BYTES * len(sizes)
        kind = _BatchNormOfAll if few or current.given is not None else _BatchNormOfEach
        run: Callable[..., tuple[Tensor, Tensor, Tensor]] = kind.apply
        outputs, means, deviations = run(inputs, weight, bias, current, mean, variance, module.eps)
        if sliding is not None:
            rounded = means.dtype in HALF_PRECISION
            own = torch.stack([means, deviations.pow(-2) - module.eps])
            sliding.moved(module, moments_of_each(inputs, sizes) if rounded else own)
        return outputs

    def _norm_of_each_image(self, current: _PassByStream, sizes: list[int], inputs: Tensor) -> Tensor:
        """Statistics are each image's, so that only scale and shift are a matter of the stream."""
        module: Any = self._module
        if isinstance(module, nn.LayerNorm):
            normalized = functional.layer_norm(inputs, module.normalized_shape, None, None, module.eps)
            between = (1,) * (inputs.dim() - 1 - len(module.normalized_shape))
        else:
            normalized = functional.group_norm(inputs, module.num_groups, None, None, module.eps)
            between = ()

        def of_images(values: Tensor) -> Tensor:
            chosen = current.of_rows(values, len(inputs))
            behind = (1,) * (inputs.dim() - len(between) - chosen.dim())
            return chosen.reshape(len(chosen), *between, *values.shape[1:], *behind)

        weight, bias = self._values(current, "weight"), self._values(current, "bias")
        assert weight is not None
        scale = of_images(weight)
        return normalized * scale if bias is None else torch.addcmul(of_images(bias), normalized, scale)

    def _one_by_one(
        self, current: _PassByStream, sizes: list[int], inputs: Tensor, *others: Any, **named: Any
    ) -> Tensor:
        """The layer's own forward on the rows of one stream after the other: for layers that nothing is known of."""
        module: Any = self._module
        resting, running = dict(module._parameters), vars(module).get("_buffers", {}).copy()
        values = {leaf: self._values(current, leaf) for leaf in self._own}
        sliding = current.sliding if isinstance(module, _BatchNorm) else None
        statistics: Sequence[Any] = [self._running] * len(sizes)
        if sliding is not None:
            moved = sliding.moved(module, moments_of_each(inputs, sizes))
            statistics = fitting(moved, module, inputs).unbind(1) if sliding.normalizes else statistics
        parts = []
        try:
            for stream, part in enumerate(torch.split(inputs, sizes)):
                for leaf, of_streams in values.items():
                    module._parameters[leaf] = None if of_streams is None else of_streams[stream]
                if isinstance(module, _BatchNorm) and (current.alone[stream] or (sliding and sliding.normalizes)):
                    module.running_mean, module.running_var = statistics[stream]
                parts.append(self._forward(part, *others, **named))
                module._buffers.update(running)
        finally:
            module._parameters.update(resting)
            module._buffers.update(running)
        return torch.cat(parts)


class _BatchNormOfEach(torch.autograd.Function):
    """Batch normalisation of every stream's rows by their own statistics, with scale and shift [streams, channels].

    One call of the kernel for each stream, so that what it reads and writes stays in the cache. Besides the outputs it
    gives each stream's means and inverse deviations [streams, channels].
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        current: _PassByStream,
        mean: Tensor | None,
        variance: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        sizes = [size * (len(inputs) // len(current.owners)) for size in current.sizes]
        outputs = torch.empty_like(inputs)
        means, deviations = torch.empty_like(weight), torch.empty_like(weight)
        rows = zip(weight.unbind(), bias.unbind(), means.unbind(), deviations.unbind(), strict=True)
        parts = zip(torch.split(inputs, sizes), torch.split(outputs, sizes), rows, strict=True)
        for part, output, (scale, shift, own_mean, own_deviation) in parts:
            torch.ops.aten.native_batch_norm.out(
                part,
                scale,
                shift,
                None,
                None,
                True,
                0.0,
                eps,
                out=output,
                save_mean=own_mean,
                save_invstd=own_deviation,
            )
        ctx.save_for_backward(inputs, weight, means, deviations)
        ctx.sizes, ctx.eps = sizes, eps
        ctx.mark_non_differentiable(means, deviations)
        return outputs, means, deviations

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        inputs, *of_streams = ctx.saved_tensors
        needed = [*ctx.needs_input_grad[:3]]
        rows = zip(*(values.unbind() for values in of_streams), strict=True)
        layers = zip(torch.split(gradient, ctx.sizes), torch.split(inputs, ctx.sizes), rows, strict=True)
        parts = [
            torch.ops.aten.native_batch_norm_backward(
                part, given, scale, None, None, mean, deviation, True, ctx.eps, needed
            )
            for part, given, (scale, mean, deviation) in layers
        ]
        images, scales, shifts = zip(*parts, strict=True)
        return (
            torch.cat(images) if needed[0] else None,
            torch.stack(scales) if needed[1] else None,
            torch.stack(shifts) if needed[2] else None,
            *(None,) * 4,
        )


class _BatchNormOfAll(torch.autograd.Function):
    """The same in a handful of calls for all streams: where each has few rows, calls are what costs.

    mean, variance: what the rows of streams that are `alone` are normalised by [channels].
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        current: _PassByStream,
        mean: Tensor | None,
        variance: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        kind = torch.promote_types(weight.dtype, torch.float32)
        wide, scale, shift = inputs.to(kind), weight.to(kind), bias.to(kind)
        rows, pixels = len(wide), _pixels(wide)
        means = current.means(_sums(wide), pixels)
        memory = torch.sub(wide, _beside(wide, current.of_rows(means, rows)))
        variances = current.means(_sums(memory.square_()), pixels)
        if current.given is not None and mean is not None and variance is not None:
            means = torch.where(current.given, mean, means)
            variances = torch.where(current.given, variance, variances)
        deviations = torch.rsqrt(variances + eps)
        scale = scale * deviations
        shift = torch.addcmul(shift, means, scale, value=-1.0)
        scale, shift = (_beside(wide, current.of_rows(values, rows)) for values in (scale, shift))
        outputs = torch.addcmul(shift, wide, scale, out=memory).to(inputs.dtype)
        ctx.save_for_backward(inputs, weight, means, deviations)
        ctx.current = current
        ctx.mark_non_differentiable(means, deviations)
        return outputs, means, deviations

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, means, deviations = ctx.saved_tensors
        current: _PassByStream = ctx.current
        gradient = gradient.to(means.dtype)
        rows, pixels = len(inputs), _pixels(inputs)
        away = torch.sub(inputs, _beside(inputs, current.of_rows(means, rows)))
        shifts = current.totals(_sums(gradient))
        scales = current.totals(_sums(away * gradient)) * deviations
        images = None
        if ctx.needs_input_grad[0]:
            # scale x (G - its mean - normalised inputs x mean of G x these), as slopes along G and the inputs
            along = weight * deviations
            share = along / (current.counts * (pixels * (rows // len(current.owners))))
            if current.given is not None:  # statistics that are given do not move with the images
                share = torch.where(current.given, 0.0, share)
            along, slope, constant = (
                _beside(inputs, current.of_rows(values, rows))
                for values in (along, scales * deviations * share, shifts * -share)
            )
            images = torch.addcmul(constant, away, slope, value=-1.0, out=away).addcmul_(gradient, along)
            images = images.to(inputs.dtype)
        return images, scales.to(weight.dtype), shifts.to(weight.dtype), *(None,) * 4


def _pixels(inputs: Tensor) -> int:
    """Values of a row and channel."""
    return math.prod(inputs.shape[2:])


def _sums(inputs: Tensor) -> Tensor:
    """Over all but rows and channels."""
    return inputs.sum(tuple(range(2, inputs.dim()))) if inputs.dim() > 2 else inputs


def _beside(inputs: Tensor, values: Tensor) -> Tensor:
    """Values of rows and channels, in the shape that goes with the inputs."""
    return values.view(*values.shape, *(1,) * (inputs.dim() - 2))
