"""Conformance: what every adapter promises, whatever its method and reset policy, as checks anyone can run."""

from __future__ import annotations

import copy
import gc
import inspect
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tidefast.adapter import Adapter
from tidefast.errors import SnapshotError
from tidefast.methods.base import registry as methods
from tidefast.resets.base import registry as resets

Factory = Callable[..., Adapter]
Normalization = Literal["batch", "layer", "group", "attention"]
_STEPS = 6


def small_network(norm: Normalization = "batch", classes: int = 10) -> nn.Module:
    """A tiny classifier of images [batch, 3, height, width] with one kind of normalisation.

    "attention" is a vision transformer, with LayerNorm, for images whose sides are multiples of 8.

    >>> small_network("group")(torch.rand(4, 3, 8, 8)).shape
    torch.Size([4, 10])
    """
    if norm == "attention":
        return _SmallTransformer(classes)
    if norm == "layer":
        return _TokenNet(classes)
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 8), (8, 12), (12, 16)):
        kind = nn.BatchNorm2d(outputs) if norm == "batch" else nn.GroupNorm(4, outputs)
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), kind, nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes))


class _TokenNet(nn.Module):
    """Patches, two residual blocks with LayerNorm, mean, head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 4, stride=4)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))
        self.mixers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.head = nn.Linear(16, classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.embed(images).flatten(2).transpose(1, 2)
        for norm, mixer in zip(self.norms[:2], self.mixers, strict=True):
            tokens = tokens + nn.functional.gelu(mixer(norm(tokens)))
        logits: Tensor = self.head(self.norms[2](tokens).mean(1))
        return logits


class _PatchEmbedding(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, 8, stride=8)

    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.proj(images)
        return embeddings


class _ProbeAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = self.qkv(tokens).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        heads = nn.functional.scaled_dot_product_attention(query, key, value)
        mixed: Tensor = self.proj(heads.transpose(1, 2).flatten(2))
        return mixed


class _ProbeBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = _ProbeAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attn(self.norm1(tokens))
        mixed: Tensor = tokens + self.mlp(self.norm2(tokens))
        return mixed


class _SmallTransformer(nn.Module):
    """A vision transformer with a class token, its parts named as in timm."""

    def __init__(self, classes: int, width: int = 16, heads: int = 2, depth: int = 3) -> None:
        super().__init__()
        self.patch_embed = _PatchEmbedding(width)
        self.cls_token = nn.Parameter(0.1 * torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(0.1 * torch.randn(1, width, 4, 4))
        self.blocks = nn.Sequential(*(_ProbeBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        embeddings = self.patch_embed(images)
        position = nn.functional.interpolate(self.pos_embed, embeddings.shape[2:], mode="bilinear")
        patches = (embeddings + position).flatten(2).mT
        tokens = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1)
        logits: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return logits


def quick_adapter(model: nn.Module, method: str, reset: str = "never", **options: Any) -> Adapter:
    """An adapter for the suite: method and policy by name, at their `quick` settings, with source data where needed.

    >>> len(quick_adapter(small_network(), "memo")(torch.rand(2, 3, 16, 16)))
    2
    """
    chosen = methods.make(method, **methods.get(method).quick)
    policy = resets.make(reset, **resets.get(reset).quick)
    if chosen.needs_source or policy.needs_source:
        options.setdefault("source", (torch.rand(32, 3, 32, 32), torch.arange(32) % 10))
    return Adapter(model, chosen, reset=policy, **options)


def check_adapter(
    factory: Factory,
    *,
    images: Tensor | None = None,
    checks: Sequence[str] | None = None,
    norm: Normalization = "batch",
) -> list[str]:
    """Run the conformance suite on the adapters that `factory` makes; raise AssertionError at the first broken promise.

    A factory with one argument is given `small_network(norm)` and must adapt it; one without arguments brings
    its own network, and `images` [steps, batch, ...] in [0, 1] should then fit it (default: RGB, 32 x 32).
    Returns the names of the checks that passed.

    >>> import tidefast
    >>> len(check_adapter(lambda model: tidefast.adapt(model, "tent"))) == len(CHECKS)
    True
    """
    suite = _Suite(factory, _stream() if images is None else images, norm)
    chosen = list(CHECKS) if checks is None else list(checks)
    for name in chosen:
        try:
            CHECKS[name](suite)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
    return chosen


class _Suite:
    """A factory whose adapters are alike, and a stream for them."""

    def __init__(self, factory: Factory, images: Tensor, norm: Normalization) -> None:
        self.images, self.norm = images, norm
        self._factory = factory
        self.takes_model = bool(inspect.signature(factory).parameters)

    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return small_network(self.norm)

    def adapter(self, model: nn.Module | None = None) -> Adapter:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self._factory(model or small_network(self.norm)) if self.takes_model else self._factory()

    def run(self, adapter: Adapter, start: int = 0, stop: int = _STEPS) -> list[Tensor]:
        return [adapter(self.images[step]) for step in range(start, stop)]


def _stream(steps: int = 2 * _STEPS) -> Tensor:
    """Smooth random images whose contrast and brightness drift."""
    generator = torch.Generator().manual_seed(1)
    images = nn.functional.interpolate(torch.rand(steps * 16, 3, 8, 8, generator=generator), 32, mode="bilinear")
    drift = torch.linspace(0.2, 1.0, steps).repeat_interleave(16).view(-1, 1, 1, 1)
    return (drift * images + 0.5 * (1 - drift)).view(steps, 16, 3, 32, 32)


def _snapshot(adapter: Adapter) -> bytes:
    """Everything that is saved of an adapter; equal bytes mean equal state."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        adapter.save(path, durable=False)
        return path.read_bytes()


def _bring_back(adapter: Adapter, saved: bytes) -> None:
    """Load what `_snapshot` gave."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        path.write_bytes(saved)
        adapter.load(path)


def _bits(adapter: Adapter) -> list[Any]:
    """Parameters and declared state, without counters of calls."""
    values: list[Any] = [adapter.network.arena.values.clone()]
    for state in adapter.state.values():
        values += [value.clone() if isinstance(value, Tensor) else value for value in state.values()]
    return values


def _same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return len(left) == len(right) and all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
        for a, b in zip(left, right, strict=True)
    )


def _answers_every_batch(suite: _Suite) -> None:
    adapter = suite.adapter()
    for images in suite.images[:_STEPS]:
        before = adapter.predict(images)
        logits = adapter(images)
        assert logits.shape == before.shape, f"logits {tuple(logits.shape)}, predict gave {tuple(before.shape)}"
        assert not logits.requires_grad, "the logits are still attached to the graph"
        assert torch.isfinite(logits).all(), "the logits are not finite"
        assert torch.allclose(logits, before, rtol=1e-3, atol=1e-4), "the logits are not those of before the update"
    assert adapter.last is not None, "there is no record of the last step"
    assert adapter.last.step == _STEPS, f"the record counts {adapter.last.step} steps, expected {_STEPS}"


def _answers_are_logits(suite: _Suite) -> None:
    adapter = suite.adapter()
    answers = adapter(suite.images[0])
    sums = answers.sum(1)
    probabilities = (answers >= 0).all() and torch.allclose(sums, torch.ones_like(sums), atol=1e-4)
    assert not probabilities, "the answers are probabilities: give their logarithm"
    sure_of_each = 6.0 * torch.eye(answers.shape[1], dtype=answers.dtype, device=answers.device)
    before, after = (logits.softmax(1).amax(1).mean() for logits in (sure_of_each, adapter.method.output(sure_of_each)))
    odds = torch.logit(after, eps=1e-6) / torch.logit(before, eps=1e-6)
    assert 0.5 < odds < 2.0, (
        f"the network's confidence of {before:.3f}, in every class alike, is answered as {after:.3f}: keep the scale "
        "of the logits in output()"
    )


def _leaves_the_callers_model_alone(suite: _Suite) -> None:
    if not suite.takes_model:
        return
    model = suite.model()
    next(model.parameters()).requires_grad_(False)
    next(model.children()).eval()
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    flags = [(parameter.requires_grad, parameter.grad) for parameter in model.parameters()]
    adapter = suite.adapter(model)
    suite.run(adapter)
    adapter.reset()
    after = model.state_dict()
    assert list(before) == list(after), "the keys of the state dict changed"
    assert all(torch.equal(before[key], after[key]) for key in before), "a value in the state dict changed"
    assert modes == [module.training for module in model.modules()], "a train/eval mode changed"
    now = [(parameter.requires_grad, parameter.grad) for parameter in model.parameters()]
    assert flags == now, "a requires_grad flag or a gradient changed"
    owned = {parameter.data_ptr() for parameter in model.parameters()}
    frozen = [p for p in adapter.network.module.parameters() if not p.requires_grad]
    assert all(parameter.data_ptr() in owned for parameter in frozen), "a frozen weight was copied"


def _predict_changes_nothing(suite: _Suite) -> None:
    adapter = suite.adapter()
    suite.run(adapter, stop=2)
    before, record = _snapshot(adapter), adapter.last
    adapter.predict(suite.images[2])
    adapter.predict(suite.images[2][:1])
    assert _snapshot(adapter) == before, "predict changed the state"
    assert adapter.last is record, "predict wrote a record"


def _reset_returns_to_the_source(suite: _Suite) -> None:
    adapter = suite.adapter()
    fresh = _snapshot(adapter)
    first = suite.run(adapter)
    adapter.reset()
    arena = adapter.network.arena
    assert torch.equal(arena.values, arena.source), "the parameters are not the source's"
    assert _snapshot(adapter) == fresh, "the state is not that of a new adapter"
    assert _same(first, suite.run(adapter)), "the stream does not repeat after a reset"


def _resumes_bit_for_bit(suite: _Suite) -> None:
    whole = suite.adapter()
    expected = suite.run(whole)
    for stop in (0, 1, _STEPS // 2):
        interrupted, resumed = suite.adapter(), suite.adapter()
        suite.run(interrupted, stop=stop)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.safetensors"
            interrupted.save(path, durable=False)
            suite.run(resumed, start=4, stop=5)  # loading must replace whatever was there
            resumed.load(path)
        rest = suite.run(resumed, start=stop)
        assert _same(rest, expected[stop:]), f"other logits after resuming at step {stop}"
        assert _snapshot(resumed) == _snapshot(whole), f"another final state after resuming at step {stop}"


def _a_damaged_snapshot_changes_nothing(suite: _Suite) -> None:
    adapter, other = suite.adapter(), suite.adapter()
    suite.run(adapter, stop=2)
    suite.run(other, stop=1)
    before = _snapshot(other)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        adapter.save(path, durable=False)
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[-3] ^= 4
        for damaged in (whole[:-5], whole[:40], b"", bytes(flipped)):
            path.write_bytes(damaged)
            try:
                other.load(path)
            except SnapshotError:
                pass
            else:
                raise AssertionError("a damaged snapshot was loaded without an error")
            assert _snapshot(other) == before, "a damaged snapshot changed the adapter"


def _non_finite_batches_reach_nothing(suite: _Suite) -> None:
    adapter = suite.adapter()
    suite.run(adapter, stop=2)
    before = _bits(adapter)
    for poison in (float("nan"), float("inf"), torch.finfo(suite.images.dtype).max):
        images = suite.images[2].clone()
        images[0] = poison
        logits = adapter(images)
        assert logits.shape[0] == len(images), "the batch was not answered"
        assert torch.isfinite(logits).all(), f"images with {poison} were answered with non-finite logits"
        assert torch.isfinite(adapter.network.arena.values).all(), f"images with {poison} reached the parameters"
        if not torch.isfinite(images).all():
            assert adapter.last is not None, "there is no record"
            assert adapter.last.nonfinite > 0, "the batch was not counted"
            assert _same(_bits(adapter), before), f"images with {poison} changed the state"
    assert all(torch.isfinite(logits).all() for logits in suite.run(adapter, start=3)), "the stream did not recover"


class _Fault(Exception):  # noqa: N818 (what the suite does to a step, not what a user meets)
    """Raised amid a step."""


@contextmanager
def _failing(adapter: Adapter, where: int | str) -> Iterator[None]:
    """Within the block a step fails after its pass number `where`, amid a backward, or once the optimiser or the policy
    did their part."""
    passes, module, policy = itertools.count(1), adapter.network.module, adapter.policy

    def fail(*_: object) -> Any:
        raise _Fault

    def fail_there(*_: object) -> None:
        if next(passes) == where:
            fail()

    def fail_backward(layer: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(fail)  # type: ignore[no-untyped-call]  # gap in stubs

    handles: list[Any] = [module.register_forward_hook(fail_there)]
    if where == "backward":  # on its way from the last layer to the first
        adapted = (layer for layer in module.modules() if any(p.requires_grad for p in layer.parameters(recurse=False)))
        handles += [layer.register_forward_hook(fail_backward) for layer in itertools.islice(adapted, 1)]
    elif where == "optimizer":
        handles.append(adapter.optimizer.register_step_post_hook(fail))
    elif where == "policy":
        observe = policy.observe
        vars(policy)["observe"] = lambda step, state: fail(observe(step, state))
    try:
        yield
    finally:
        vars(policy).pop("observe", None)
        for handle in handles:
            handle.remove()


def _a_failed_step_leaves_nothing(suite: _Suite) -> None:
    first, second, third = suite.images[:3, :4]  # few: many steps are begun
    adapter, passes = suite.adapter(), list[None]()
    adapter(first)
    before = _snapshot(adapter)
    with adapter.network.module.register_forward_hook(lambda *_: passes.append(None)):
        expected = [adapter(second)]
    expected.append(adapter(third))
    after = _snapshot(adapter)
    _bring_back(adapter, before)
    places: list[int | str] = [*sorted({1, 2, 3, len(passes)} & set(range(1, len(passes) + 1))), "policy"]
    for where in [*places, "backward", "optimizer"] if len(adapter.network.arena) else places:
        name, record = f"pass {where}" if isinstance(where, int) else f"the {where}", adapter.last
        try:
            with _failing(adapter, where):
                adapter(second)
        except _Fault:
            assert _snapshot(adapter) == before, f"a step that failed in {name} changed the state"
            assert adapter.last is record, f"a step that failed in {name} wrote a record"
        else:  # there is no such thing in its steps
            _bring_back(adapter, before)
    assert _same([adapter(second), adapter(third)], expected), "other logits after steps that failed"
    assert _snapshot(adapter) == after, "another state after steps that failed"


def _ragged_and_single_batches_work(suite: _Suite) -> None:
    adapter = suite.adapter()
    classes = adapter(suite.images[0]).shape[1]
    images = suite.images.flatten(0, 1)
    for size in (2, 3, 7):
        assert adapter(images[:size]).shape == (size, classes), f"a batch of {size} was not answered"
    stepped = False
    for image in images[: 2 * adapter.window + 1]:
        logits = adapter(image[None])
        assert logits.shape == (1, classes), "a batch of one was not answered"
        assert torch.isfinite(logits).all(), "a batch of one got non-finite logits"
        stepped |= adapter.last is not None and adapter.last.skipped is None
    assert stepped or adapter.window > 32, "batches of one never made a step"


def _other_precisions_and_modes_work(suite: _Suite) -> None:
    expected = suite.run(suite.adapter(), stop=2)
    for context in (torch.no_grad, torch.inference_mode):
        adapter = suite.adapter()
        with context():
            logits = [adapter(images.clone()) for images in suite.images[:2]]
        assert _same([t.clone() for t in logits], expected), f"other results under {context.__name__}"
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        adapter = suite.adapter()
        assert torch.isfinite(adapter(suite.images[0].to(dtype))).all(), f"{dtype} images are not handled"
    adapter = suite.adapter()
    with torch.autocast(adapter.network.device.type, dtype=torch.bfloat16):
        assert torch.isfinite(adapter(suite.images[0])).all(), "autocast is not handled"
    assert adapter.network.arena.is_finite(), "autocast poisoned the parameters"


def _growing(adapter: Adapter) -> int:
    """Numbers in fields that are declared to grow up to a bound, each checked against it."""
    count = 0
    for owner, state in adapter.state.items():
        for name in [name for name, field in state.fields.items() if field.grows]:
            wrong = state.misfit(name, state[name])
            assert wrong is None, f"state {owner}.{name} {wrong}"
            value = state[name]
            count += value.numel() if isinstance(value, Tensor) else 0
    return count


def _memory_stays_flat(suite: _Suite) -> None:
    adapter = suite.adapter()
    counts, held = [], []
    gc.freeze()  # what was there before is not searched again: most of a second each time, once torch is imported
    try:
        for _ in range(4):
            suite.run(adapter)
            gc.collect()
            counts.append(sum(issubclass(type(held), Tensor) for held in gc.get_objects()))
            held.append(adapter.numbers_held() - _growing(adapter))
    finally:
        gc.unfreeze()
    slack = 4 * len(adapter.network.arena) + 64  # a first reset may still add its averages
    assert held[3] <= held[1] + slack, f"numbers held grew from {held[1]} to {held[3]}"
    assert counts[3] <= counts[1] + 8, f"live tensors grew from {counts[1]} to {counts[3]}"


CHECKS: dict[str, Callable[[_Suite], None]] = {
    "answers every batch": _answers_every_batch,
    "answers are logits": _answers_are_logits,
    "leaves the caller's model alone": _leaves_the_callers_model_alone,
    "predict changes nothing": _predict_changes_nothing,
    "reset returns to the source": _reset_returns_to_the_source,
    "resumes bit for bit": _resumes_bit_for_bit,
    "a damaged snapshot changes nothing": _a_damaged_snapshot_changes_nothing,
    "non-finite batches reach nothing": _non_finite_batches_reach_nothing,
    "a failed step leaves nothing": _a_failed_step_leaves_nothing,
    "ragged and single batches work": _ragged_and_single_batches_work,
    "other precisions and modes work": _other_precisions_and_modes_work,
    "memory stays flat": _memory_stays_flat,
}
"""The suite: name of each promise and the check of it."""
