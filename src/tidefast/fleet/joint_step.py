"""Steps of several streams at once: one forward and one backward for all, and each stream's own hooks between them."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tidefast.adapter import Adapter, Turn
from tidefast.core import optim
from tidefast.core.finite import all_finite
from tidefast.core.joint import InseparableError, JointNetwork, StreamNetwork
from tidefast.core.record import StepRecord
from tidefast.core.session import Session, SlidingWindow, cloned
from tidefast.core.sliding import SlidingPass
from tidefast.core.step import Asking, Forward, Objective, Step, Views, continued, needs_loss_scale
from tidefast.methods import answering
from tidefast.methods.base import Method
from tidefast.resets.base import Reset

_log = logging.getLogger("tidefast")
_STREAMS = 64
"""At most so many streams share a pass."""
_IMAGES = 128
"""And on a processor about so many images: what a layer makes of more does not stay in its cache."""
_TOLERANCE = 1e-3


class JointCall(NamedTuple):
    """The part of one stream in a joint call."""

    session: Session
    images: Tensor
    adapt: bool
    """Else it only predicts."""


class JointAnswer(NamedTuple):
    """What came of it."""

    logits: Tensor | Exception
    """In their place what prevented them."""
    session: Session
    """Of the stream from now on."""
    record: StepRecord | None
    """None when it was no step."""


@dataclass
class _StreamInStep:
    """One stream on its way through a joint step."""

    number: int
    """Its place among the calls."""
    row: int
    """Its place in the pass."""
    turn: Turn
    session: Session
    """As it was before the call."""
    draft: Session
    counts: bool
    """Whether this is an adapting call."""
    network: StreamNetwork
    optimizer: torch.optim.Optimizer
    step: Step = field(init=False)
    under_way: Objective | Asking = field(init=False)
    """Its loss, which may be asking for something."""
    asks: Views | None = None
    """What for."""
    objective: Objective = field(init=False)
    left: SlidingWindow | None = None
    """What stands for its latest images after the pass."""
    sound: bool = True
    """If not, it is stepped alone, where whatever is the matter with it is dealt with."""

    def lead_on(self, logits: Tensor | None = None) -> None:
        """Let the loss go on to its next question or its end, with the logits that it asked for."""
        result = self.under_way if isinstance(self.under_way, Objective) else continued(self.under_way, logits)
        if isinstance(result, Views):
            self.asks = result
        else:
            self.asks, self.objective, self.step.objective = None, result, result


def is_plain(method: type[Method]) -> bool:
    """Whether a method says that its streams may be stepped together, and has the hooks that this takes."""
    return method.together and answering.is_one_pass(method) and method.gradient is Method.gradient


def shares_passes(adapter: Adapter) -> bool:
    """Whether the streams of adapters made like this one can be stepped together."""
    watched = any(type(policy).watching is not Reset.watching for policy in adapter.policies.values())
    return is_plain(type(adapter.method)) and not watched and adapter.network.model is adapter.network.module


class JointStepper:
    """Steps several streams at once; to be used by one thread at a time.

    make: gives adapters as the streams have them. Two are made: one whose network is for joint passes, and `adapter`,
    for the streams that have to be stepped alone.
    """

    @torch.inference_mode(False)
    def __init__(self, make: Callable[[], Adapter]) -> None:
        self.adapter, template = make(), make()
        self._joint = JointNetwork(template.network, _STREAMS)
        self._optimizers = [
            optim.made(template.make_optimizer, network.arena.parameter) for network in self._joint.rows
        ]
        self._all = optim.made(template.make_optimizer, self._joint.parameter)
        self._verified = False
        self.inseparable: str | None = None
        """Why streams cannot share the network's passes, once that is known."""

    def take(self, calls: Sequence[JointCall]) -> list[JointAnswer]:
        """What came of each call. No session that was given changes."""
        try:
            answers = {} if needs_loss_scale(self.adapter.network.device) else self._together(calls)
        except InseparableError as reason:
            self.inseparable = str(reason)
            answers = {}
        except Exception as error:  # as when there is no memory for a copy of them
            _tell(error)
            answers = {}
        return [answers.get(number) or self._alone(call) for number, call in enumerate(calls)]

    def _alone(self, call: JointCall) -> JointAnswer:
        """The call as every adapter takes it."""
        adapter = self.adapter
        adapter.enter(call.session)
        logits: Tensor | Exception
        try:
            logits = adapter(call.images) if call.adapt else adapter.predict(call.images)
        except Exception as error:
            logits = error
        record = adapter.last if adapter.step != call.session.step else None
        return JointAnswer(logits, adapter.leave(), record)

    def _together(self, calls: Sequence[JointCall]) -> dict[int, JointAnswer]:
        """What came of the calls, by number, that took their course with all others."""
        results: dict[int, JointAnswer] = {}
        with torch.inference_mode(False), torch.enable_grad():
            turns = self._turns(calls)
            for chosen in _portions(turns, self.adapter.network.device):
                started = time.perf_counter()
                self._joint.rest()
                streams = [self._begun(row, number, turns[number], calls[number]) for row, number in enumerate(chosen)]
                with _setting_aside(*streams):
                    with torch.no_grad():
                        torch.stack([stream.draft.values for stream in streams], out=self._values[: len(streams)])
                    answers = self._stepped(streams) if streams[0].turn.adapts else self._answered(streams)
                    share = (time.perf_counter() - started) / len(streams)
                    results |= {number: _timed(answer, share) for number, answer in answers.items()}
        return results

    @property
    def _values(self) -> Tensor:
        return self._joint.parameter.data

    # -- before a pass ----------------------------------------------------------------------------------------

    def _turns(self, calls: Sequence[JointCall]) -> dict[int, Turn]:
        """What becomes of the images of each call, by its number; those that are not simply sound are left out."""
        admitted: dict[int, Tensor] = {}
        for number, call in enumerate(calls):
            try:
                admitted[number] = self.adapter.network.admit(call.images)
            except (TypeError, ValueError):
                continue
        by_shape: dict[Any, list[int]] = defaultdict(list)
        for number, images in admitted.items():
            by_shape[images.shape[1:], images.dtype].append(number)
        turns: dict[int, Turn] = {}
        for numbers in by_shape.values():
            usable = all_finite(torch.cat([admitted[number] for number in numbers]))
            for number in numbers:
                call, images = calls[number], admitted[number]
                if usable or all_finite(images):
                    try:
                        turns[number] = self._turn(images, call)
                    except ValueError:  # the images of its window have another size
                        continue
        return turns

    def _turn(self, images: Tensor, call: JointCall) -> Turn:
        return self.adapter.turn(images, call.session, adapt=call.adapt)

    def _begun(self, row: int, number: int, turn: Turn, call: JointCall) -> _StreamInStep:
        session = call.session
        network, optimizer = self._joint.rows[row], self._optimizers[row]
        draft = dataclasses.replace(session, step=session.step + call.adapt, recent=turn.recent, fresh=turn.fresh)
        if turn.adapts or self.adapter.policies_answer:
            draft.states = {owner: state.copy() for owner, state in session.states.items()}
        if turn.adapts:
            optimizer.state.clear()
            if session.moments:
                optimizer.state[network.arena.parameter] = cloned(session.moments)
            optimizer.param_groups[0].update(cloned(session.group))
        return _StreamInStep(number, row, turn, call.session, draft, call.adapt, network, optimizer)

    # -- passes -----------------------------------------------------------------------------------------------

    def _run(
        self,
        images: Sequence[Tensor],
        values: Tensor,
        alone: Sequence[bool] | None = None,
        sliding: SlidingPass | None = None,
    ) -> list[Tensor]:
        """Of one pass the logits of each stream, for its images and with its row of the values."""
        sizes = [len(part) for part in images]
        return list(torch.split(self._joint(torch.cat(list(images)), values, sizes, alone, sliding), sizes))

    def _pass(self, streams: Sequence[_StreamInStep]) -> list[Tensor]:
        """The logits of each stream; those with unusable ones are not sound."""
        needs_batch = self.adapter.network.statistics.needs_batch
        images = [stream.turn.images for stream in streams]
        lone = [needs_batch and len(part) == 1 for part in images]
        sliding = self._sliding_pass(streams)
        parts = self._run(images, self._joint.parameter[: len(streams)], lone, sliding)
        if not self._verified and any(not torch.equal(part, images[0]) for part in images[1:]):
            self._verify(streams, parts)
        finite = all_finite(torch.cat(parts))
        for stream, part in zip(streams, parts, strict=True):
            classes = stream.draft.num_classes
            stream.sound = (finite or all_finite(part)) and classes in (None, part.shape[1])
        if sliding is not None:
            self._leave(streams, parts, sliding.after())
        return parts

    def _sliding_pass(self, streams: Sequence[_StreamInStep]) -> SlidingPass | None:
        """What a pass does to the sliding statistics of the streams [2, streams, channels], where it does anything."""
        normalizes = streams[0].turn.slides
        if not (normalizes or any(stream.turn.is_window for stream in streams)):
            return None
        windows = [stream.session.sliding for stream in streams]
        known = next((window.statistics for window in windows if window), None)
        if known is None:
            return self._joint.network.statistics.sliding(None, 1.0, normalizes=False)
        before = torch.stack([window.statistics if window else torch.zeros_like(known) for window in windows], 1)
        shares = [self.adapter.share(s.turn) if window else 1.0 for s, window in zip(streams, windows, strict=True)]
        share = torch.tensor(shares, dtype=before.dtype)[:, None].to(before.device, non_blocking=True)
        return self._joint.network.statistics.sliding(before, share, normalizes=normalizes)

    def _leave(self, streams: Sequence[_StreamInStep], parts: Sequence[Tensor], after: Tensor | None) -> None:
        """Give each stream what stands for its latest images, where the pass gave anything sound."""
        if after is None:
            return
        finite = all_finite(after)
        for (stream, part), own in zip(zip(streams, parts, strict=True), after.unbind(1), strict=True):
            turn = stream.turn
            if stream.sound and (turn.slides or turn.is_window) and (finite or all_finite(own)):
                stream.left = answering.window_after(own.clone(), stream.session.sliding, part, self.adapter.window)

    @torch.no_grad()
    def _verify(self, streams: Sequence[_StreamInStep], parts: Sequence[Tensor]) -> None:
        """Once, whether the network says the same when one stream asks alone: nobody knows what a forward does.

        A pass of one stream, or of streams that show the same, would say nothing.
        """
        adapter = self.adapter
        for stream, part in list(zip(streams, parts, strict=True))[-2:]:
            adapter.enter(stream.draft)
            own, _ = adapter.passed(stream.turn, stream.session)
            adapter.reset()
            if all_finite(own):
                if not torch.allclose(own, part, rtol=_TOLERANCE, atol=_TOLERANCE * float(own.abs().max())):
                    raise InseparableError("the answers to one stream's images depend on those of others")
                self._verified = True

    @torch.no_grad()
    def _answered(self, streams: Sequence[_StreamInStep]) -> dict[int, JointAnswer]:
        """Answer without a step: images that wait for their window, and those of streams that only predict."""
        method, adapter, answers = self.adapter.method, self.adapter, {}
        for stream, logits in _sound(streams, self._pass(streams)):
            turn, draft = stream.turn, stream.draft
            own = answering.output(method, logits, stream.left)[-turn.answers :]
            if adapter.policies_answer:
                reference = adapter.reference(turn, stream.session, stream.network)
                own = adapter.answered(own, reference, draft, counts=stream.counts)
            if stream.counts:
                draft.sliding = stream.left
            answers[stream.number] = JointAnswer(own, draft, adapter.waiting(draft) if stream.counts else None)
        return answers

    def _stepped(self, streams: Sequence[_StreamInStep]) -> dict[int, JointAnswer]:
        """The step of `Adapter`, each part of it for all streams before the next."""
        self._joint.gradients[: len(streams)].zero_()
        with torch.set_grad_enabled(len(self.adapter.network.arena) > 0):
            parts = self._pass(streams)
        for stream, logits in _sound(streams, parts):
            with _setting_aside(stream):
                self._begin_loss(stream, logits)
        while asking := [stream for stream in _sound_alone(streams) if stream.asks]:
            self._answer_losses(asking)
        self._backward(streams)
        for stream in _sound_alone(streams):
            with _setting_aside(stream):
                stream.sound = stream.objective.answer is None or all_finite(stream.objective.answer)
                self.adapter.adjust(stream.step, stream.objective, stream.draft)
        self._update(streams)
        self._ask_source(streams)
        answers = {}
        for stream in _sound_alone(streams):
            with _setting_aside(stream):
                answers[stream.number] = self._judged(stream)
        return answers

    def _begin_loss(self, stream: _StreamInStep, logits: Tensor) -> None:
        """The stream's own loss, as far as these logits carry it."""
        adapter, draft = self.adapter, stream.draft
        stream.step = adapter.begun(stream.network, stream.optimizer, stream.turn.images, Forward(logits), draft, {})
        stream.under_way = adapter.method.loss(stream.step, draft.states["method"])
        stream.lead_on()

    def _answer_losses(self, streams: Sequence[_StreamInStep]) -> None:
        """The logits of further images that losses ask for, in as few passes as their kinds allow."""
        kinds: dict[Any, list[tuple[_StreamInStep, Views]]] = defaultdict(list)
        for stream in streams:
            if views := stream.asks:
                kinds[views.gradient, views.images.shape[1:], views.images.dtype].append((stream, views))
        for (gradient, *_), asking in kinds.items():
            rows = torch.tensor([stream.row for stream, _ in asking]).to(self._values.device, non_blocking=True)
            with torch.set_grad_enabled(gradient):
                images, lone = [v.images for _, v in asking], [v.source_statistics for _, v in asking]
                parts = self._run(images, self._joint.parameter.index_select(0, rows), lone)
            for (stream, _), logits in zip(asking, parts, strict=True):
                with _setting_aside(stream):
                    stream.lead_on(logits)

    def _backward(self, streams: Sequence[_StreamInStep]) -> None:
        """One backward of all losses; a stream whose loss or gradient is unusable is not sound."""
        own = [(stream, stream.objective.loss) for stream in _sound_alone(streams)]
        losses = [(stream, loss) for stream, loss in own if loss is not None]
        if not losses:
            return
        torch.autograd.backward([loss for _, loss in losses])
        numbers = torch.stack([loss.detach() for _, loss in losses]).tolist()
        method = self.adapter.method
        for (stream, _), number in zip(losses, numbers, strict=True):
            stream.step.know_loss(number)
            stream.sound = math.isfinite(number)
            if stream.sound:
                with _setting_aside(stream):
                    method.regularize(stream.step, stream.draft.states["method"])
        if not all_finite(self._joint.gradients[: len(streams)].square()):
            for stream in _sound_alone(streams):
                stream.sound = all_finite(stream.network.arena.gradients.square())

    def _update(self, streams: Sequence[_StreamInStep]) -> None:
        """One step of the optimisers of all streams that take one."""
        if not len(self.adapter.network.arena):
            return
        moving = [stream for stream in _sound_alone(streams) if stream.objective.step]
        step_all([stream.optimizer for stream in moving], self._all)
        for stream in moving:
            with _setting_aside(stream):
                self.adapter.method.after_step(stream.step, stream.draft.states["method"])
        if not all_finite(self._values[: len(streams)]):
            for stream in moving:
                stream.sound = stream.sound and stream.network.arena.is_finite()

    @torch.no_grad()
    def _ask_source(self, streams: Sequence[_StreamInStep]) -> None:
        """The source model's answers, where a policy will ask for them, in one pass."""
        network, images = self._joint.network, [stream.turn.images for stream in streams]
        source = network.arena.source.expand(len(streams), -1)
        for asked in {policy.compares_with for policy in self.adapter.policies.values()} - {None}:
            running = asked == "running"
            with network.statistics.of_source() if running else contextlib.nullcontext():
                parts = self._run(images, source)
            for stream, part in _sound(streams, parts):
                stream.step.know_source_logits(part, running_statistics=running)

    def _judged(self, stream: _StreamInStep) -> JointAnswer:
        """The answer, and the session after what the policies make of the step."""
        draft, optimizer, arena = stream.draft, stream.optimizer, stream.network.arena
        logits, record = self.adapter.judged(stream.step, stream.objective, draft, stream.turn.answers, stream.left)
        draft.values, draft.moments = arena.values.clone(), dict(optimizer.state.get(arena.parameter, {}))
        draft.group = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
        return JointAnswer(logits, draft, record)


def step_all(optimizers: Sequence[torch.optim.Optimizer], whole: torch.optim.Optimizer) -> None:
    """A step of each of some optimisers over one parameter, in one call where torch can; `whole` is another of them."""
    known = type(whole).__module__.startswith("torch.optim.") and "foreach" in whole.defaults
    if not known or isinstance(whole.defaults.get("lr"), Tensor):  # on a processor there is no call for such a rate
        for optimizer in optimizers:
            optimizer.step()
        return
    whole.param_groups, whole.state = [], defaultdict(dict)
    for optimizer in optimizers:
        group = {**optimizer.param_groups[0], "foreach": True}
        same = next((g for g in whole.param_groups if all(g[k] == v for k, v in group.items() if k != "params")), None)
        if same is None:
            whole.param_groups.append({**group, "params": [*group["params"]]})
        else:
            same["params"] += group["params"]
        whole.state.update(optimizer.state)
    whole.step()
    for optimizer in optimizers:
        (parameter,) = optimizer.param_groups[0]["params"]
        optimizer.state[parameter] = whole.state[parameter]


class _setting_aside:  # noqa: N801 (a context manager reads like a function)
    """What goes wrong inside is the affair of these streams, which are then stepped alone."""

    def __init__(self, *streams: _StreamInStep) -> None:
        self._streams = streams

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *rest: object) -> bool:
        if kind is None or not issubclass(kind, Exception) or issubclass(kind, InseparableError):
            return False
        _tell(error)
        for stream in self._streams:
            stream.sound = False
        return True


def _tell(error: BaseException | None) -> None:
    _log.debug("streams are stepped one by one, this time: %s", error)


def _sound(streams: Sequence[_StreamInStep], parts: Sequence[Tensor]) -> Iterator[tuple[_StreamInStep, Tensor]]:
    return ((stream, part) for stream, part in zip(streams, parts, strict=True) if stream.sound)


def _sound_alone(streams: Sequence[_StreamInStep]) -> list[_StreamInStep]:
    return [stream for stream in streams if stream.sound]


def _portions(turns: dict[int, Turn], device: torch.device) -> Iterator[list[int]]:
    """Numbers of calls that share a pass: all or none of them step, slide, and their images have one shape."""
    most = _IMAGES if device.type == "cpu" else 1 << 30
    kinds: dict[Any, list[int]] = defaultdict(list)
    for number, turn in turns.items():
        kinds[turn.adapts, turn.slides, turn.images.shape[1:], turn.images.dtype].append(number)
    for numbers in kinds.values():
        portion: list[int] = []
        images = 0
        for number in numbers:
            size = len(turns[number].images)
            if portion and (len(portion) == _STREAMS or images + size > most):
                yield portion
                portion, images = [], 0
            portion.append(number)
            images += size
        yield portion


def _timed(answer: JointAnswer, seconds: float) -> JointAnswer:
    """The same, with what it took; the share of each stream in the time of a pass is the same."""
    if answer.record is None:
        return answer
    record = dataclasses.replace(answer.record, seconds=seconds)
    answer.session.last = record
    return answer._replace(record=record)
