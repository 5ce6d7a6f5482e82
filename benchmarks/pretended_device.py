"""A device that is not there: tensors that say they are on it, and count how often the host would wait for it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

DEVICE = torch.device("privateuseone", 0)
"""Of the kind that torch leaves to others, since a build of it for CPUs has no autograd for "cuda"."""
_aten = torch.ops.aten
_COPYING = (_aten._to_copy.default, _aten.copy_.default)
_INDEXING = (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default)
_FETCHING = (_aten._local_scalar_dense.default, _aten.equal.default)
_WAITING = (  # values are fetched, or decide on the size of the result
    *_FETCHING,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten._unique2.default,
    _aten.unique_dim.default,
    _aten.unique_consecutive.default,
    _aten.repeat_interleave.Tensor,
    _aten.bincount.default,
)


class PretendedDevice(FakeTensorMode):  # type: ignore[no-untyped-call]  # of torch's own base
    """Within it `DEVICE` may be named, and every tensor there has its values in the host's memory.

    Torch's own fake tensors say on which device a result is, and refuse operations across devices. Beside each is a
    real tensor that the same operation is done to, so that what depends on values goes as it would. `stalls` counts
    what the host would wait for the device for: values fetched, results whose size depends on values, masks as indices,
    and copies between host and device, which wait too unless they are asked not to.
    """

    def __init__(self) -> None:
        super().__init__()
        self._within = False  # torch finds out about some operations by others, which are not the program's
        self.stalls: Counter[str] = Counter()
        # torch remembers fakes by weak references, with which `Module.to` cannot put one in the place of another
        self.fake_tensor_converter.set_tensor_memo = lambda t, v: None  # type: ignore[method-assign]

    @property
    def avoid_device_init(self) -> bool:
        """Whether the device is not there, so that nothing may be made on it."""
        return True

    def dispatch(
        self, func: Any, types: Sequence[type], args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        leaves = tree_leaves((args, kwargs))
        devices = [leaf.device for leaf in leaves if isinstance(leaf, Tensor)]
        if func.namespace == "prim" or self._within:
            return super().dispatch(func, types, args, kwargs)
        if self._waits(func, args, kwargs):
            self.stalls[func.name().partition("::")[2].partition(".")[0].strip("_")] += 1
        self._within, unknown = True, False
        try:
            fake = None if func in _FETCHING else super().dispatch(func, types, args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            fake, unknown = None, True
        finally:
            self._within = False
        real = func(*tree_map(_real, tuple(args)), **tree_map(_real, kwargs))
        if func in _FETCHING:
            return real
        if unknown:
            return tree_map(functools.partial(self.pretend, device=devices[0]), real)
        for leaf, value in zip(tree_leaves(fake), tree_leaves(real), strict=True):
            if isinstance(leaf, FakeTensor) and not hasattr(leaf, "shadow"):
                leaf.shadow = value  # type: ignore[attr-defined]  # what is real of it
            if isinstance(leaf, FakeTensor):
                _refuse_strange_generator(func, leaves, leaf.device)
        return fake

    def pretend(self, value: Any, device: torch.device = DEVICE) -> Any:
        """A tensor with these values on `device`; anything else as it is."""
        if not isinstance(value, Tensor):
            return value
        meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        fake = FakeTensor(self, meta, device)
        fake.shadow = value  # type: ignore[attr-defined]
        return fake

    def values(self, tensor: Tensor) -> Tensor:
        """What is real of a tensor: its values in the host's memory."""
        value: Tensor = _real(tensor)
        return value

    def _waits(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the host would wait for the device."""
        if func in _COPYING:
            into, origin = (args[0].device, args[1].device) if func is _aten.copy_.default else (None, args[0].device)
            target = into or torch.device(kwargs.get("device") or origin)
            return target.type != origin.type and not kwargs.get("non_blocking")
        if func in _INDEXING:
            indices = [leaf for leaf in tree_leaves(args[1]) if isinstance(leaf, Tensor)]
            strange = any(i.dtype in (torch.bool, torch.uint8) or i.device != args[0].device for i in indices)
            return strange and args[0].device == DEVICE
        return func in _WAITING and args[0].device == DEVICE


def _real(value: Any) -> Any:
    """What is real of an argument."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.shadow if isinstance(value, FakeTensor) else value  # type: ignore[attr-defined]


def _refuse_strange_generator(func: Any, leaves: list[Any], device: torch.device) -> None:
    for leaf in leaves:
        if isinstance(leaf, torch.Generator) and leaf.device.type != device.type:
            raise RuntimeError(f"{func} on {device} was given a generator of {leaf.device}")


class _OutOfSight(TorchFunctionMode):
    """What no operation tells of: arrays over the memory of a tensor, and the threads of a backward pass."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in (torch.autograd.backward, torch.autograd.grad, Tensor.backward):
            with torch.autograd.set_multithreading_enabled(False):  # the engine may have no thread for the device
                return func(*args, **(kwargs or {}))
        if func is not Tensor.numpy or not isinstance(args[0], FakeTensor):
            return func(*args, **(kwargs or {}))
        if args[0].device == DEVICE:
            raise TypeError(f"a tensor on {DEVICE} cannot become an array: copy it to the host first")
        with unset_fake_temporarily():
            return _real(args[0]).numpy()


def _listed(tensor: FakeTensor) -> Any:
    """`Tensor.tolist`, which fetches all values at once, and which no operation tells of either."""
    if tensor.device == DEVICE:
        cast(PretendedDevice, tensor.fake_mode).stalls["tolist"] += 1
    with unset_fake_temporarily():
        return _real(tensor).tolist()


@functools.cache
def _register() -> None:
    """Tell torch of the device, once and for the life of the process."""
    _setup_privateuseone_for_python_backend("pretended")


@contextmanager
def pretended_device() -> Iterator[PretendedDevice]:
    """Within the block there is a device `DEVICE`.

    >>> with pretended_device() as device:
    ...     values = torch.rand(3, device=DEVICE)
    ...     kept = values[values > 2.0]
    >>> values.device == DEVICE, len(kept), dict(device.stalls)
    (True, 0, {'index': 1})
    """
    _register()
    device = PretendedDevice()
    with mock.patch.object(FakeTensor, "tolist", _listed), device, _OutOfSight():
        yield device
