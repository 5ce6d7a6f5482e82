"""The adapter: a private copy of the network, one method, one reset policy, and the step that they make together."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from tidefast.core import checkpoint, optim
from tidefast.core.feedback import Feedback
from tidefast.core.finite import Checks, UnusableError, all_finite
from tidefast.core.holder import Holder
from tidefast.core.network import Network
from tidefast.core.optim import OptimizerFactory
from tidefast.core.record import Callback, StepRecord
from tidefast.core.session import Session, SlidingWindow
from tidefast.core.sliding import SlidingPass
from tidefast.core.specification import Given
from tidefast.core.state import State
from tidefast.core.step import Forward, Objective, Reference, Step
from tidefast.core.validation import require_choice, require_classes, require_count
from tidefast.errors import NonFiniteError
from tidefast.methods import answering, baking
from tidefast.methods.base import Method, with_objective
from tidefast.methods.base import registry as methods
from tidefast.preparation import SourceInput, configured, constants_for
from tidefast.resets import verdicts
from tidefast.resets.base import Reset, Verdict
from tidefast.resets.base import registry as resets
from tidefast.resets.never import Never

_log = logging.getLogger("tidefast")
_FEW = 4  # fewer are gathered: their statistics would be noise, and nobody steps so by hand
_MEMORY = 2
"""Windows of images that sliding statistics remember. Layers normalised by what others left do not make up for each
other's noise, as they do in one pass over all images, and it takes a longer memory to be as good."""
_OVERFLOW = "non-finite parameters after the update"


class Turn(NamedTuple):
    """What becomes of the images of an adapting call."""

    images: Tensor
    """Those of the pass; the call's own are the last of them."""
    answers: int
    """How many are the call's own."""
    adapts: bool
    """Whether they make a step; else they are answered, in the company of those before, and wait."""
    recent: Tensor | None
    """`Session.recent` and `Session.fresh` afterwards."""
    fresh: int
    slides: bool = False
    """Whether the statistics of those before them stand for their company."""
    is_window: bool = False
    """Whether the pass is over a whole window, for which its statistics may stand."""


class Adapter(Holder):
    """A trained classifier that adapts to the unlabelled batches it is given; `tidefast.adapt` is its other name.

    model: maps float images [batch, ...] to logits; its own tensors are never changed, frozen parameters are shared.
        A forward that writes into the model's buffers is refused: the next answer would depend on it.
    method, reset: an object from `tidefast.methods` / `tidefast.resets`, or a registered name, also with options
        ("eta:similarity_margin=0.4", {"name": "eta", "similarity_margin": 0.4}), or "module:Class".
    objective: "come" minimises COME's opinion entropy, "entropy" the method's own loss; for methods with that field.
    optimizer: callable on a list of parameters, or a class of torch.optim ("adam:lr=1e-3"); left out, the method's
        published choice for ImageNet.
    num_classes: inferred from the first batch when left out.
    source: source data, for methods that need any: a loader, tensors, or a file saved by `tidefast.prepare`.
    seed: of the method's randomness, 0 when left out; step k draws the same numbers whatever came before.
    gather, window: batches of fewer than `gather` images (4 when left out), if statistics are the batch's, are answered
        in the company of the latest such ones, mostly by statistics that slide along with them, and every `window` of
        them, of one size, make one adaptation step; a larger batch is a step of its own. Where images do not meet in
        statistics, only single ones are gathered.
    nonfinite_limit, on_nonfinite: after so many unusable batches in a row, return to the source or raise.
    callbacks: called with (adapter, record) after every adapting call; the step is done by then, and stays done when
        one of them raises.

    A call that raises, whatever raised and wherever, is no step: parameters, optimiser and state are as before it.
    Not safe for calls from several threads at once.

    >>> import torch, tidefast
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 10))
    >>> adapter = tidefast.adapt(net, "eta", reset="asr")
    >>> adapter(torch.rand(16, 3, 8, 8)).shape
    torch.Size([16, 10])
    >>> adapter.last.step
    1
    >>> adapter
    <Adapter of Sequential, eta + asr: 16 parameters in 1 layers adapt, step 1>
    """

    @torch.inference_mode(False)  # what is made in that mode could never be written to outside of it
    def __init__(
        self,
        model: nn.Module,
        method: Given | Method = "roid",
        *,
        reset: Given | Reset | None = None,
        objective: str | None = None,
        optimizer: Given | OptimizerFactory | None = None,
        num_classes: int | None = None,
        source: SourceInput | None = None,
        seed: int | None = None,
        window: int = 16,
        gather: int | None = None,
        nonfinite_limit: int = 10,
        on_nonfinite: Literal["reset", "raise"] = "reset",
        callbacks: Iterable[Callback] = (),
    ) -> None:
        require_count("window", window)
        if gather is not None:
            require_count("gather", gather)
        require_count("nonfinite_limit", nonfinite_limit)
        require_choice("on_nonfinite", on_nonfinite, ("reset", "raise"))
        if num_classes is not None:
            require_count("num_classes", num_classes, low=2)
        self.method = methods.make(method)
        self.policy: Reset = Never() if reset is None else resets.make(reset)
        if objective is not None:
            self.method = with_objective(self.method, objective)
        self.make_optimizer = self.method.optimizer if optimizer is None else optim.factory(optimizer)
        own = self.method.own_reset()
        self.policies = {**({} if own is None else {"own_reset": own}), "reset": self.policy}
        """The method's own reset rule, where it has one, and the policy, named like the states of a session."""
        self._answering = {n: policy for n, policy in self.policies.items() if type(policy).answer is not Reset.answer}
        compared = any(policy.compares_answers for policy in self.policies.values())
        self.measures = {name: what for policy in self.policies.values() for name, what in policy.measures.items()}
        """What a record's `measurements` may hold, by name: the method's own reset rule's and the policy's."""
        self.callbacks, self.window, self.gather = list(callbacks), window, _FEW if gather is None else gather
        self._told_of_few = gather is not None  # who chooses knows
        self.nonfinite_limit, self.on_nonfinite = nonfinite_limit, on_nonfinite
        network = configured(model, self.method, self.policy)
        self._slides = (
            answering.is_one_pass(type(self.method))
            and network.statistics.can_slide
            and network.model is network.module  # a compiled one would be compiled anew
            and window > 1
            and not compared
        )
        self.preparation = constants_for(network, self.method, self.policy, source)
        self.constants = network.constants = self.preparation.tensors
        start = self.method.start(self.constants)
        if start is not None:
            network.arena.begin_at(start)
        super().__init__(network, optim.made(self.make_optimizer, network.arena.parameter), num_classes, seed)

    def __repr__(self) -> str:
        arena, network = self.network.arena, type(self.network.module).__name__
        parts = " + ".join([self.method.name, *([] if isinstance(self.policy, Never) else [self.policy.name])])
        adapted = f"{len(arena):,} parameters in {len(arena.layers)} layers adapt"
        return f"<Adapter of {network}, {parts}: {adapted}, step {self.step}>"

    def _declare(self, num_classes: int) -> dict[str, State]:
        owners: dict[str, Method | Reset] = {"method": self.method, **self.policies}
        states = {name: State(owner.fields(self.network, num_classes)) for name, owner in owners.items()}
        if self.policy.keeps:
            states[verdicts.KEPT] = verdicts.nothing_kept(states["method"], self.network.arena)
        return states

    def _belongings(self) -> dict[str, Any]:
        return checkpoint.belongings(self.network, self.method, self.policy, self.optimizer, self.window)

    def __call__(self, images: Tensor) -> Tensor:
        """Predict, then adapt: the logits [batch, classes] of before this step's update."""
        started = time.perf_counter()
        with torch.inference_mode(False), torch.enable_grad():
            images = self.network.admit(images)
            draft = self._begin()
            try:
                logits, record = self._take(images, draft)
                draft.last = record = dataclasses.replace(record, seconds=time.perf_counter() - started)
                self._commit(draft)
            except BaseException:
                self._recover()
                raise
        for callback in self.callbacks:
            callback(self, record)
        return logits

    def predict(self, images: Tensor) -> Tensor:
        """Predict only: logits [batch, classes]; nothing changes, not even a counter."""
        self._recover()
        with torch.inference_mode(False), torch.no_grad():
            images = self.network.admit(images)
            self._busy = True
            try:
                logits = self._answer(self.turn(answering.readable(images), self._session, adapt=False), self._session)
                self._busy = False
            except BaseException:
                self._recover()
                raise
        return logits

    def bake(self, images: Tensor) -> nn.Module:
        """An ordinary module with the adapted weights, whose normalisation layers have the statistics of `images`.

        images: as many as there is memory for, such as the stream brings now; at least 2 where statistics are the
        batch's. The module is in eval mode, has weights of its own, without gradients, and needs nothing of this
        package: save it, export it. It gives the network's logits; what a method makes of those of a whole batch
        (ROID's and CMF's prior correction) is not in it. Nothing of the adapter changes.

        >>> import tidefast
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 10))
        >>> adapter = tidefast.adapt(net, "tent")
        >>> _ = adapter(torch.rand(16, 3, 8, 8))
        >>> baked = adapter.bake(torch.rand(64, 3, 8, 8))
        >>> type(baked).__name__, list(baked.state_dict()) == list(net.state_dict())
        ('Sequential', True)
        """
        self._recover()
        with torch.inference_mode(False), torch.no_grad():
            images = self.network.admit(images)
            if not all_finite(images):
                raise ValueError("images to bake with must be finite numbers")
            if len(images) < 2 and self.network.statistics.needs_batch:
                raise ValueError("statistics of one image would be noise: bake with some more, 64 or so")
            self._busy = True
            try:
                answer = functools.partial(
                    answering.run, self.method, self.method.predict, self.network, images, self._session
                )
                module = baking.baked(self.network, answer, images, type(self.method).__name__)
                self._busy = False
            except BaseException:
                self._recover()
                raise
        return module

    def feedback(self, images: Tensor, labels: Tensor | Sequence[int]) -> Feedback:
        """Say what some images of the stream show, to decide whether adapting is worth it (`resets.Guard(alpha=0.05)`).

        labels: classes [batch]. Only images on which the adapted network and the one that does not adapt disagree tell
        anything; choose which ones to label without looking at who is right. Parameters and steps stay as they are.

        >>> import tidefast
        >>> from tidefast.testing import small_network
        >>> adapter = tidefast.adapt(small_network(), "tent", reset="guard:alpha=0.05")
        >>> images = torch.rand(16, 3, 32, 32)
        >>> _ = adapter(images)
        >>> adapter.feedback(images, [3] * 16).serves
        'reference'
        """
        if not self.policy.takes_labels:
            raise ValueError(
                f"the reset policy {self.policy.name!r} as given learns nothing from labels; make the adapter with "
                "reset=resets.Guard(alpha=0.05), for instance"
            )
        with torch.inference_mode(False), torch.no_grad():
            images = self.network.admit(images)
            if not all_finite(images):
                raise ValueError("images that labels are for must be finite numbers")
            draft = self._begin()
            draft.step -= 1  # it is no step
            try:
                turn = self.turn(images, draft, adapt=False)
                (logits, _), reference = self._asked(turn, draft), self.reference(turn, draft, self.network)
                known = require_classes("labels", labels, len(images), logits.shape[1]).to(logits.device)
                result = self.policy.feedback(logits, reference(), known, self.states_of(draft, logits)["reset"])
                self._commit(draft)
            except BaseException:
                self._recover()
                raise
        return result

    @torch.no_grad()
    def passed(self, turn: Turn, session: Session) -> tuple[Tensor, SlidingWindow | None]:
        """Logits for the images of a turn that makes no step, and what stands for the latest images afterwards."""
        sliding = self._sliding_pass(turn, session)
        logits = answering.run(self.method, self.method.predict, self.network, turn.images, session, sliding)
        return logits, answering.left_by(sliding, session.sliding, logits, self.window)

    def _asked(self, turn: Turn, session: Session) -> tuple[Tensor, SlidingWindow | None]:
        """What the method answers from the session as it is, and what stands for the latest images afterwards."""
        logits, left = self.passed(turn, session)
        return answering.output(self.method, logits, left)[-turn.answers :], left

    def reference(self, turn: Turn, session: Session, network: Network) -> Reference:
        """What gives the answers of the network that does not adapt; images whose company slides pass in it again."""
        asked = self._company(turn.images, session) if turn.slides else turn.images
        return answering.unadapted(network, asked, turn.answers)

    def _answer(self, turn: Turn, session: Session, *, counts: bool = False) -> Tensor:
        """Answer from the session as it is; only where it `counts` is that a draft that may change."""
        logits, left = self._asked(turn, session)
        if self.policies_answer:
            logits = self.answered(logits, self.reference(turn, session, self.network), session, counts=counts)
        if counts:
            session.sliding = left
        return logits

    @property
    def policies_answer(self) -> bool:
        """Whether a policy has a say in what is answered."""
        return bool(self._answering)

    def answered(self, logits: Tensor, reference: Reference, session: Session, *, counts: bool) -> Tensor:
        """What the policies make of an answer; only where it `counts` is the session a draft that may change."""
        if self._answering:
            states = self.states_of(session, logits) if counts or session.states else self._declare(logits.shape[1])
            for name, policy in self._answering.items():
                logits = policy.answer(logits, reference, states[name], counts=counts)
        return logits

    def states_of(self, draft: Session, logits: Tensor) -> dict[str, State]:
        """The states of a draft, which begin with the first logits."""
        if draft.num_classes is None:
            draft.num_classes = logits.shape[1]
            draft.states = self._declare(draft.num_classes)
        return draft.states

    def turn(self, images: Tensor, session: Session, *, adapt: bool = True) -> Turn:
        """What becomes of finite images: in an adapting call few are gathered, and every `window` of them is a step."""
        coupled = self.network.statistics.needs_batch
        lone = len(images) == 1 and len(self.network.arena) > 0
        if not adapt:
            few = coupled and len(images) < self.gather
            return self._waiting(images, session, session.recent, session.fresh, few)
        if len(images) >= self.gather or not (coupled or lone):
            if coupled and not self._told_of_few and session.last is None and len(images) < self.window:
                self._tell_of_few(len(images))
            return Turn(images, len(images), True, session.recent, session.fresh)
        if session.recent is None and len(images) > 1:  # without company they are what there is
            return Turn(images, len(images), True, images.clone(), session.fresh, is_window=self._may_slide(images))
        fresh = session.fresh + len(images)
        recent = answering.joined(session.recent, images, max(self.window, fresh))
        if fresh >= self.window:
            is_window = self._may_slide(recent)
            return Turn(recent, len(images), True, recent[-self.window :], 0, is_window=is_window)
        return self._waiting(images, session, recent, fresh, coupled)

    def _waiting(self, images: Tensor, session: Session, recent: Tensor | None, fresh: int, few: bool) -> Turn:
        """Images that make no step: `few` are answered in their company, or by what stands for it."""
        slides = few and self._slides and session.sliding is not None  # a file may have some that are of no use here
        if slides and session.recent is not None:
            answering.require_one_size(session.recent, images)
        asked = self._company(images, session) if few and not slides else images
        is_window = few and not slides and self._may_slide(asked)
        return Turn(asked, len(images), False, recent, fresh, slides, is_window)

    def _company(self, images: Tensor, session: Session) -> Tensor:
        """Few images behind the latest that were gathered."""
        return answering.joined(session.recent, images, max(self.window, len(images)))

    def _may_slide(self, images: Tensor) -> bool:
        """Whether a pass over these images can stand for them."""
        return self._slides and len(images) >= self.window

    def _tell_of_few(self, size: int) -> None:
        self._told_of_few = True
        _log.warning(
            "batches of %d images, and the network normalises by the batch: so few cost accuracy. gather=%d answers "
            "them in the company of recent ones, gather=1 leaves them as they are without this warning",
            size,
            self.window,
        )

    def _take(self, images: Tensor, draft: Session) -> tuple[Tensor, StepRecord]:
        if len(images) < self.gather and not all_finite(images):
            return self._adapt_or_refuse(Turn(images, len(images), True, draft.recent, draft.fresh), draft)
        turn = self.turn(images, draft)
        if turn.adapts:
            draft.recent, draft.fresh = turn.recent, turn.fresh
            return self._adapt_or_refuse(turn, draft)
        logits = self._answer(turn, draft, counts=True)
        draft.recent, draft.fresh = turn.recent, turn.fresh
        return logits, self.waiting(draft)

    def waiting(self, draft: Session) -> StepRecord:
        """The record of a call whose images wait for their window."""
        return StepRecord(draft.step, skipped=f"window holds {draft.fresh} of {self.window} images")

    def _adapt_or_refuse(self, turn: Turn, draft: Session) -> tuple[Tensor, StepRecord]:
        """A step, or what there is in the place of one."""
        try:
            return self._adapt(turn, draft)
        except UnusableError as reason:
            return self._refuse(str(reason), turn, draft)

    def _adapt(self, turn: Turn, draft: Session) -> tuple[Tensor, StepRecord]:
        """The step: one pass answers, the method makes a gradient of it, the optimiser moves, the policies judge."""
        arena, method = self.network.arena, self.method
        sliding = self._sliding_pass(turn, draft)
        forward, watched = self._forward(turn.images, draft, sliding)
        left = answering.left_by(sliding, draft.sliding, forward.logits, self.window)
        step = self.begun(self.network, self.optimizer, turn.images, forward, draft, watched)
        arena.zero_gradients()
        objective = step.objective = method.gradient(step, draft.states["method"])
        # Squares, for they are what optimisers and policies add up, and they overflow first.
        for values in (arena.gradients.square(), objective.loss):
            if values is not None:
                step.checks.add("non-finite loss or gradient", values)
        if objective.answer is not None:
            step.checks.add("non-finite answer", objective.answer)
        try:  # before it is known to be sound: nothing stays if not, and a device is not waited for in the middle
            self.adjust(step, objective, draft)
            if objective.step and len(arena):
                self.optimizer.step()
                method.after_step(step, draft.states["method"])
                step.checks.add(_OVERFLOW, arena.values)
            return self.judged(step, objective, draft, turn.answers, left)
        except Exception:
            step.checks.fetch()  # what fails on numbers that are not finite is an unusable batch
            raise

    def _sliding_pass(self, turn: Turn, session: Session) -> SlidingPass | None:
        """What a pass does to sliding statistics, where it does anything."""
        if not (turn.slides or turn.is_window):
            return None
        before = None if session.sliding is None else session.sliding.statistics
        return self.network.statistics.sliding(before, self.share(turn), normalizes=turn.slides)

    def share(self, turn: Turn) -> float:
        """What the images of a pass count for in sliding statistics."""
        return min(1.0, len(turn.images) / (_MEMORY * self.window))

    def _forward(self, images: Tensor, draft: Session, sliding: SlidingPass | None) -> tuple[Forward, dict[str, Any]]:
        """The pass that answers, and what policies saw of it; images and logits are judged in one fetch."""
        checks = Checks()
        checks.add("non-finite images", images)
        if type(self.method).forward is not Method.forward:
            checks.fetch()  # what a method does with images, other than run the network, may not bear such numbers
        try:
            with torch.set_grad_enabled(len(self.network.arena) > 0), contextlib.ExitStack() as stack:
                watched = {n: stack.enter_context(policy.watching(self.network)) for n, policy in self.policies.items()}
                result = answering.run(self.method, self.method.forward, self.network, images, draft, sliding)
        except Exception:
            checks.fetch()
            raise
        forward = Forward.of(result)
        checks.add("non-finite logits", forward.logits)
        checks.fetch()
        return forward, watched

    # -- the parts of a step that are a stream's own, whatever network and optimiser it has (`fleet.joint_step`) --

    def begun(
        self,
        network: Network,
        optimizer: torch.optim.Optimizer,
        images: Tensor,
        forward: Forward,
        draft: Session,
        watched: Mapping[str, Any],
    ) -> Step:
        """The step of a draft whose images have just been answered, and what policies saw of the pass."""
        states = self.states_of(draft, forward.logits)
        step = Step(
            number=draft.step,
            images=images,
            logits=forward.logits,
            network=network,
            constants=self.constants,
            seed=draft.seed,
            optimizer=optimizer,
            for_loss=forward.for_loss,
            predict=lambda others: answering.run(self.method, self.method.predict, network, others, draft),
            kept=states[verdicts.KEPT].optional_tensor(verdicts.PARAMETERS) if self.policy.keeps else None,
        )
        for name, policy in self.policies.items():
            policy.begin(step, states[name], watched.get(name))
        return step

    def adjust(self, step: Step, objective: Objective, draft: Session) -> None:
        """What there is to do with the method's gradient before the optimiser steps."""
        draft.states["method"].update(objective.updates)
        for name, policy in self.policies.items():
            policy.adjust_gradient(step, draft.states[name])

    def judged(
        self, step: Step, objective: Objective, draft: Session, answers: int, left: SlidingWindow | None
    ) -> tuple[Tensor, StepRecord]:
        """The answer to the last `answers` images, and the record, after the policies had their way with the step.

        left: what stands for the images; not for long, where the network that they passed is reset.
        """

        def unadapted(*, running_statistics: bool = False) -> Tensor:
            return answering.usable(step.source_logits(running_statistics=running_statistics)[-answers:])

        if self._answering:
            step.fetch()
        logits = self.answered(self.method.output(step.answer)[-answers:], unadapted, draft, counts=True)
        verdict = verdicts.ask(self.policies, step, draft.states, self.measures)
        assert step.optimizer is not None
        verdicts.carry_out(verdict, step.network.arena, draft.states, step.optimizer)
        draft.sliding = left if verdict.cut is None else None
        draft.nonfinite = 0
        record = StepRecord(
            step=draft.step,
            loss=step.loss,
            selected=objective.selected,
            reset_fraction=verdict.fraction,
            measurements=verdict.measurements,
        )
        return logits, record

    def _refuse(self, reason: str, turn: Turn, draft: Session) -> tuple[Tensor, StepRecord]:
        """Answer a batch that must not reach the parameters; after too many in a row, do what was configured."""
        self._undo()
        draft.states, draft.num_classes = self._draft().states, self._session.num_classes
        count = draft.nonfinite + 1
        too_many = count >= self.nonfinite_limit
        draft.nonfinite = 0 if too_many else count
        back = reason == _OVERFLOW or (too_many and self.on_nonfinite == "reset")
        if back:
            draft.sliding = None
        if back and draft.states:
            verdicts.carry_out(Verdict(cut=0), self.network.arena, draft.states, self.optimizer)
        record = StepRecord(draft.step, nonfinite=count, skipped=reason, reset_fraction=float(back))
        if too_many and self.on_nonfinite == "raise":
            draft.last = record
            self._commit(draft)
            raise NonFiniteError(
                f"{count} batches in a row were unusable (the last: {reason}): check what feeds the adapter. It is "
                "intact and may be used on; on_nonfinite='reset' returns to the source model instead"
            )
        if too_many:
            _log.warning("%d batches in a row were unusable (the last: %s): back to the source model", count, reason)
        again = self.turn(answering.readable(turn.images), draft, adapt=False)
        return self._answer(again._replace(answers=turn.answers), draft), record
