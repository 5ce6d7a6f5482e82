"""The adapter: a private copy of the network, one method, one reset policy."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from tidefast.core import checkpoint, optim
from tidefast.core.checkpoint import Origin, Session
from tidefast.core.finite import all_finite
from tidefast.core.network import Network
from tidefast.core.optim import OptimizerFactory
from tidefast.core.record import Callback, StepRecord
from tidefast.core.specification import Given
from tidefast.core.state import State, StateView
from tidefast.core.step import Forward, Step
from tidefast.core.validation import require_choice, require_count
from tidefast.errors import NonFiniteError
from tidefast.methods.base import Method
from tidefast.methods.base import registry as methods
from tidefast.preparation import SourceInput, configured, constants_for
from tidefast.resets.base import Reset, Verdict
from tidefast.resets.base import registry as resets
from tidefast.resets.never import Never

R = TypeVar("R", Tensor, Tensor | Forward)
_log = logging.getLogger("tidefast")


class Adapter:
    """A trained classifier that adapts to the unlabelled batches it is given; `tidefast.adapt` is its other name.

    model: maps float images [batch, ...] to logits; its own tensors are never changed, frozen ones are shared.
    method, reset: an object from `tidefast.methods` / `tidefast.resets`, or a registered name, also with options
        ("eta:similarity_margin=0.4", {"name": "eta", "similarity_margin": 0.4}), or "module:Class".
    objective: "come" minimises COME's opinion entropy, "entropy" the method's own loss; for methods with that field.
    optimizer: callable on a list of parameters, or a class of torch.optim ("adam:lr=1e-3"); left out, the method's
        published choice for ImageNet.
    num_classes: inferred from the first batch when left out.
    source: source data, for methods that need any: a loader, tensors, or a file saved by `tidefast.prepare`.
    seed: of the method's randomness; step k draws the same numbers whatever came before.
    window: batches of one are gathered; every `window` of them make one adaptation step.
    nonfinite_limit, on_nonfinite: after so many unusable batches in a row, return to the source or raise.
    callbacks: called with (adapter, record) after every adapting call.

    Not safe for calls from several threads at once.

    >>> import torch, tidefast
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 10))
    >>> adapter = tidefast.adapt(net, "eta", reset="asr")
    >>> adapter(torch.rand(16, 3, 8, 8)).shape
    torch.Size([16, 10])
    >>> adapter.last.step
    1
    """

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
        seed: int = 0,
        window: int = 16,
        nonfinite_limit: int = 10,
        on_nonfinite: Literal["reset", "raise"] = "reset",
        callbacks: Iterable[Callback] = (),
    ) -> None:
        require_count("window", window)
        require_count("nonfinite_limit", nonfinite_limit)
        require_choice("on_nonfinite", on_nonfinite, ("reset", "raise"))
        if num_classes is not None:
            require_count("num_classes", num_classes, low=2)
        self.method = methods.make(method)
        self.policy: Reset = Never() if reset is None else resets.make(reset)
        if objective is not None:
            self.method = _with_objective(self.method, objective)
        make_optimizer = self.method.optimizer if optimizer is None else optim.factory(optimizer)
        self.network = configured(model, self.method, self.policy)
        self.preparation = constants_for(self.network, self.method, self.policy, source)
        self.constants = self.network.constants = self.preparation.tensors
        start = self.method.start(self.constants)
        if start is not None:
            self.network.arena.begin_at(start)
        self.optimizer = self._make_optimizer(make_optimizer)
        self._initial_group = {k: v for k, v in self.optimizer.param_groups[0].items() if k != "params"}
        self.callbacks = list(callbacks)
        self.seed, self.window = seed, window
        self.nonfinite_limit, self.on_nonfinite = nonfinite_limit, on_nonfinite
        own = self.method.own_reset()
        self._policies = {**({} if own is None else {"own_reset": own}), "reset": self.policy}
        self.measures = {name: what for policy in self._policies.values() for name, what in policy.measures.items()}
        """What a record's `measurements` may hold, by name: the method's own reset rule's and the policy's."""
        self._declared_classes = num_classes
        self._start()

    def _make_optimizer(self, factory: OptimizerFactory) -> torch.optim.Optimizer:
        optimizer = factory([self.network.arena.parameter])
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                "optimizer must be a callable that takes a list of parameters and returns a torch.optim.Optimizer, "
                f"such as functools.partial(torch.optim.SGD, lr=1e-3); it returned {type(optimizer).__name__}"
            )
        return optimizer

    def _start(self) -> None:
        """The state of an adapter that has seen nothing."""
        self.step = 0
        self.last: StepRecord | None = None
        self._nonfinite = 0
        self._recent: Tensor | None = None  # the latest images that came one by one, oldest first
        self._fresh = 0  # how many of them no step has used yet
        self._states: dict[str, State] = {}
        self._num_classes: int | None = None
        if self._declared_classes is not None:
            self._bind(self._declared_classes)

    def _bind(self, num_classes: int) -> None:
        self._num_classes = num_classes
        self._states = self._declare(num_classes)

    def _declare(self, num_classes: int) -> dict[str, State]:
        owners: dict[str, Method | Reset] = {"method": self.method, **self._policies}
        return {name: State(owner.fields(self.network, num_classes)) for name, owner in owners.items()}

    @property
    def model(self) -> nn.Module:
        """The adapted network; the caller's own model shares its frozen weights and is never changed."""
        return self.network.model

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None until it is given or the first batch has told."""
        return self._num_classes

    @property
    def state(self) -> Mapping[str, StateView]:
        """What is declared and current, to look at: of the "method", of the "reset" policy, and of the method's
        "own_reset" where it has one; empty until the number of classes is known."""
        return {owner: StateView(state) for owner, state in self._states.items()}

    def numbers_held(self) -> int:
        """How many numbers live in memory for this adapter, the shared frozen weights included."""
        tensors = [*self.network.tensors(), *self._session().tensors()]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() // t.element_size() for t in tensors}
        return sum(storages.values())

    # -- predicting and adapting ------------------------------------------------------------------------------

    def __call__(self, images: Tensor) -> Tensor:
        """Predict, then adapt: the logits [batch, classes] of before this step's update."""
        started = time.perf_counter()
        with torch.inference_mode(False), torch.enable_grad():
            images = self.network.admit(images)
            self.step += 1
            try:
                logits, record = self._take(images)
            except NonFiniteError:
                raise
            except BaseException:  # a batch that the model cannot take was no step
                self.step -= 1
                raise
        self.last = dataclasses.replace(record, seconds=time.perf_counter() - started)
        for callback in self.callbacks:
            callback(self, self.last)
        return logits

    def _take(self, images: Tensor) -> tuple[Tensor, StepRecord]:
        if not all_finite(images):
            return self._refuse("non-finite images", images)
        if len(images) == 1 and (len(self.network.arena) or self.network.statistics.needs_batch):
            return self._single(images)
        return self._adapt(images)

    def predict(self, images: Tensor) -> Tensor:
        """Predict only: logits [batch, classes]; nothing changes, not even a counter."""
        with torch.inference_mode(False), torch.no_grad():
            images = self.network.admit(images)
            return self._answer(images)

    def _adapt(self, images: Tensor) -> tuple[Tensor, StepRecord]:
        arena = self.network.arena
        with torch.set_grad_enabled(len(arena) > 0), contextlib.ExitStack() as stack:
            watched = {
                name: stack.enter_context(policy.watching(self.network)) for name, policy in self._policies.items()
            }
            forward = Forward.of(self._run(self.method.forward, images))
        logits = forward.logits
        if not all_finite(logits):
            return self._refuse("non-finite logits", images)
        if self._num_classes is None:
            self._bind(logits.shape[1])
        step = Step(
            number=self.step,
            images=images,
            logits=logits,
            network=self.network,
            constants=self.constants,
            seed=self.seed,
            optimizer=self.optimizer,
            for_loss=forward.for_loss,
        )
        for name, policy in self._policies.items():
            policy.begin(step, self._states[name], watched[name])
        arena.zero_gradients()
        objective = step.objective = self.method.gradient(step, self._states["method"])
        loss = None if objective.loss is None else float(objective.loss.detach())
        if not all_finite(arena.gradients) or (loss is not None and not math.isfinite(loss)):
            return self._refuse("non-finite loss or gradient", images)
        if objective.answer is not None and not all_finite(objective.answer):
            return self._refuse("non-finite answer", images)
        self._states["method"].update(objective.updates)
        for name, policy in self._policies.items():
            policy.adjust_gradient(step, self._states[name])
        if objective.step and len(arena):
            self.optimizer.step()
            self.method.after_step(step, self._states["method"])
            if not arena.is_finite():
                self._apply(Verdict(fraction=1.0, cut=0))
                return self._refuse("non-finite parameters after the update", images, fraction=1.0)
        verdict = self._observe(step)
        self._nonfinite = 0
        record = StepRecord(
            step=self.step,
            loss=loss,
            selected=objective.selected,
            reset_fraction=verdict.fraction,
            measurements=verdict.measurements,
        )
        return self.method.output(step.answer), record

    def _observe(self, step: Step) -> Verdict:
        """Ask the policies, apply the reset that reaches furthest; on what both measured, the caller's policy wins."""
        verdicts = [policy.observe(step, self._states[name]) for name, policy in self._policies.items()]
        measured = {name: float(value) for verdict in verdicts for name, value in verdict.measurements.items()}
        if unknown := measured.keys() - self.measures.keys():
            raise KeyError(
                f"{', '.join(sorted(unknown))} measured, but not declared in `measures`; "
                f"declared: {', '.join(self.measures) or 'nothing'}"
            )
        asked = [verdict for verdict in verdicts if verdict.cut is not None]
        widest = min(asked, key=lambda verdict: verdict.cut or 0, default=verdicts[-1])
        if asked:
            self._apply(widest)
        return dataclasses.replace(widest, measurements={n: v for n, v in measured.items() if math.isfinite(v)})

    def _apply(self, verdict: Verdict) -> None:
        """Carry out a policy's reset: parameters, episode state, optimiser."""
        arena, cut = self.network.arena, verdict.cut or 0
        method_state = self._states["method"]
        anchor = method_state.anchor if verdict.target == "anchor" else None
        if anchor is None:
            arena.restore(cut)
        for state in self._states.values():
            state.restart(cut)
        if anchor is not None:
            method_state[anchor] = torch.cat([arena.values[:cut], arena.source[cut:]])
        if not verdict.keep_optimizer:
            self.optimizer.state.clear()

    def _single(self, images: Tensor) -> tuple[Tensor, StepRecord]:
        """One image: it is answered in the company of those before it, and every `window` of them make a step."""
        recent = images.clone() if self._recent is None else torch.cat([self._recent, images])[-self.window :]
        if self._fresh + 1 >= self.window:
            self._recent, self._fresh = recent, 0
            logits, record = self._adapt(recent)
            return logits[-1:], record
        with torch.no_grad():
            logits = self._answer(images)
        self._recent, self._fresh = recent, self._fresh + 1
        return logits, StepRecord(self.step, skipped=f"window holds {self._fresh} of {self.window} images")

    def _refuse(self, reason: str, images: Tensor, fraction: float = 0.0) -> tuple[Tensor, StepRecord]:
        """Answer a batch that must not reach the parameters; after too many in a row, do what was configured."""
        self.network.arena.zero_gradients()
        self._nonfinite += 1
        record = StepRecord(self.step, nonfinite=self._nonfinite, skipped=reason, reset_fraction=fraction)
        if self._nonfinite >= self.nonfinite_limit:
            count, self._nonfinite = self._nonfinite, 0
            if self.on_nonfinite == "raise":
                self.last = record
                raise NonFiniteError(
                    f"{count} batches in a row were unusable (the last: {reason}): check what feeds the adapter. It is "
                    "intact and may be used on; on_nonfinite='reset' returns to the source model instead"
                )
            _log.warning("%d batches in a row were unusable (the last: %s): back to the source model", count, reason)
            if self._states:
                self._apply(Verdict(cut=0))
            record = dataclasses.replace(record, reset_fraction=1.0)
        with torch.no_grad():
            return self._answer(images), record

    @torch.no_grad()
    def _answer(self, images: Tensor) -> Tensor:
        """Finite logits for any images, from the state as it is; unusable pixels count as 0, and a row that stays
        unusable gets equal logits."""
        if not all_finite(images):
            images = torch.where(torch.isfinite(images), images, 0.0)
        if len(images) == 1 and self._recent is not None and self.network.statistics.needs_batch:
            logits = self._predict(torch.cat([self._recent, images])[-self.window :])[-1:]
        else:
            logits = self._predict(images)
        return logits if all_finite(logits) else torch.where(torch.isfinite(logits).all(1, keepdim=True), logits, 0.0)

    def _method_state(self, images: Tensor) -> State:
        """The method's state; before the number of classes is known, that of a method that has seen nothing."""
        kind = type(self.method)
        if self._states or (kind.forward is Method.forward and kind.predict is Method.predict):
            return self._states.get("method", State())
        return State(self.method.fields(self.network, self.network(images).shape[1]))

    def _predict(self, images: Tensor) -> Tensor:
        return self.method.output(self._run(self.method.predict, images))

    def _run(self, hook: Callable[[Network, Tensor, State], R], images: Tensor) -> R:
        """What `Method.forward` or `Method.predict` gives."""
        with self.network.taking(images):
            result = hook(self.network, images, self._method_state(images))
        logits = Forward.of(result).logits
        if len(logits) != len(images):
            raise ValueError(f"the model returned {len(logits)} rows of logits for {len(images)} images")
        expected = self._num_classes
        if expected is not None and logits.shape[1] != expected:
            raise ValueError(f"the model returned {logits.shape[1]} classes, but num_classes is {expected}")
        return result

    # -- resetting, saving, loading, changing streams --------------------------------------------------------

    def reset(self) -> None:
        """Back to the source model, bit for bit, as if nothing had been seen."""
        self.network.arena.restore()
        self.network.arena.zero_gradients()
        self.optimizer.state.clear()
        self.optimizer.param_groups[0].update(self._initial_group)
        self._start()

    def save(self, path: str | os.PathLike[str], *, durable: bool = True) -> None:
        """Write everything that `load` needs to continue bit for bit; the file is replaced whole or not at all.

        `durable=False` does not wait for the disk: a power failure may lose the file, a killed process does not.
        """
        checkpoint.write(path, self._session(), self._belongings(), durable=durable)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a file that `save` wrote. It is checked whole first: on an error nothing has changed."""
        origin = Origin(
            self._belongings(), self.network.arena.parameter, self._initial_group, self._num_classes, self._declare
        )
        session = checkpoint.read(path, origin)
        self.reset()
        if session.num_classes is None:  # saved before the first batch told
            session.num_classes, session.states = self._num_classes, self._states
        self.enter(session)

    def leave(self) -> Session:
        """Take everything out that belongs to the stream seen so far; the adapter is then as new.

        `enter` puts it back, into this adapter or one made alike, and goes on bit for bit; see `tidefast.Fleet`.
        """
        session = self._session()
        session.values = session.values.clone()
        self.reset()
        return session

    def enter(self, session: Session) -> None:
        """Go on with the stream of `session`, which is then this adapter's own: leave it again before using it."""
        self.network.arena.assign(session.values)
        self.network.arena.zero_gradients()
        self.optimizer.state.clear()
        if session.moments:
            self.optimizer.state[self.network.arena.parameter] = session.moments
        self.optimizer.param_groups[0].update(session.group)
        self._states, self._num_classes = session.states, session.num_classes
        self.step, self.seed, self.last = session.step, session.seed, session.last
        self._nonfinite, self._recent, self._fresh = session.nonfinite, session.recent, session.fresh

    def _session(self) -> Session:
        """What belongs to the stream, as it stands: the adapter's own tensors."""
        return Session(
            values=self.network.arena.values,
            moments=dict(self.optimizer.state.get(self.network.arena.parameter, {})),
            group={k: v for k, v in self.optimizer.param_groups[0].items() if k != "params"},
            states=self._states,
            num_classes=self._num_classes,
            step=self.step,
            seed=self.seed,
            last=self.last,
            nonfinite=self._nonfinite,
            recent=self._recent,
            fresh=self._fresh,
        )

    def _belongings(self) -> dict[str, Any]:
        """What a file must match to be loaded here."""
        return checkpoint.belongings(self.network, self.method, self.policy, self.optimizer, self.window)


def _with_objective(method: Method, objective: str) -> Method:
    """The method with another loss, where it leaves the choice."""
    if "objective" not in {field.name for field in dataclasses.fields(method)}:
        able = [n for n in methods.names() if "objective" in {f.name for f in dataclasses.fields(methods.get(n))}]
        raise ValueError(
            f"{type(method).__name__} has no objective to choose, got objective={objective!r}; "
            f"methods that have: {', '.join(able)}"
        )
    changes: dict[str, Any] = {"objective": objective}
    return dataclasses.replace(method, **changes)
