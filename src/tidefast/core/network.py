"""A private copy of the caller's network that shares every frozen weight with it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tidefast.core.arena import Arena
from tidefast.core.leaving import staying
from tidefast.core.mode import modes_of
from tidefast.core.normalization import Statistics
from tidefast.core.sliding import SlidingPass
from tidefast.core.snapshot import digest_of

_COLOURS = 3
_BY_POSITION = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)
_RANK_OF_CONVOLUTION = ((nn.Conv1d, 3), (nn.Conv2d, 4), (nn.Conv3d, 5))


class Network:
    """The private copy: `configure` prepares it and names the parameters that go into the arena.

    Only the module tree, the adapted tensors and the buffers are copied; frozen parameters are the caller's own
    memory. Calling it gives logits [batch, classes], whatever the model wraps them in.
    """

    def __init__(
        self,
        model: nn.Module,
        configure: Callable[[nn.Module, Statistics], Sequence[str]] = lambda module, statistics: (),
    ) -> None:
        self.module, rewrap, self._copies = _private_copy(model)
        self.statistics = Statistics(self.module)
        names = configure(self.module, self.statistics)
        self._all_tensors = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        self.arena = Arena(self.module, names)
        self.model: nn.Module = rewrap(self.module)
        self._keyword = _keyword_of(self.module)
        self._use_statistics = self.statistics.in_use
        self._parameters = [(module, dict(module._parameters)) for module in self.module.modules()]
        self._modes = [(mode, dict(vars(mode))) for mode in modes_of(self.module)]
        self.constants: dict[str, Tensor] = {}
        """What the method, and the reset policy, computed from source data."""
        reference = next((t for t in self._all_tensors.values() if t.is_floating_point()), self.arena.values)
        self.dtype, self.device = reference.dtype, reference.device

    def __call__(self, images: Tensor) -> Tensor:
        return self._run(lambda inputs, named: self.model(*inputs, **named), images)

    def with_weights(self, weights: Mapping[str, Tensor], images: Tensor) -> Tensor:
        """Logits with other tensors in place of parameters, by name; gradients reach those."""
        return self._run(partial(torch.func.functional_call, self.module, dict(weights)), images)

    def _run(self, forward: Callable[[tuple[Tensor, ...], dict[str, Tensor]], Any], images: Tensor) -> Tensor:
        if self.channels_last and images.dim() == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        if torch.is_autocast_enabled(images.device.type):
            torch.clear_autocast_cache()  # it holds copies of parameters that may have changed since
        versions = [copied._version for _, copied, _ in self._copies]
        with staying("the model's forward"):
            output = forward((images,), {}) if self._keyword is None else forward((), {self._keyword: images})
        if versions != [copied._version for _, copied, _ in self._copies]:
            self._refuse_writing(versions)
        return logits_of(output)

    def _refuse_writing(self, versions: list[int]) -> None:
        """What a forward wrote is undone, and it is said where."""
        named = list(zip(self._copies, versions, strict=True))
        written = [copy for copy, version in named if copy[1]._version != version]
        with torch.no_grad():
            for _, copied, original in written:
                copied.copy_(original)
        raise ValueError(
            f"the model's forward writes into {', '.join(name for name, _, _ in written)}: an answer would then "
            "depend on what was asked before, and no file would keep it; write only where self.training is true"
        )

    @cached_property
    def channels_last(self) -> bool:
        """Whether the caller laid the weights out in channels_last; images then follow."""
        return any(
            tensor.dim() == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)
            for tensor in self._all_tensors.values()
        )

    def admit(self, images: Tensor) -> Tensor:
        """Check a caller's batch, and bring it into the network's type."""
        if not isinstance(images, Tensor):
            given = type(images).__name__
            raise TypeError(f"images must be a torch.Tensor, got {given}: torch.as_tensor makes one of an array")
        if not images.is_floating_point():
            raise TypeError(
                f"images must be floats as the model expects them, got {images.dtype}: convert first, for example "
                "images.float() / 255"
            )
        if images.dim() < 2:
            raise ValueError(f"images must be a batch with at least 2 dimensions, got shape {tuple(images.shape)}")
        if images.dim() == 3 and len(images) == _COLOURS and self.image_rank == 4:
            raise ValueError(
                f"images have the shape {tuple(images.shape)}, which is one image; the model takes batches "
                "[N, C, H, W]: pass images[None]"
            )
        if images.numel() == 0:
            raise ValueError(f"the batch is empty: shape {tuple(images.shape)}")
        if images.device != self.device:
            raise ValueError(
                f"images are on {images.device}, the model is on {self.device}: images.to({str(self.device)!r})"
            )
        if images.dtype != self.dtype and not torch.is_autocast_enabled(images.device.type):
            images = images.to(self.dtype)
        return images.clone() if images.is_inference() else images.detach()

    @contextmanager
    def taking(self, images: Tensor, sliding: SlidingPass | None = None) -> Iterator[None]:
        """Around a pass on `images`: one alone has no batch statistics and gets the source's if there are no `sliding`
        ones, and an error is explained where they have another number of dimensions than the network's layers take."""
        lone = len(images) == 1 and self.statistics.needs_batch
        of_source = self.statistics.of_source() if lone else nullcontext()
        try:
            with of_source if sliding is None else self.statistics.by(sliding):
                yield
        except (RuntimeError, ValueError, IndexError) as error:
            rank = self.image_rank
            if rank is None or images.dim() == rank:
                raise
            raise ValueError(
                f"the model failed on images of shape {tuple(images.shape)}, and its convolutions take batches with "
                f"{rank} dimensions; a single image becomes a batch with images[None]"
            ) from error

    def rest(self) -> None:
        """End all that is meant for a block of the program only, whatever interrupted it."""
        for module, parameters in self._parameters:  # torch.func.functional_call puts others in their place
            module._parameters.update(parameters)
        self.arena.rest()
        self.statistics.unhook()
        self._use_statistics()
        for mode, resting in self._modes:
            vars(mode).update(resting)

    def tensors(self) -> list[Tensor]:
        """All that it holds, the caller's frozen ones included."""
        arena, module = self.arena, self.module
        held = [*module.parameters(), *module.buffers(), *self.statistics.source_buffers(), *self.constants.values()]
        return [*held, arena.values, arena.gradients, arena.source]

    @torch.no_grad()
    def source_logits(self, images: Tensor, *, running_statistics: bool = False) -> Tensor:
        """What the network says with the source parameters (and, if asked, the source's statistics)."""
        with self.arena.holding(self.arena.source):
            if running_statistics:
                with self.statistics.of_source():
                    return self(images)
            return self(images)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of names, shapes, types and values of the source network's tensors."""
        return digest_of(self._all_tensors)

    @cached_property
    def image_rank(self) -> int | None:
        """Number of dimensions a batch must have; None when the layers do not tell."""
        for module in self.module.modules():
            for kind, rank in _RANK_OF_CONVOLUTION:
                if isinstance(module, kind):
                    return rank
        return None


def _keyword_of(module: nn.Module) -> str | None:
    """The name by which a forward takes its images where it takes nothing by position; None: by position.

    >>> class KeywordOnly(nn.Module):
    ...     def forward(self, *, pixel_values: Tensor, labels: Tensor | None = None) -> Tensor:
    ...         return pixel_values
    >>> _keyword_of(KeywordOnly()), _keyword_of(nn.Identity())
    ('pixel_values', None)
    """
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # a forward that is no Python function does not tell
        return None
    if any(parameter.kind in _BY_POSITION for parameter in parameters):
        return None
    named = [parameter for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    needed = [parameter for parameter in named if parameter.default is inspect.Parameter.empty] or named
    return next((parameter.name for parameter in needed), "pixel_values")


def logits_of(output: Any) -> Tensor:
    """The logits inside what a model returned: a tensor, a tuple's first entry, `.logits` or `["logits"]`.

    >>> logits_of((torch.zeros(2, 3), "features")).shape
    torch.Size([2, 3])
    """
    if isinstance(output, dict) and "logits" in output:
        output = output["logits"]
    elif not isinstance(output, Tensor) and hasattr(output, "logits"):
        output = output.logits
    elif isinstance(output, (tuple, list)) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise TypeError(
            f"the model returned {type(output).__name__}; expected logits [batch, classes], a tuple that starts with "
            "them, or an object with .logits"
        )
    if output.dim() != 2:
        raise ValueError(
            f"the model returned a tensor of shape {tuple(output.shape)}; expected logits [batch, classes]"
        )
    return output.float() if output.dtype in (torch.float16, torch.bfloat16) else output


_Copies: TypeAlias = list[tuple[str, Tensor, Tensor]]
"""The name of a tensor that is no parameter, its copy, and the caller's own."""


def _private_copy(model: nn.Module) -> tuple[nn.Module, Callable[[nn.Module], nn.Module], _Copies]:
    """A copy of the module tree in eval mode over the caller's parameters, what wraps it as the caller had it, and
    the other tensors, which are copied: a forward may write into them."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError("a TorchScript model cannot be adapted: pass the eager model it was made from")

    rewrap: Callable[[nn.Module], nn.Module] = nn.Module.eval
    if hasattr(model, "_orig_mod") and hasattr(model, "dynamo_ctx"):  # what torch.compile returns
        rewrap, model = cast(Any, model).dynamo_ctx, cast(nn.Module, model._orig_mod)
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        model = model.module
    memo: dict[int, Any] = {}
    copies: _Copies = []
    for path, module in model.named_modules():
        own = {**module._parameters, **module._buffers, **vars(module)}
        for name, value in own.items():
            if is_lazy(value):
                raise ValueError("the model has lazy layers that were never run: call it once on a batch first")
            if isinstance(value, Tensor) and value.is_meta:
                raise ValueError("the model is on the meta device, without values: load its weights first")
            if isinstance(value, nn.Parameter):
                memo[id(value)] = nn.Parameter(value.detach(), requires_grad=False)
            elif isinstance(value, Tensor) and id(value) not in memo:
                with torch.inference_mode(False):
                    memo[id(value)] = value.detach().clone()
                copies.append((f"{path}.{name}".lstrip("."), memo[id(value)], value))
    return copy.deepcopy(model, memo).requires_grad_(False).eval(), rewrap, copies
