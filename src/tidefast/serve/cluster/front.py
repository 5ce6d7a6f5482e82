"""The front: what answers HTTP on a node, and forwards to the partitions wherever they run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ray

from tidefast.core.feedback import Feedback
from tidefast.serve.alarms import Alarm
from tidefast.serve.answer import Answer
from tidefast.serve.cluster.layout import ClusterLayout, partition_of
from tidefast.serve.cluster.merging import merged_metrics, merged_snapshots
from tidefast.serve.cluster.steward import Joined, Left, PartitionState, partition_name
from tidefast.serve.decoding import Decoders
from tidefast.serve.images import ImageArray
from tidefast.serve.limits import ByteBudget
from tidefast.serve.refused import RefusedError
from tidefast.serve.settings import Settings
from tidefast.serve.watch import Watch

T = TypeVar("T")
_BEAT = 2.0  # seconds between two words with the steward
_SLACK = 2.0  # seconds beyond `timeout`, after which a partition has not even said that it took too long
_GLANCE = 5.0  # seconds that an overview waits for a partition
_log = logging.getLogger("tidefast.serve")


class Front:
    """A `StreamService` whose streams are in the partitions of a cluster.

    name, node: of this front, and the node that it runs on, as the steward knows them.
    steward: makes or finds the actor; called again when that is gone for good.
    about: what a partition said of the service.
    """

    def __init__(
        self,
        settings: Settings,
        layout: ClusterLayout,
        name: str,
        node: str,
        steward: Callable[[], Any],
        about: dict[str, Any],
    ) -> None:
        self.settings, self._layout, self._name, self._node = settings, layout, name, node
        self.labels: list[str] | None = about["labels"]
        height, width = about["size"]
        self.size: tuple[int, int] | None = (height, width)
        self.bodies = ByteBudget(settings.body_budget)
        self.stopping = False
        self.snapshot_works = True
        self._about = about
        self._find_steward = steward
        self._handles: dict[int, Any] = {}
        self._finding: dict[int, asyncio.Task[Any]] = {}
        self._terms = [0] * layout.partitions
        self._states: list[PartitionState] = []
        self._absent: dict[int, float] = {}  # partitions that do not serve, and since when
        self._watch = Watch()  # of what is refused here: all else is known to the partitions

    @property
    def partitions(self) -> int:
        """How many there are."""
        return self._layout.partitions

    # -- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to take requests, and take part in the cluster."""
        self._decoders = Decoders()
        self._beating = asyncio.create_task(self._beat())

    async def stop(self) -> None:
        """Leave the cluster: the partitions of this node move to others, or end with a last snapshot."""
        self.stopping = True
        self._beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._beating
        deadline = time.monotonic() + self.settings.drain + 120.0
        left: Left | None = None
        while left is None and time.monotonic() < deadline:
            try:
                steward = await asyncio.to_thread(self._find_steward)
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + deadline - time.monotonic()):
                    left = await steward.leave.remote(self._name, self._node)
                if left.last:
                    await asyncio.to_thread(ray.kill, steward, no_restart=True)
            except (ray.exceptions.RayError, TimeoutError) as error:
                _log.warning("the cluster's steward does not answer: %r", error)
                await asyncio.sleep(1.0)
        self.snapshot_works = left is not None and left.kept
        self._decoders.close()

    async def _beat(self) -> None:
        common = self.settings.of_the_cluster()
        while True:
            try:
                steward = await asyncio.to_thread(self._find_steward)
                async with asyncio.timeout(_GLANCE):
                    joined: Joined = await steward.join.remote(self._name, self._node, common)
                if joined.problem:
                    _log.error("%s", joined.problem)
                self._note(joined.partitions)
            except (ray.exceptions.RayError, TimeoutError) as error:
                _log.warning("the cluster's steward does not answer: %r", error)
            except Exception:
                _log.exception("the cluster cannot be asked")
            await asyncio.sleep(_BEAT)

    def _note(self, states: list[PartitionState]) -> None:
        served = [state.phase == "serving" for state in self._states] or [True] * len(states)
        self._states = states
        for index, state in enumerate(states):
            if state.phase == "serving":
                self._absent.pop(index, None)
                if not served[index]:
                    _log.info("partition %d serves again", index)
            else:
                self._absent.setdefault(index, time.time())
                if served[index]:
                    _log.warning("partition %d does not serve: %s", index, state.problem or state.phase)

    # -- asking partitions ------------------------------------------------------------------------------------

    async def _ask_for(self, name: str, what: str, *arguments: Any) -> Any:
        """Ask the partition of a stream."""
        return await self._ask(partition_of(name, self._layout.partitions), what, *arguments)

    async def _ask(self, index: int, what: str, *arguments: Any, patience: float | None = None) -> Any:
        if self.stopping:
            raise RefusedError("stopping", "this node is leaving the cluster: try another one, or again later")
        patience = self.settings.timeout + _SLACK if patience is None else patience
        try:
            async with asyncio.timeout(patience):
                handle = self._handles.get(index) or await self._found(index)
                reply = await handle.ask.remote(what, *arguments)
        except TimeoutError:
            raise RefusedError(
                "timeout", f"partition {index} did not answer within {patience:g} s: try again later"
            ) from None
        except (ray.exceptions.RayError, ValueError) as error:  # it died, or is not there yet
            self._handles.pop(index, None)
            _log.debug("partition %d cannot be asked: %r", index, error)
            raise _moving(index) from error
        if reply.refused is not None:
            raise RefusedError(*reply.refused)
        if reply.term < self._terms[index]:  # from before somebody else took over
            raise _moving(index)
        self._terms[index] = reply.term
        return reply.value

    async def _found(self, index: int) -> Any:
        """The actor of a partition; a ValueError when there is none. However many ask, Ray is asked once."""
        if index not in self._finding:
            self._finding[index] = asyncio.create_task(asyncio.to_thread(ray.get_actor, partition_name(index)))
            self._finding[index].add_done_callback(lambda _: self._finding.pop(index, None))
        self._handles[index] = await asyncio.shield(self._finding[index])
        return self._handles[index]

    async def _ask_all(self, what: str, *arguments: Any) -> list[Any]:
        """Ask every partition; a RefusedError when one of them cannot answer."""
        return await asyncio.gather(*(self._ask(index, what, *arguments) for index in range(self._layout.partitions)))

    async def _glance(self, what: str, *arguments: Any) -> dict[int, Any]:
        """Ask every partition; what those say that answer soon."""

        async def ask(index: int) -> Any:
            return await self._ask(index, what, *arguments, patience=_GLANCE)

        said = await asyncio.gather(*map(ask, range(self._layout.partitions)), return_exceptions=True)
        for one in said:
            if isinstance(one, BaseException) and not isinstance(one, RefusedError):
                raise one
        return {index: one for index, one in enumerate(said) if not isinstance(one, BaseException)}

    # -- images -----------------------------------------------------------------------------------------------

    async def decode(self, work: Callable[[], T], size: int) -> T:
        """Run a decoder, without keeping other requests waiting."""
        return await self._decoders.run(work, size)

    async def answer(self, name: str, pixels: ImageArray, *, adapt: bool) -> Answer:
        """Predict, and adapt unless told otherwise."""
        answer: Answer = await self._ask_for(name, "answer", name, pixels, adapt)
        return answer

    async def require_labels_wanted(self, name: str) -> None:
        """A RefusedError where labels for a stream are of no use."""
        await self._ask_for(name, "require_labels_wanted", name)

    async def feedback(self, name: str, pixels: ImageArray, labels: Sequence[int]) -> Feedback:
        """Tell a stream what some images show; what that decided."""
        feedback: Feedback = await self._ask_for(name, "feedback", name, pixels, labels)
        return feedback

    # -- streams ----------------------------------------------------------------------------------------------

    async def listed(self, prefix: str, order: str, after: str, limit: int) -> list[dict[str, Any]]:
        """Streams of all partitions that answer."""
        if order == "attention":
            return await self._listed_by_attention(prefix, after, limit)
        lists = await self._glance("listed", prefix, order, after, limit)
        return sorted((state for states in lists.values() for state in states), key=_name_of)[:limit]

    async def _listed_by_attention(self, prefix: str, after: str, limit: int) -> list[dict[str, Any]]:
        ranks = await self._glance("ranks", prefix)
        names = [name for *_, name in sorted(rank for each in ranks.values() for rank in each)]
        chosen = (names[names.index(after) + 1 :] if after in names else names)[:limit]
        by_partition: dict[int, list[str]] = {}
        for name in chosen:
            by_partition.setdefault(partition_of(name, self._layout.partitions), []).append(name)
        found: dict[str, dict[str, Any]] = {}
        for index, own in by_partition.items():
            with contextlib.suppress(RefusedError):
                found |= {state["name"]: state for state in await self._ask(index, "listed_statuses", own)}
        return [found[name] for name in chosen if name in found]

    async def status(self, name: str) -> dict[str, Any]:
        """What is known of a stream."""
        status: dict[str, Any] = await self._ask_for(name, "status", name)
        return status

    async def history(self, name: str, since: int) -> list[dict[str, Any]]:
        """What is remembered of a stream's steps after `since`; gone when its partition starts anew."""
        history: list[dict[str, Any]] = await self._ask_for(name, "history", name, since)
        return history

    async def freeze(self, name: str, frozen: bool) -> None:
        """From now on the stream answers without adapting, or adapts again."""
        await self._ask_for(name, "freeze", name, frozen)

    async def reset(self, name: str) -> None:
        """Back to the source model."""
        await self._ask_for(name, "reset", name)

    async def rollback(self, name: str, snapshot: str) -> None:
        """Back to what the stream was in a snapshot, or in the last one of its partition before that."""
        await self._ask_for(name, "rollback", name, snapshot)

    async def drop(self, name: str) -> None:
        """Forget a stream."""
        await self._ask_for(name, "drop", name)

    # -- the whole --------------------------------------------------------------------------------------------

    async def snapshot(self) -> dict[str, Any]:
        """Take a snapshot of all partitions under one name, each at a moment of its own; all of them, or an error."""
        number = int(time.time())
        for _ in range(3):
            taken = await self._ask_all("snapshot", number)
            highest = max(int(each["name"]) for each in taken)
            if highest == number:
                return {"name": taken[0]["name"], "streams": sum(each["streams"] for each in taken)}
            number = highest + 1  # a partition was ahead: once more, so that one name means one time everywhere
        raise RefusedError("busy", "other snapshots are being taken: try again in a moment")

    async def listed_snapshots(self) -> list[dict[str, Any]]:
        """Of all partitions that answer, the oldest first."""
        return merged_snapshots((await self._glance("listed_snapshots")).values())

    async def alarms(self) -> list[Alarm]:
        """Of all partitions, and of those that do not answer."""
        said = await self._glance("alarms")
        found = [alarm for alarms in said.values() for alarm in alarms]
        for index in set(range(self._layout.partitions)) - said.keys():
            problem = self._states[index].problem if self._states else ""
            message = f"partition {index} does not answer, its streams get 503. {problem}".strip()
            found.append(Alarm(None, "partition", self._absent.setdefault(index, time.time()), message, 0.0, 0.0))
        return sorted(found, key=lambda alarm: alarm.since)

    async def problems(self) -> list[str]:
        """Why this front is not ready; a partition that is absent is an alarm, as the others are to be reached."""
        if self.stopping:
            return ["this node is leaving the cluster"]
        absent = len(self._absent)
        return ["no partition answers"] if absent == self._layout.partitions else []

    async def metrics(self) -> bytes:
        """All numbers of all partitions, and what was refused here."""
        texts = {str(index): text.decode() for index, text in (await self._glance("metrics")).items()}
        own = self._watch.metrics().decode().split("# HELP ")
        refused = "".join(f"# HELP {part}" for part in own if part.startswith("tidefast_rejected"))
        up = "# HELP tidefast_partition_up Whether a partition answers.\n# TYPE tidefast_partition_up gauge\n"
        whole = {"front": refused}
        for index in map(str, range(self.partitions)):
            whole[index] = f"{up}tidefast_partition_up {float(index in texts)}\n{texts.get(index, '')}"
        return await asyncio.to_thread(merged_metrics, whole)

    async def info(self) -> dict[str, Any]:
        """What is served, how, and where."""
        said = await self._glance("info")
        about = next(iter(said.values()), self._about)
        return {
            **about,
            "streams": sum(one["streams"] for one in said.values()),
            "settings": self.settings.public(),
            "partitions": [
                {"phase": state.phase, "term": state.term, "node": state.node, "process": state.process}
                for state in self._states
            ],
        }

    def rejected(self, name: str | None, reason: str) -> None:
        """Count a request that was refused."""
        self._watch.rejected(name, reason)


def _name_of(state: dict[str, Any]) -> str:
    return str(state["name"])


def _moving(index: int) -> RefusedError:
    return RefusedError("moving", f"partition {index} is starting or moving: try again in a moment")
