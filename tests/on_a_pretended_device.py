"""Adapting on a device: how often the host waits for it, and that no tensor is on the wrong one.

There is no such device here. `benchmarks/pretended_device.py` has torch's fake tensors say where a result would be and
refuse operations across devices, with real tensors beside them for what depends on values. That shows which tensors are
made where, and when a number is asked for. It does not show that kernels of a device exist or agree with the host's,
that a stream of the device is waited for where it must, autocast, pinned memory, memory formats that a device prefers,
or what a library does behind torch's back.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pytest
import safetensors.torch
import torch
from pretended_device import DEVICE, pretended_device
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn.attention import SDPBackend, sdpa_kernel

import tidefast
from tidefast import cli, methods, streams
from tidefast.bench import Experiment, runner
from tidefast.core.step import Objective, Step
from tidefast.fleet.joint_step import JointStepper, is_plain
from tidefast.methods.base import Method
from tidefast.testing import quick_adapter, small_network

BUSY = {
    "eta": methods.ETA(entropy_margin=1.1, similarity_margin=2.0),
    "roid": methods.ROID(),
    "eata": methods.EATA(fisher_weight=0.0, entropy_margin=1.1, similarity_margin=2.0),
    "cmf": methods.CMF(),
    "tent": methods.Tent(),
}


def batches(count: int, size: int = 12) -> Tensor:
    return torch.rand(count, size, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def network(norm: str = "batch") -> nn.Module:
    torch.manual_seed(0)
    return small_network(norm)


@pytest.mark.parametrize("reset", ["never", "asr"])
@pytest.mark.parametrize("method", BUSY)
def test_a_step_waits_for_the_device_at_most_three_times(method, reset):
    with pretended_device() as device:
        with torch.device(DEVICE):
            adapter = tidefast.adapt(network(), BUSY[method], reset=reset)
        for images in batches(4).to(DEVICE):
            device.stalls.clear()
            adapter(images)
            assert device.stalls.total() <= 3, device.stalls
            assert adapter.last.selected > 0


def test_what_makes_the_host_wait_is_counted():
    waiting = {
        "item": lambda t: t.sum().item(),
        "float": lambda t: float(t[0]),
        "bool": lambda t: bool((t > 0).all()),
        "tolist": lambda t: t.tolist(),
        "numpy": lambda t: t.cpu().numpy(),
        "nonzero": lambda t: t.nonzero(),
        "mask": lambda t: t[t > 0.5],
        "masked_select": lambda t: t.masked_select(t > 0.5),
        "unique": lambda t: t.unique(),
        "equal": lambda t: torch.equal(t, t),
        "to the host": lambda t: t.to("cpu"),
        "from the host": lambda t: t.new_tensor([1.0]),
        "written from the host": lambda t: t.copy_(torch.zeros(4)),
    }
    with pretended_device() as device:
        values = torch.rand(4, device=DEVICE)
        for name, read in waiting.items():
            device.stalls.clear()
            read(values)
            assert device.stalls.total() == 1, name
        device.stalls.clear()
        (values * 2.0 + values.mean())[values.argsort()].clamp(0.0, 1.0).cumsum(0)
        torch.rand(4)[torch.rand(4) > 0.5].tolist()  # all on the host
        assert not device.stalls


def answers(method: str, reset: str, norm: str, *, on_device: bool) -> tuple[list[Tensor], Tensor]:
    """What three steps answer, and the parameters after them."""
    given = []
    size = 3 if method == "memo" else 12
    with contextlib.ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # otherwise the host has a kernel for attention of its own
        device = stack.enter_context(pretended_device()) if on_device else None
        with torch.device(DEVICE if device else "cpu"):
            own = network(norm)
        torch.manual_seed(0)  # of the source images
        adapter = quick_adapter(own, method, reset)
        for images in batches(3, size):
            given.append(adapter(images.to(DEVICE) if device else images))
        given.append(adapter.predict(batches(1, size)[0].to(own_device(adapter))))
        adapter.reset()
        parameters = adapter.network.arena.values
        for tensor in [*given, *adapter.network.tensors(), *adapter._whole().tensors()]:
            assert tensor.device == own_device(adapter) or tensor.dim() == 0  # an optimiser counts on the host
        if device:
            return [device.values(tensor) for tensor in given], device.values(parameters)
    return given, parameters


def own_device(adapter: tidefast.Adapter) -> torch.device:
    return adapter.network.device


@pytest.mark.parametrize(
    ("method", "reset"),
    [
        *((method, "asr") for method in tidefast.list_methods()),
        *(pytest.param("roid", reset, marks=pytest.mark.slow) for reset in tidefast.list_resets() if reset != "asr"),
    ],
)
def test_a_method_makes_no_tensor_on_the_wrong_device(method, reset):
    norm = "attention" if methods.base.registry.get(method).transformers_only else "batch"
    there, here = answers(method, reset, norm, on_device=True), answers(method, reset, norm, on_device=False)
    for one, other in zip([*there[0], there[1]], [*here[0], here[1]], strict=True):
        assert torch.equal(one, other)  # so what was seen there is what happens


SHARES = [4, 5, 6]
"""Images of each of some streams."""


def joint_answers(method: Method, norm: str, *, on_device: bool) -> tuple[list[Tensor], int]:
    """What three joint steps of some streams answer, and how often the host waited in the last one."""
    given = []
    with pretended_device() if on_device else contextlib.nullcontext() as device:
        place = DEVICE if device else torch.device("cpu")
        with torch.device(place):
            own = network(norm)
        source = batches(1).flatten(0, 1) if method.needs_source else None
        fleet = tidefast.Fleet(own, method, reset="asr", source=source)
        for images in batches(3, sum(SHARES)):
            parts = images.to(place).split(SHARES)
            if device:
                device.stalls.clear()
            answers = fleet.adapt({f"{number}": part for number, part in enumerate(parts)})
            waits = device.stalls.total() if device else 0
            given += [device.values(tensor) if device else tensor for tensor in answers.values()]
        for entry in fleet._entries.values():
            for tensor in entry.session.tensors():
                assert tensor.device == place or tensor.dim() == 0  # an optimiser counts on the host
    return given, waits


@pytest.mark.parametrize("norm", ["batch", pytest.param("layer", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [n for n in tidefast.list_methods() if is_plain(methods.base.registry.get(n))])
def test_streams_stepped_together_make_no_tensor_on_the_wrong_device(name, norm, monkeypatch):
    def refuse(self, call):
        raise AssertionError("a stream was stepped alone")

    monkeypatch.setattr(JointStepper, "_alone", refuse)
    kind = methods.base.registry.get(name)
    method = BUSY.get(name) or kind(**kind.quick)
    (there, waits), (here, _) = (joint_answers(method, norm, on_device=on_device) for on_device in (True, False))
    assert all(torch.equal(one, other) for one, other in zip(there, here, strict=True))
    if name in BUSY:  # five for all streams; each waits for what it selects, and for what ASR measures
        assert waits <= 5 + 2 * len(SHARES)


@dataclass(frozen=True)
class OnTheHost(Method):
    """Weighs samples by a tensor that it makes where the images are not."""

    def loss(self, step: Step, state) -> Objective:
        return Objective((step.logits.logsumexp(1) * torch.rand(len(step.logits))).mean(), len(step.logits))


@dataclass(frozen=True)
class StrangeGenerator(Method):
    """Draws on the images' device from the host's generator."""

    def loss(self, step: Step, state) -> Objective:
        noise = torch.rand(len(step.logits), generator=step.generator, device=step.logits.device)
        return Objective((step.logits.logsumexp(1) * noise).mean(), len(step.logits))


@pytest.mark.parametrize("method", [OnTheHost(), StrangeGenerator()])
def test_a_tensor_on_the_wrong_device_is_found(method):
    with pretended_device():
        with torch.device(DEVICE):
            adapter = tidefast.adapt(network(), method)
        with pytest.raises(RuntimeError, match=r"device|generator"):
            adapter(batches(1)[0].to(DEVICE))


def test_a_snapshot_of_the_host_goes_on_on_the_device(tmp_path, monkeypatch):
    saved = tidefast.adapt(network(), "tent", reset="asr", optimizer="adam:lr=1e-3")
    stream = streams.make("drift", steps=3, batch=12)
    for batch in (stream[0], stream[1]):
        saved(batch.images)
    saved.save(tmp_path / "state.safetensors")
    read = safetensors.torch.load
    with pretended_device() as device:

        def read_on_the_host(data: bytes) -> dict[str, Tensor]:
            """Files are read by a library that knows nothing of the pretended device."""
            with unset_fake_temporarily():
                tensors = read(data)
            return {name: device.pretend(tensor, torch.device("cpu")) for name, tensor in tensors.items()}

        monkeypatch.setattr(safetensors.torch, "load", read_on_the_host)
        with torch.device(DEVICE):
            adapter = tidefast.adapt(network(), "tent", reset="asr", optimizer="adam:lr=1e-3")
        adapter.load(tmp_path / "state.safetensors")
        moments = adapter.optimizer.state[adapter.network.arena.parameter]
        assert {name: moment.device.type for name, moment in moments.items()} == {
            "step": "cpu",  # as torch keeps it
            "exp_avg": DEVICE.type,
            "exp_avg_sq": DEVICE.type,
        }
        there = runner._step(adapter, stream[2])  # a run moves its images, and counts what is right on the host
    monkeypatch.undo()
    here = runner._step(saved, stream[2])
    assert there.predicted == here.predicted
    assert there.loss == here.loss


@pytest.mark.parametrize(
    "command",
    [
        ["run", "--stream", "drift", "--method", "tent", "--out", "out"],
        ["try", "--out", "out"],
        ["demo", "--out", "out"],
        ["speed"],
        ["serve", "--state", "out"],
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("xpu:3", "xpu:3 is not available: "),
        ("gpu", "a device is called cpu, cuda, cuda:1, mps or the like, got 'gpu'"),
    ],
)
def test_a_device_that_is_not_there_is_one_clear_line(command, device, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command, "--device", device]) != 0
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_an_experiment_says_where_its_network_is():
    there = Experiment("drift", "eta", device="cuda:1")
    assert Experiment.of(there.as_plain()) == there
    assert "device" not in Experiment("drift", "eta").as_plain()  # so that runs from before it was one are found again
