"""One partition: a service of its own for the streams that belong to it, as long as it is in charge of them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from tidefast.core.memory import keep_memory
from tidefast.errors import TidefastError
from tidefast.serve.answer import Answer
from tidefast.serve.assembly import open_service
from tidefast.serve.cluster.layout import ClusterLayout, read_layout
from tidefast.serve.cluster.logs import log_as_actor
from tidefast.serve.cluster.tenure import LOOKS, LostTenureError, Tenure
from tidefast.serve.refused import RefusedError
from tidefast.serve.repeated import quieten
from tidefast.serve.service import Service
from tidefast.serve.settings import Settings

_PAUSE = 2.0  # seconds until a partition that could not begin tries again
_log = logging.getLogger("tidefast.serve")


class Reply(NamedTuple):
    """What a partition says to a front."""

    term: int
    value: Any = None
    refused: tuple[Any, str] | None = None
    """Reason and sentence, when there is no value."""


class Condition(NamedTuple):
    """How a partition is."""

    phase: str
    """starting, serving, leaving, left (it has given up its term), or failed (and will not get any further)."""
    term: int = 0
    problem: str = ""


class Partition:
    """The actor of one partition; it begins with the first call, and takes over from whoever was in charge before.

    settings: of the cluster's service; `state` is the folder that all nodes share.
    """

    def __init__(self, settings: Settings, layout: ClusterLayout, index: int) -> None:
        log_as_actor(f"partition {index}", settings)
        quieten()
        keep_memory()
        self._settings, self._layout, self._index = own_settings(settings, layout), layout, index
        self._shared = Path(settings.state)
        self._service: Service | None = None
        self._tenure: Tenure | None = None
        self._phase, self._problem = "starting", ""
        self._opening: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[bool] | None = None

    async def condition(self) -> Condition:
        """How it is; the first call makes it begin."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        if self._phase == "serving" and (self._tenure is None or not self._tenure.holds()):
            return Condition("starting", self._term, "the lease has run out: the storage cannot be seen")
        return Condition(self._phase, self._term, self._problem)

    @property
    def _term(self) -> int:
        return 0 if self._tenure is None else self._tenure.number

    async def ask(self, what: str, *arguments: Any) -> Reply:
        """Call a method of the service, or one of this class that stands for it; only while in charge."""
        await self.condition()
        try:
            service, tenure = self._in_charge()
            own: dict[str, Callable[..., Awaitable[Any]]] = {
                "answer": self._answer,
                "listed_statuses": self._statuses,
                "rollback": self._rollback,
            }
            value = await (own.get(what) or getattr(service, what))(*arguments)
            if not tenure.holds():  # a successor may be answering by now, from what was there before this
                raise self._not_in_charge()
            return Reply(tenure.number, value)
        except RefusedError as error:
            reason = "moving" if error.reason == "stopping" else error.reason
            return Reply(self._term, None, (reason, str(error)))

    async def ready_to_leave(self) -> str:
        """Take a snapshot while it still answers, so that leaving is short; why it must not leave, if so."""
        if self._service is None:
            return ""  # it has not begun, and knows nothing that storage does not
        reply = await self.ask("snapshot")
        return "" if reply.refused is None else reply.refused[1]

    async def leave(self) -> bool:
        """Finish what was accepted, take a last snapshot and give up the term; whether everything is kept."""
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave())
        return await asyncio.shield(self._leaving)

    # -- being in charge --------------------------------------------------------------------------------------

    def _in_charge(self) -> tuple[Service, Tenure]:
        if self._phase != "serving" or self._service is None or self._tenure is None or not self._tenure.holds():
            raise self._not_in_charge()
        return self._service, self._tenure

    def _not_in_charge(self) -> RefusedError:
        return RefusedError("moving", f"partition {self._index} is being taken over: try again in a moment")

    async def _open(self) -> None:
        while self._phase == "starting":
            try:
                service, tenure = await asyncio.to_thread(self._take_charge)
                await service.start()
                self._service, self._phase, self._problem = service, "serving", ""
                threading.Thread(
                    target=self._keep_looking, args=(tenure, asyncio.get_running_loop()), daemon=True
                ).start()
            except LostTenureError as error:
                self._phase, self._problem = "left", str(error)
            except OSError as error:  # the storage may be back in a moment
                self._problem = str(error)
                _log.error("it cannot begin yet: %s", error)
                await asyncio.sleep(_PAUSE)
            except (TidefastError, ValueError, ImportError) as error:
                self._phase, self._problem = "failed", " ".join(str(error).split())
                _log.error("it cannot begin: %s", error)

    def _take_charge(self) -> tuple[Service, Tenure]:
        found = read_layout(self._shared)
        if found != self._layout:
            raise ValueError(
                f"this node does not see the shared state: {self._shared} is another folder here. Mount the same "
                "storage at the same path on all nodes"
            )
        self._tenure = Tenure(ClusterLayout.folder_of(self._shared, self._index), self._settings.lease)
        self._tenure.take_over()
        service = open_service(dataclasses.replace(self._settings, state=self._tenure.folder))
        service.snapshots.least = lambda: int(time.time())  # so that names of all partitions make one order
        try:
            self._tenure.look()
        except BaseException:
            service.snapshots.close()
            raise
        _log.info("in charge for term %d, %d streams", self._tenure.number, len(service.fleet))
        return service, self._tenure

    def _keep_looking(self, tenure: Tenure, loop: asyncio.AbstractEventLoop) -> None:
        while not tenure.ended:
            try:
                tenure.look()
            except LostTenureError as error:
                _log.warning("it gives up: %s", error)
                loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self.leave()))
                return
            except OSError as error:
                _log.error("claims cannot be seen: %s", error)
            time.sleep(self._settings.lease / LOOKS)

    async def _leave(self) -> bool:
        service, tenure = self._service, self._tenure
        if self._phase == "serving" and service is not None:
            self._phase = "leaving"
            await service.stop(0.0 if tenure is not None and tenure.lost else None)  # a successor waits
        elif self._opening is not None and self._phase == "starting":
            self._opening.cancel()
        kept = service is None or service.snapshot_works
        if tenure is not None:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(tenure.end)
        self._phase = "left"
        _log.info("left%s", "" if kept else ", and the last snapshot failed")
        return kept

    # -- what a service has no single method for ----------------------------------------------------------------

    async def _answer(self, name: str, pixels: Any, adapt: bool) -> Answer:
        service, _ = self._in_charge()
        answer = await service.answer(name, pixels, adapt=adapt)
        return dataclasses.replace(answer, logits=answer.logits.clone())  # a part travels, not the batch around it

    async def _statuses(self, names: list[str]) -> list[dict[str, Any]]:
        service, _ = self._in_charge()
        found = []
        for name in names:
            with contextlib.suppress(RefusedError):  # it was dropped just now
                found.append(await service.status(name))
        return found

    async def _rollback(self, name: str, snapshot: str) -> None:
        """To the newest snapshot of this partition that is not younger than the one named."""
        service, _ = self._in_charge()
        numbers = [number for number in service.snapshots.numbers() if number <= int(snapshot)]
        await service.rollback(name, service.snapshots.path(numbers[-1]).name if numbers else snapshot)


def own_settings(settings: Settings, layout: ClusterLayout) -> Settings:
    """The settings of one partition: its share of the streams, and torch threads that no node decides."""
    return dataclasses.replace(
        settings,
        max_streams=-(-settings.max_streams // layout.partitions),
        threads=settings.threads or 1,
        host="127.0.0.1",
        token=None,
    )
