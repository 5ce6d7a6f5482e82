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

import tidefast
from tidefast.core import optim, snapshot
from tidefast.core.network import Network
from tidefast.core.optim import OptimizerFactory
from tidefast.core.record import Callback, StepRecord
from tidefast.core.specification import Given
from tidefast.core.state import State, StateView, Value
from tidefast.core.step import Forward, Step
from tidefast.core.validation import require_choice, require_count
from tidefast.errors import NonFiniteError, SnapshotError
from tidefast.methods.base import Method
from tidefast.methods.base import registry as methods
from tidefast.preparation import Source, configured, constants_for
from tidefast.resets.base import Reset, Verdict
from tidefast.resets.base import registry as resets
from tidefast.resets.never import Never

R = TypeVar("R", Tensor, Tensor | Forward)
_KIND = "adapter"
_log = logging.getLogger("tidefast")


@dataclasses.dataclass
class Session:
    """Everything of an adapter that belongs to one stream, in memory."""

    values: Tensor
    """Of the adapted parameters."""
    moments: dict[str, Any]
    """The optimiser's."""
    group: dict[str, Any]
    """The optimiser's settings."""
    states: dict[str, State]
    num_classes: int | None
    step: int
    seed: int
    last: StepRecord | None
    nonfinite: int
    recent: Tensor | None
    fresh: int

    def numbers(self) -> int:
        """How many numbers it holds."""
        tensors = [self.values, *self.moments.values(), *([] if self.recent is None else [self.recent])]
        tensors += [value for state in self.states.values() for value in state.values()]
        return sum(tensor.numel() for tensor in tensors if isinstance(tensor, Tensor))


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
        source: Source | None = None,
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
        network, arena = self.network, self.network.arena
        tensors = [*network.module.parameters(), *network.module.buffers(), *network.statistics.source_buffers()]
        tensors += [
            arena.values,
            arena.gradients,
            arena.source,
            *self.constants.values(),
            *optim.flatten(self.optimizer)[0].values(),
        ]
        tensors += [value for state in self._states.values() for value in state.values() if isinstance(value, Tensor)]
        tensors += [] if self._recent is None else [self._recent]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() // t.element_size() for t in tensors}
        return sum(storages.values())

    # -- predicting and adapting ------------------------------------------------------------------------------

    def __call__(self, images: Tensor) -> Tensor:
        """Predict, then adapt: the logits [batch, classes] of before this step's update."""
        started = time.perf_counter()
        with torch.inference_mode(False), torch.enable_grad():
            images = self._admit(images)
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
        if not _all_finite(images):
            return self._refuse("non-finite images", images)
        if len(images) == 1 and (len(self.network.arena) or self.network.statistics.needs_batch):
            return self._single(images)
        return self._adapt(images)

    def predict(self, images: Tensor) -> Tensor:
        """Predict only: logits [batch, classes]; nothing changes, not even a counter."""
        with torch.inference_mode(False), torch.no_grad():
            images = self._admit(images)
            return self._answer(images)

    def _adapt(self, images: Tensor) -> tuple[Tensor, StepRecord]:
        arena = self.network.arena
        with torch.set_grad_enabled(len(arena) > 0), contextlib.ExitStack() as stack:
            watched = {
                name: stack.enter_context(policy.watching(self.network)) for name, policy in self._policies.items()
            }
            forward = Forward.of(self._run(self.method.forward, images))
        logits = forward.logits
        if not _all_finite(logits):
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
        if not _all_finite(arena.gradients) or (loss is not None and not math.isfinite(loss)):
            return self._refuse("non-finite loss or gradient", images)
        if objective.answer is not None and not _all_finite(objective.answer):
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
        if not _all_finite(images):
            images = torch.where(torch.isfinite(images), images, 0.0)
        if len(images) == 1 and self._recent is not None and self.network.statistics.needs_batch:
            logits = self._predict(torch.cat([self._recent, images])[-self.window :])[-1:]
        else:
            logits = self._predict(images)
        return logits if _all_finite(logits) else torch.where(torch.isfinite(logits).all(1, keepdim=True), logits, 0.0)

    def _method_state(self, images: Tensor) -> State:
        """The method's state; before the number of classes is known, that of a method that has seen nothing."""
        kind = type(self.method)
        if self._states or (kind.forward is Method.forward and kind.predict is Method.predict):
            return self._states.get("method", State())
        return State(self.method.fields(self.network, self.network(images).shape[1]))

    def _predict(self, images: Tensor) -> Tensor:
        return self.method.output(self._run(self.method.predict, images))

    def _run(self, hook: Callable[[Network, Tensor, State], R], images: Tensor) -> R:
        """What `Method.forward` or `Method.predict` gives. One image alone has no batch statistics: it gets the
        source's."""
        statistics = self.network.statistics
        lone = len(images) == 1 and statistics.needs_batch
        try:
            with statistics.of_source() if lone else contextlib.nullcontext():
                result = hook(self.network, images, self._method_state(images))
        except (RuntimeError, ValueError, IndexError) as error:
            rank = self.network.image_rank
            if rank is None or images.dim() == rank:
                raise
            raise ValueError(
                f"the model failed on images of shape {tuple(images.shape)}, and its convolutions take batches with "
                f"{rank} dimensions; a single image becomes a batch with images[None]"
            ) from error
        logits = Forward.of(result).logits
        if len(logits) != len(images):
            raise ValueError(f"the model returned {len(logits)} rows of logits for {len(images)} images")
        expected = self._num_classes
        if expected is not None and logits.shape[1] != expected:
            raise ValueError(f"the model returned {logits.shape[1]} classes, but num_classes is {expected}")
        return result

    def _admit(self, images: Tensor) -> Tensor:
        """Check a batch, and bring it into the network's type."""
        if not isinstance(images, Tensor):
            raise TypeError(f"images must be a torch.Tensor, got {type(images).__name__}")
        if not images.is_floating_point():
            raise TypeError(
                f"images must be floats as the model expects them, got {images.dtype}: convert first, for example "
                "images.float() / 255"
            )
        if images.dim() < 2:
            raise ValueError(f"images must be a batch with at least 2 dimensions, got shape {tuple(images.shape)}")
        if images.numel() == 0:
            raise ValueError(f"the batch is empty: shape {tuple(images.shape)}")
        if images.device != self.network.device:
            raise ValueError(f"images are on {images.device}, the model is on {self.network.device}: move one of them")
        if images.dtype != self.network.dtype and not torch.is_autocast_enabled(images.device.type):
            images = images.to(self.network.dtype)
        return images.clone() if images.is_inference() else images.detach()

    # -- one adapter, several streams -------------------------------------------------------------------------

    def leave(self) -> Session:
        """Take everything out that belongs to the stream seen so far; the adapter is then as new.

        `enter` puts it back, into this adapter or one made alike, and goes on bit for bit; see `tidefast.Fleet`.
        """
        group = {k: v for k, v in self.optimizer.param_groups[0].items() if k != "params"}
        moments = dict(self.optimizer.state.get(self.network.arena.parameter, {}))
        session = Session(
            self.network.arena.values.clone(),
            moments,
            group,
            self._states,
            self._num_classes,
            self.step,
            self.seed,
            self.last,
            self._nonfinite,
            self._recent,
            self._fresh,
        )
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

    # -- resetting, saving, loading ---------------------------------------------------------------------------

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
        tensors = {"arena": self.network.arena.values}
        numbers: dict[str, dict[str, Value]] = {}
        for owner, state in self._states.items():
            numbers[owner] = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
            tensors.update({f"{owner}.{name}": v for name, v in state.items() if isinstance(v, Tensor)})
        moments, settings = optim.flatten(self.optimizer)
        tensors.update({f"optimizer.{name}": value for name, value in moments.items()})
        if self._recent is not None:
            tensors["recent"] = self._recent
        content = {
            "belongs": self._belongs(),
            "tidefast": tidefast.__version__,
            "num_classes": self._num_classes,
            "step": self.step,
            "seed": self.seed,
            "fresh": self._fresh,
            "nonfinite": self._nonfinite,
            "optimizer": settings,
            "state": numbers,
        }
        snapshot.write(path, _KIND, tensors, content, durable=durable)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a file that `save` wrote. It is checked whole first: on an error nothing has changed."""
        tensors, content = snapshot.read(path, _KIND)
        try:
            for what, ours in self._belongs().items():
                if content["belongs"].get(what) != ours:
                    raise SnapshotError(_foreign(path, what, content["belongs"].get(what), ours))
            num_classes = content["num_classes"]
            if None not in (num_classes, self._num_classes) and num_classes != self._num_classes:
                raise SnapshotError(f"{path} is for {num_classes} classes, this adapter for {self._num_classes}")
            moved = {name: tensor.to(self.network.arena.values.device) for name, tensor in tensors.items()}
            arena = moved.pop("arena")
            recent = moved.pop("recent", None)
            moments = {n.removeprefix("optimizer."): moved.pop(n) for n in list(moved) if n.startswith("optimizer.")}
            states = {} if num_classes is None else self._declare(num_classes)
            values: dict[str, dict[str, Value]] = {owner: dict(content["state"][owner]) for owner in states}
            for name, tensor in moved.items():
                owner, _, leaf = name.partition(".")
                values[owner][leaf] = tensor
            problem = _shape_problem(arena, self.network.arena.values) or optim.misfit(
                self.network.arena.parameter, moments
            )
            for owner, state in states.items():
                for name in [*state, *(values[owner].keys() - state.keys())]:
                    wrong = state.misfit(name, values[owner].get(name))
                    problem = problem or (wrong and f"{owner}.{name} {wrong}")
            if problem:
                raise SnapshotError(f"{path} does not fit this adapter: {problem}")
            counters = [int(content[name]) for name in ("step", "seed", "fresh", "nonfinite")]
            settings = dict(content["optimizer"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, SnapshotError):
                raise
            raise SnapshotError(f"{path} is malformed: {error!r}") from error
        self.reset()
        for owner, state in states.items():
            state.update(values[owner])
        self._states = states or self._states
        self._num_classes = num_classes if num_classes is not None else self._num_classes
        self.step, self.seed, self._fresh, self._nonfinite = counters
        self._recent = recent
        self.network.arena.assign(arena)
        optim.restore(self.optimizer, moments, settings)

    def _belongs(self) -> dict[str, Any]:
        """What a snapshot of this adapter must match to be loaded."""
        return {
            "network": self.network.fingerprint,
            "parameters": [span.name for span in self.network.arena.tensors],
            "method": _describe(self.method),
            "reset": _describe(self.policy),
            "optimizer": type(self.optimizer).__name__,
            "window": self.window,
            "constants": snapshot.digest_of(self.constants),
        }


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


def _all_finite(values: Tensor) -> bool:
    """Whether all values are finite; a finite sum proves it in one cheap pass."""
    values = values.detach()
    return math.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


def _describe(configured: Any) -> dict[str, Any]:
    """Name and hyperparameters as JSON values; a callable by its name."""
    values: dict[str, Any] = {}
    for item in dataclasses.fields(configured):
        value = getattr(configured, item.name)
        if dataclasses.is_dataclass(value) and hasattr(value, "name"):  # a base method, a part of a policy
            values[item.name] = _describe(value)
        else:
            plain = isinstance(value, (int, float, str, bool, type(None)))
            values[item.name] = value if plain else list(value) if isinstance(value, tuple) else _name_of(value)
    return {"name": configured.name or _name_of(type(configured)), "hyperparameters": values}


def _name_of(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _shape_problem(found: Tensor, expected: Tensor) -> str | None:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return (
            f"its parameters are {found.dtype} {tuple(found.shape)}, expected {expected.dtype} {tuple(expected.shape)}"
        )
    return None if _all_finite(found) else "its parameters are not finite"


def _foreign(path: object, what: str, found: Any, ours: Any) -> str:
    """Which part of a snapshot belongs to something else."""
    if what == "network":
        return f"{path} belongs to another network (or to other weights of this one)"
    if isinstance(found, dict) and isinstance(ours, dict) and found.get("name") == ours["name"]:
        theirs = found.get("hyperparameters", {})
        differing = [
            f"{k}={theirs.get(k)!r} (here {v!r})" for k, v in ours["hyperparameters"].items() if theirs.get(k) != v
        ]
        return f"{path} was saved with other settings of {what} {ours['name']!r}: {', '.join(differing)}"
    if isinstance(ours, dict):
        found, ours = (found or {}).get("name"), ours["name"]
    return f"{path} was saved with {what} {found!r}, this adapter has {ours!r}"
