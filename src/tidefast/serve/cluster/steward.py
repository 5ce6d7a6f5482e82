"""The steward: one actor that sees to it that every partition runs, answers, and is on the right node.

Nothing that clients ask for passes through it. Ray restarts it wherever there is a node; until then partitions that die
are still restarted by Ray, and only what needs a decision waits: moves, and killing a partition that hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tidefast.serve.cluster.layout import ClusterLayout
from tidefast.serve.cluster.logs import log_as_actor
from tidefast.serve.cluster.partition import Condition, Partition
from tidefast.serve.cluster.placement import best_node, next_move
from tidefast.serve.settings import Settings

STEWARD = "steward"
"""Its name in the cluster."""

_TICK = 1.0  # seconds between two rounds
_ABSENT = 10.0  # seconds after which a front that says nothing is no longer counted
_SETTLED = 3.0  # seconds for which nodes and partitions are as they are before any is moved
_SILENT = 20.0  # seconds, or a lease, after which a process that says nothing hangs
_SLOW_START = 180.0  # seconds that a new process may take until it answers
_log = logging.getLogger("tidefast.serve")


class PartitionState(NamedTuple):
    """A partition as the steward sees it."""

    phase: str
    term: int
    problem: str
    node: str
    process: int


class Joined(NamedTuple):
    """What a front is told."""

    problem: str
    """Why it cannot take part; empty when it does."""
    partitions: list[PartitionState]
    passing: bool = False
    """Whether it may try again in a moment."""


class Left(NamedTuple):
    """What became of a node's partitions when its front ended."""

    kept: bool
    """Whether all last snapshots worked."""
    last: bool
    """Whether it was the last front, and nothing runs any more."""


class PartitionActor(Partition):
    """A partition that says where it runs."""

    async def whereabouts(self) -> tuple[Condition, str, int]:
        """How it is, on which node, in which process."""
        return await self.condition(), ray.get_runtime_context().get_node_id(), os.getpid()


class Steward:
    """The actor; it begins with the first call."""

    def __init__(self, settings: Settings, layout: ClusterLayout) -> None:
        log_as_actor("steward", settings)
        self._settings, self._layout = settings, layout
        self._handles: dict[int, Any] = {}
        self._states = [PartitionState("starting", 0, "", "", 0)] * layout.partitions
        self._fronts: dict[str, tuple[str, float]] = {}  # node, and when it was last heard of
        self._answered: dict[int, float] = {}  # when each partition's process last did
        self._since: dict[int, float] = {}  # when each partition's process was made, or found
        self._began = self._settled = time.monotonic()
        self._changing = asyncio.Lock()
        self._tending: asyncio.Task[None] | None = None
        self._closing = False

    async def join(self, front: str, node: str, settings: Settings) -> Joined:
        """Take part; to be repeated every few seconds."""
        if self._closing:
            return Joined("the cluster is shutting down: try again in a moment", self._states, passing=True)
        if differing := settings.differing(self._settings):
            return Joined(
                f"the cluster is served with other settings ({', '.join(differing)}): give the same on all nodes, or "
                "end all of its fronts with SIGTERM first",
                self._states,
            )
        if node not in {known for known, _ in self._fronts.values()}:
            self._settled = time.monotonic()
        self._fronts[front] = (node, time.monotonic())
        if self._tending is None:
            self._tending = asyncio.create_task(self._tend())
        return Joined("", self._states)

    async def leave(self, front: str, node: str) -> Left:
        """A front ends: move the partitions of its node away, or end them where it was the last."""
        self._fronts.pop(front, None)
        await asyncio.sleep(self._began + _ABSENT - time.monotonic())  # by then all other fronts have been heard of
        async with self._changing:
            nodes = await self._nodes()
            if node in nodes:
                return Left(True, False)
            if nodes:
                mine = [index for index, state in enumerate(self._states) if state.node == node]
                kept = [await self._move(index, best_node(self._where(), nodes)) for index in mine]
                return Left(all(kept), False)
            self._closing = True
            kept = await asyncio.gather(*map(self._end, range(self._layout.partitions)))
            self._vanishing = asyncio.create_task(self._vanish())
            return Left(all(kept), True)

    async def _vanish(self) -> None:
        """End this actor, where the last front was killed before it could: no other may join one that is closing."""
        await asyncio.sleep(_ABSENT)
        await asyncio.to_thread(ray.kill, ray.get_runtime_context().current_actor, no_restart=True)

    # -- rounds -----------------------------------------------------------------------------------------------

    async def _tend(self) -> None:
        while not self._closing:
            try:
                async with self._changing:
                    await asyncio.gather(*map(self._check, range(self._layout.partitions)))
                    await self._balance()
            except Exception:
                _log.exception("a round failed")
            await asyncio.sleep(_TICK)

    async def _check(self, index: int) -> None:
        """See how a partition is; make it when there is none, and kill it when it hangs or has lost its office."""
        if self._closing:
            return
        now = time.monotonic()
        try:
            handle = self._handles.get(index) or await self._made(index)
            async with asyncio.timeout(_TICK):
                condition, node, process = await handle.whereabouts.remote()
        except TimeoutError:
            since = self._since.get(index, now)
            waited = now - self._answered.get(index, since)
            if waited > (max(_SILENT, self._settings.lease) if index in self._answered else _SLOW_START):
                await self._restart(index, f"has not answered for {waited:.0f} s")
            return
        except (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnschedulableError):  # as when its node is gone
            self._forget(index)
            return
        except ray.exceptions.RayError:  # Ray is restarting it
            self._answered.pop(index, None)
            self._since[index] = now
            self._note(index, self._states[index]._replace(phase="starting"))
            return
        self._answered[index] = now
        self._note(index, PartitionState(condition.phase, condition.term, condition.problem, node, process))
        if condition.phase == "left":
            await self._restart(index, condition.problem or "has given up its term")

    def _note(self, index: int, state: PartitionState) -> None:
        before = self._states[index]
        if (before.phase, before.node) != (state.phase, state.node):
            self._settled = time.monotonic()
        self._states[index] = state

    async def _restart(self, index: int, why: str) -> None:
        _log.warning("partition %d %s: its process is ended, and another begins", index, why)
        await asyncio.to_thread(ray.kill, self._handles[index], no_restart=False)
        self._answered.pop(index, None)
        self._since[index] = time.monotonic()
        self._note(index, self._states[index]._replace(phase="starting"))

    async def _balance(self) -> None:
        """Move one partition to where there is more room, once everything is at rest."""
        if time.monotonic() < self._settled + _SETTLED or any(state.phase != "serving" for state in self._states):
            return
        nodes = await self._nodes()
        move = next_move(self._where(), nodes)
        if move is not None:
            await self._move(*move)

    # -- partitions -------------------------------------------------------------------------------------------

    def _where(self) -> dict[int, str]:
        return {index: state.node for index, state in enumerate(self._states) if state.node}

    async def _nodes(self) -> dict[str, float]:
        """Cores of each node that has a front."""
        now = time.monotonic()
        heard = {node for node, then in self._fronts.values() if now < then + _ABSENT}
        return {node: cores for node, cores in (await asyncio.to_thread(cores_of_nodes)).items() if node in heard}

    async def _made(self, index: int, node: str | None = None) -> Any:
        """The actor of a partition, made when there is none."""
        nodes = await self._nodes()
        chosen = node or (best_node(self._where(), nodes) if nodes else ray.get_runtime_context().get_node_id())
        self._handles[index] = await asyncio.to_thread(self._make, index, chosen)
        self._since[index] = time.monotonic()
        self._answered.pop(index, None)
        self._note(index, PartitionState("starting", 0, "", chosen, 0))
        return self._handles[index]

    def _make(self, index: int, node: str) -> Any:
        actor = ray.remote(PartitionActor).options(
            name=partition_name(index),
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            max_task_retries=0,  # a step that may have been taken is not taken twice
            max_concurrency=10_000,
            num_cpus=0,  # this class decides how many share a node
            # Ray restarts it there; when the node is gone it says so, and this class chooses another.
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        return actor.remote(self._settings, self._layout, index)

    def _forget(self, index: int) -> None:
        self._handles.pop(index, None)
        self._answered.pop(index, None)
        self._since.pop(index, None)
        self._note(index, self._states[index]._replace(phase="starting"))

    async def _move(self, index: int, node: str) -> bool:
        """Let a partition go on elsewhere; False when steps may be lost by it."""
        _log.info("partition %d moves from node %s to %s", index, self._states[index].node[:8], node[:8])
        with contextlib.suppress(ray.exceptions.RayError, KeyError):
            if problem := await self._handles[index].ready_to_leave.remote():
                _log.error("partition %d stays: %s", index, problem)
                return False
        kept = await self._end(index)
        await self._made(index, node)
        return kept

    async def _end(self, index: int) -> bool:
        """End a partition's process, for good, after its last snapshot."""
        handle: Any
        kept = False
        try:
            handle = self._handles.get(index) or await asyncio.to_thread(ray.get_actor, partition_name(index))
        except ValueError:
            return True
        try:
            async with asyncio.timeout(self._settings.drain + 60.0):
                kept = await handle.leave.remote()
        except (TimeoutError, ray.exceptions.RayError) as error:
            _log.error("partition %d could not take its last snapshot: %r", index, error)
        await asyncio.to_thread(ray.kill, handle, no_restart=True)
        self._forget(index)
        for _ in range(100):  # until its name is free
            try:
                await asyncio.to_thread(ray.get_actor, partition_name(index))
            except ValueError:
                break
            await asyncio.sleep(0.05)
        return kept


def cores_of_nodes() -> dict[str, float]:
    """Of each node of the Ray cluster that is alive, at least one."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's
    return {node["NodeID"]: max(1.0, node["Resources"].get("CPU", 1.0)) for node in nodes if node["Alive"]}


def partition_name(index: int) -> str:
    """By which Ray finds a partition."""
    return f"partition-{index}"
