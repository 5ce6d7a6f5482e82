"""A step is whole or not at all, whatever raises in it and wherever an interrupt comes."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tidefast
from tidefast import methods, resets
from tidefast.core.state import Field
from tidefast.testing import quick_adapter, small_network

IMAGES = torch.rand(4, 6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
OPTIMIZER = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
PAIRS = [
    *[("eta", "asr"), ("tent", "never"), ("roid", "asr"), ("cmf", "never"), ("sar", "never"), ("deyo", "never")],
    *[("rotta", "never"), ("rpl", "never"), ("law", "never"), ("palm", "never"), ("datta", "distribution")],
    ("memo", "never"),
]


def busy_adapter(method: str, policy: str) -> tidefast.Adapter:
    """One whose steps do all that the method ever does."""
    torch.manual_seed(0)
    kind, rule = methods.base.registry.get(method), resets.base.registry.get(policy)
    chosen = kind(**{**kind.quick, **kind.busiest})
    source = IMAGES.flatten(0, 1) if chosen.needs_source or rule(**rule.quick).needs_source else None
    return tidefast.adapt(
        small_network(), chosen, reset=rule(**rule.quick), optimizer=OPTIMIZER, source=source, num_classes=10
    )


class Failing(nn.Module):
    """A network that raises after its pass number `at`, when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.passes, self.at = small_network(), itertools.count(1), 0

    def forward(self, images: Tensor) -> Tensor:
        logits = self.inner(images)
        if self.at and next(self.passes) == self.at:
            raise RuntimeError("out of order")
        return logits


def bits(adapter: tidefast.Adapter, folder: Path) -> bytes:
    adapter.save(folder / "bits", durable=False)
    return (folder / "bits").read_bytes()


def interrupted(call: Callable[[], object], at: int) -> int:
    """Call with a Ctrl-C at the event number `at`: a bytecode of this package, or a line of another.

    Gives the number of events that were there.
    """
    own, events = (str(Path(tidefast.__file__).parent), "contextlib"), 0

    def trace(frame, event, argument):
        nonlocal events
        frame.f_trace_opcodes = any(part in frame.f_code.co_filename for part in own)
        events += 1
        if events == at:
            signal.raise_signal(signal.SIGINT)
        return trace

    outer, handler = sys.gettrace(), signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.settrace(trace)
    try:
        call()
    except (KeyboardInterrupt, RuntimeError, ValueError):  # the last where Python swallowed the interrupt in a hook
        pass
    finally:
        sys.settrace(outer)
        signal.signal(signal.SIGINT, handler)
    return events


def check_interrupts(adapter: tidefast.Adapter, folder: Path, places: int, first: float = 0.0) -> set[str]:
    """Interrupt the second step at many places, from the share `first` of it on; what became of it."""
    adapter(IMAGES[0])
    adapter.save(folder / "before")
    before, fails = bits(adapter, folder), isinstance(adapter.model, Failing) and adapter.model.at > 0
    following: dict[str, Tensor] = {}
    if not fails:
        adapter(IMAGES[1])
        after = bits(adapter, folder)
        following["after"] = adapter(IMAGES[2])
        adapter.load(folder / "before")
    following["before"] = adapter(IMAGES[2])
    adapter.load(folder / "before")

    def step() -> None:
        if fails:
            adapter.model.passes = itertools.count(1)
        adapter(IMAGES[1])

    total, seen = interrupted(step, at=0), set()
    for at in sorted(random.Random(0).sample(range(int(first * total), total), places)):
        adapter.load(folder / "before")
        interrupted(step, at)
        found = bits(adapter, folder)
        outcome = "before" if found == before else "after" if not fails and found == after else "in between"
        assert outcome != "in between", f"interrupted at event {at} of {total}"
        if fails:
            adapter.model.passes = itertools.count(-1000)
        assert torch.equal(adapter(IMAGES[2]), following[outcome]), f"other logits, interrupted at {at} of {total}"
        seen.add(outcome)
    return seen


# Python itself swallows an exception while it closes a generator: such a step goes on, and is done.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("method", "policy", "places"),
    [pytest.param("eta", "asr", 12), *(pytest.param(*pair, 60, marks=pytest.mark.slow) for pair in PAIRS)],
)
def test_an_interrupt_anywhere_leaves_a_step_undone_or_done(method, policy, places, tmp_path):
    assert "before" in check_interrupts(busy_adapter(method, policy), tmp_path, places)


@pytest.mark.slow
def test_a_signal_at_any_moment_leaves_a_step_undone_or_done(tmp_path):
    adapter, moments, seen = busy_adapter("eta", "asr"), random.Random(0), set()
    adapter(IMAGES[0])
    adapter.save(tmp_path / "before")
    before = bits(adapter, tmp_path)
    adapter(IMAGES[1])
    after, seconds = bits(adapter, tmp_path), adapter.last.seconds
    outer = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(100):
            adapter.load(tmp_path / "before")
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, 2 * seconds))
                adapter(IMAGES[1])
                signal.pause()
            found = bits(adapter, tmp_path)
            assert found in (before, after)
            seen.add(found)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, outer)
    assert len(seen) == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_way_back_is_gone_to_its_end(tmp_path):
    adapter = quick_adapter(Failing(), "roid", "asr", optimizer=OPTIMIZER)
    adapter(IMAGES[3])
    adapter.model.at = 2
    adapter.model.passes = itertools.count(-1000)
    assert check_interrupts(adapter, tmp_path, places=25, first=0.8) == {"before"}


def test_a_network_that_fails_amid_the_window_of_single_images_leaves_the_window(tmp_path):
    one, two = (tidefast.adapt(Failing(), "eta", reset="asr", window=3) for _ in range(2))
    stream = IMAGES.flatten(0, 1).split(1)
    for adapter in (one, two):
        for image in stream[:5]:
            adapter(image)
    one.model.at, one.model.passes = 1, itertools.count(1)
    with pytest.raises(RuntimeError, match="out of order"):
        one(stream[6])
    one.model.at = 0
    assert bits(one, tmp_path) == bits(two, tmp_path)
    assert all(torch.equal(one(image), two(image)) for image in stream[7:14])
    assert bits(one, tmp_path) == bits(two, tmp_path)


@dataclass(frozen=True)
class Meddling(methods.Tent):
    """Changes the settings of the optimiser, and what it holds in place, before it fails."""

    fails: tuple[int, ...] = ()

    def fields(self, network, num_classes):
        return [Field("seen", lambda: torch.zeros(2))]

    def after_step(self, step, state):
        step.optimizer.param_groups[0]["lr"] *= 0.5
        state.tensor("seen").add_(1.0)
        if step.number in self.fails:
            raise OSError("no space left")


def test_settings_of_the_optimiser_and_tensors_written_in_place_come_back():
    torch.manual_seed(0)
    model = small_network()
    one, two = (tidefast.adapt(model, method, optimizer="adam:lr=0.1") for method in (Meddling(fails=(2,)), Meddling()))
    one(IMAGES[0])
    two(IMAGES[0])
    with pytest.raises(OSError, match="no space left"):
        one(IMAGES[1])
    assert one.step == 1
    assert one.optimizer.param_groups[0]["lr"] == two.optimizer.param_groups[0]["lr"] == 0.05
    assert torch.equal(one.state["method"].tensor("seen"), torch.ones(2))
    assert torch.equal(one.network.arena.values, two.network.arena.values)
    for name, moment in two.optimizer.state[two.network.arena.parameter].items():
        assert torch.equal(one.optimizer.state[one.network.arena.parameter][name], moment)
    assert not one.network.arena.gradients.any()


@dataclass(frozen=True)
class Surprising(resets.Never):
    def observe(self, step, state):
        return resets.Verdict(measurements={"surprise": 1.0})


def test_a_measurement_that_was_not_declared_makes_no_step():
    adapter = tidefast.adapt(small_network(), "tent", reset=Surprising(), optimizer=OPTIMIZER)
    with pytest.raises(KeyError, match="surprise measured, but not declared"):
        adapter(IMAGES[0])
    assert (adapter.step, adapter.last, dict(adapter.optimizer.state)) == (0, None, {})
    assert torch.equal(adapter.network.arena.values, adapter.network.arena.source)


def test_a_callback_that_raises_finds_the_step_done_and_leaves_it_so(tmp_path):
    def complain(adapter, record):
        raise ValueError("no such dashboard")

    torch.manual_seed(0)
    model = small_network()
    one, two = (tidefast.adapt(model, "eta", reset="asr", callbacks=c) for c in ([complain], []))
    two(IMAGES[0])
    with pytest.raises(ValueError, match="no such dashboard"):
        one(IMAGES[0])
    assert one.step == one.last.step == 1
    assert bits(one, tmp_path) == bits(two, tmp_path)


def test_predicting_in_a_network_that_fails_leaves_the_teacher_aside(tmp_path):
    adapter = quick_adapter(Failing(), "cotta", optimizer=OPTIMIZER)
    adapter(IMAGES[0])
    before = bits(adapter, tmp_path)
    adapter.model.at = 1
    with pytest.raises(RuntimeError, match="out of order"):
        adapter.predict(IMAGES[1])
    assert bits(adapter, tmp_path) == before


# -- fleets --------------------------------------------------------------------------------------------------------


def small_fleet(model: nn.Module) -> tidefast.Fleet:
    """One stream on disk, one in memory that no file has, and one adapter for both."""
    fleet = tidefast.Fleet(model, "eta", reset="asr", optimizer=OPTIMIZER, num_classes=10, workers=1, resident=1)
    fleet["idle"](IMAGES[0])
    fleet["here"](IMAGES[1])
    return fleet


def both(fleet: tidefast.Fleet, folder: Path) -> tuple[bytes, ...]:
    """What its streams are, looked at from another thread: a lock that is still held would be waited for."""
    found: list[bytes] = []
    looking = threading.Thread(
        target=lambda: found.extend([bits(fleet[name], folder) for name in ("idle", "here")]), daemon=True
    )
    looking.start()
    looking.join(20)
    assert found, "a lock is held, or a stream cannot be read"
    return tuple(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda fleet: fleet["here"](IMAGES[2]), id="step"),
        pytest.param(lambda fleet: fleet.adapt({"here": IMAGES[2], "idle": IMAGES[3]}), id="together"),
        pytest.param(lambda fleet: fleet["idle"].predict(IMAGES[2]), id="predict"),
        pytest.param(lambda fleet: fleet["here"].reset(), id="reset"),
        pytest.param(lambda fleet: fleet.freeze("here"), id="freeze"),
        pytest.param(lambda fleet: fleet.wake("idle"), id="wake"),
    ],
)
def test_an_interrupt_anywhere_in_a_fleet_loses_no_stream_and_holds_no_lock(act, tmp_path):
    torch.manual_seed(0)
    model = small_network()
    fleet = small_fleet(model)
    before, total = both(fleet, tmp_path), interrupted(lambda: act(small_fleet(model)), at=0)
    setup = interrupted(lambda: small_fleet(model), at=0)
    act(fleet)
    legal = {before, both(fleet, tmp_path)}
    for at in random.Random(0).sample(range(1, total - setup), min(40, total - setup - 1)):
        fleet = small_fleet(model)
        interrupted(functools.partial(act, fleet), at)
        assert both(fleet, tmp_path) in legal, f"interrupted at event {at} of {total - setup}"
