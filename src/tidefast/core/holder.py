"""A network and an optimiser that hold the session of one stream, and change it whole or not at all."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from tidefast.core import checkpoint
from tidefast.core.checkpoint import Origin
from tidefast.core.network import Network
from tidefast.core.record import StepRecord
from tidefast.core.resumption import Resumption
from tidefast.core.session import Session, cloned
from tidefast.core.state import State, StateView
from tidefast.core.validation import require_choice
from tidefast.errors import SnapshotError

_log = logging.getLogger("tidefast")


class Holder(ABC):
    """What an adapter is apart from its steps: the session of a stream, looked at, taken out, put in, saved and loaded.

    The session is one attribute. At rest its `values` are the arena's own memory, and its moments are the optimiser's.
    While a step is under way nothing of it changes: the parameters are copied to it, the optimiser works on copies of
    its moments, and the step writes to a `draft`. That one assignment makes the draft the session is what completes
    the step. Until then the way back is to put the session into network and optimiser (`_recover`), which may be
    interrupted and begun again any number of times.
    """

    window: int

    def __init__(
        self, network: Network, optimizer: torch.optim.Optimizer, num_classes: int | None, seed: int | None
    ) -> None:
        self.network, self.optimizer = network, optimizer
        self._values = network.arena.values
        self._initial_group = cloned(self._group())
        self._declared_classes, self._given_seed = num_classes, seed
        self._busy = False  # whether network and optimiser may be in another state than the session says
        self.enter(self._new(seed or 0))

    @abstractmethod
    def _declare(self, num_classes: int) -> dict[str, State]:
        """The state of a stream that begins."""

    @abstractmethod
    def _belongings(self) -> dict[str, Any]:
        """What a file must match to be loaded here."""

    # -- looking at it ----------------------------------------------------------------------------------------

    @property
    def model(self) -> nn.Module:
        """The adapted network; the caller's own model shares its frozen weights and is never changed."""
        return self.network.model

    @property
    def step(self) -> int:
        """Adapting calls so far."""
        return self._session.step

    @step.setter
    def step(self, step: int) -> None:
        self._session.step = step

    @property
    def last(self) -> StepRecord | None:
        """StepRecord of the last adapting call."""
        return self._session.last

    @last.setter
    def last(self, record: StepRecord | None) -> None:
        self._session.last = record

    @property
    def seed(self) -> int:
        """Of the method's randomness."""
        return self._session.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._session.seed = seed

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None until it is given or the first batch has told."""
        return self._session.num_classes

    @property
    def state(self) -> Mapping[str, StateView]:
        """What is declared and current, to look at: of the "method", of the "reset" policy, of the method's "own_reset"
        where it has one, and what is "kept" where the policy keeps any; empty until the number of classes is known."""
        return {owner: StateView(functools.partial(self._state_of, owner)) for owner in self._session.states}

    def _state_of(self, owner: str) -> State:
        return self._session.states[owner]

    def numbers_held(self) -> int:
        """How many numbers live in memory for this adapter, the shared frozen weights included."""
        tensors = [*self.network.tensors(), *self._whole().tensors()]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() // t.element_size() for t in tensors}
        return sum(storages.values())

    # -- resetting, saving, loading, changing streams ---------------------------------------------------------

    def reset(self) -> None:
        """Back to the source model, bit for bit, as if nothing had been seen."""
        self.enter(self._new(self.seed))

    def save(self, path: str | os.PathLike[str], *, durable: bool = True) -> None:
        """Write everything that `load` needs to continue bit for bit; the file is replaced whole or not at all.

        `durable=False` does not wait for the disk: a power failure may lose the file, a killed process does not.
        """
        self._recover()
        checkpoint.write(path, self._whole(), self._belongings(), durable=durable)

    def load(self, path: str | os.PathLike[str], *, settings: Resumption = "same") -> bool:
        """Continue from a file that `save` wrote. It is checked whole first: on an error nothing has changed.

        settings: where the file was saved with another learning rate (or other settings of the optimiser), or another
        seed than was given here, "same" refuses it, "saved" goes on as it was, "own" with what was given here; the log
        says which. A learning rate that a policy lowered on the way stays lowered in proportion. A seed that was not
        given is always the file's. Returns whether anything goes on with another setting than it was saved with.
        """
        require_choice("settings", settings, ("same", "saved", "own"))
        session = self._read(path)
        seed = session.seed if self._given_seed is None else self._given_seed
        theirs, ours = {**session.began, "seed": session.seed}, {**self._initial_group, "seed": seed}
        differing = [name for name, value in ours.items() if theirs[name] != value]
        if differing:
            what = ", ".join(f"{name}={theirs[name]!r} (here {ours[name]!r})" for name in differing)
            if settings == "same":
                raise SnapshotError(
                    f"{path} was saved with {what}: load it with settings='saved' to go on with that, or 'own' to go "
                    "on with what is given here"
                )
            _log.warning("%s was saved with %s: it goes on with its %s", path, what, settings)
            if settings == "own":
                changed = _proportion(session.group, session.began)
                session.seed, session.began = seed, cloned(self._initial_group)
                session.group |= {name: session.began[name] for name in differing if name != "seed"}
                if "lr" in differing:
                    session.group["lr"] = session.began["lr"] * changed
        self.enter(session)
        return bool(differing) and settings == "own"

    def reopen(self, path: str | os.PathLike[str]) -> None:
        """Continue from a file just as it is, whatever was given here; for its writer, or who takes no further step."""
        self.enter(self._read(path))

    def _read(self, path: str | os.PathLike[str]) -> Session:
        origin = Origin(
            self._belongings(), self.network.arena.parameter, self._initial_group, self.num_classes, self._declare
        )
        session = checkpoint.read(path, origin)
        if session.num_classes is None:  # saved before the first batch told
            new = self._new(session.seed)
            session.num_classes, session.states = new.num_classes, new.states
        return session

    def leave(self) -> Session:
        """Take everything out that belongs to the stream seen so far; the adapter is then as new.

        `enter` puts it back, into this adapter or one made alike, and goes on bit for bit; see `tidefast.Fleet`.
        """
        self._recover()
        session = dataclasses.replace(self._whole(), values=self._values.clone())
        self.reset()
        return session

    def enter(self, session: Session) -> None:
        """Go on with the stream of `session`, which stays as it is."""
        self._recover()
        self._busy = True
        self._session = session
        self._put()
        self._commit(self._at_rest(session))

    # -- whole or not at all ----------------------------------------------------------------------------------

    def _begin(self) -> Session:
        """A draft for a step to work on, along with network and optimiser; `_commit` completes the step."""
        self._recover()
        before = dataclasses.replace(self._whole(), values=self._values.clone())
        self._busy = True
        self._session = before
        self._equip(cloned(before.moments), cloned(before.group))
        return self._draft()

    def _draft(self) -> Session:
        """The session of before the step, one step on, with its states to be written to."""
        session = self._at_rest(self._session)
        session.states = {owner: state.copy() for owner, state in session.states.items()}
        session.step += 1
        return session

    def _commit(self, draft: Session) -> None:
        self._session = draft
        self._busy = False

    def _undo(self) -> None:
        """Network and optimiser as the session says, whatever a step did to them."""
        self.network.rest()
        self._put()

    def _put(self) -> None:
        """The session's numbers into network and optimiser."""
        session, arena = self._session, self.network.arena
        arena.zero_gradients()
        if session.values is not self._values:
            arena.assign(session.values)
            self._equip(dict(session.moments), session.group)

    def _equip(self, moments: dict[str, Any], group: dict[str, Any]) -> None:
        """Moments and settings into the optimiser."""
        self.optimizer.state.clear()
        if moments:
            self.optimizer.state[self.network.arena.parameter] = moments
        self.optimizer.param_groups[0].update(group)

    def _recover(self) -> None:
        """After whatever came in between: back to the session, which is that of before the step or of after it."""
        if self._busy:
            self._undo()
            self._commit(self._at_rest(self._session))

    def _new(self, seed: int) -> Session:
        """The session of a stream that has seen nothing."""
        classes = self._declared_classes
        return Session(
            values=self.network.arena.source,
            moments={},
            group=cloned(self._initial_group),
            began=cloned(self._initial_group),
            states={} if classes is None else self._declare(classes),
            num_classes=classes,
            step=0,
            seed=seed,
            last=None,
            nonfinite=0,
            recent=None,
            fresh=0,
            sliding=None,
        )

    def _at_rest(self, session: Session) -> Session:
        """The same, whose numbers are those in the network and the optimiser."""
        return dataclasses.replace(session, values=self._values, moments={}, group={})

    def _whole(self) -> Session:
        """The session as it stands, at rest."""
        return dataclasses.replace(self._session, values=self._values, moments=self._moments(), group=self._group())

    def _moments(self) -> dict[str, Any]:
        return dict(self.optimizer.state.get(self.network.arena.parameter, {}))

    def _group(self) -> dict[str, Any]:
        return {key: value for key, value in self.optimizer.param_groups[0].items() if key != "params"}


def _proportion(group: Mapping[str, Any], began: Mapping[str, Any]) -> float:
    """The learning rate in use over the one at the beginning: less than 1 where a policy lowered it."""
    return float(group["lr"] / began["lr"]) if began.get("lr") else 1.0
