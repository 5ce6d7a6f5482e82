"""The service without its network side: a fleet, micro-batches, snapshots, and a watch over all of it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tidefast.adapter import Adapter
from tidefast.core import losses
from tidefast.core.feedback import Feedback
from tidefast.core.measurement import STANDARD
from tidefast.core.record import StepRecord
from tidefast.core.snapshot import is_out_of_memory
from tidefast.errors import LostStreamError, SnapshotError, UnreadableStreamError
from tidefast.fleet import Fleet
from tidefast.fleet.entry import Taken
from tidefast.serve import images
from tidefast.serve.alarms import Alarm
from tidefast.serve.answer import Answer
from tidefast.serve.batching import Batcher, JointWork, PendingRequest, Work
from tidefast.serve.canaries import MEASURES, Canaries
from tidefast.serve.decoding import Decoders
from tidefast.serve.limits import ByteBudget
from tidefast.serve.refused import RefusedError
from tidefast.serve.settings import Settings
from tidefast.serve.snapshots import Snapshots
from tidefast.serve.threads import started_pool
from tidefast.serve.watch import ImageStatistics, Watch

T = TypeVar("T")
_log = logging.getLogger("tidefast.serve")


class Service:
    """Serves the streams of one model; everything `async` belongs into one event loop, `start` first and `stop` last.

    settings: see there.
    model: maps float images [batch, 3, height, width] in [0, 1] to logits.
    options: of the fleet, beside the model: method, reset, optimizer, ...
    labels: names of the classes, if they have any.
    watch: by default one that only keeps and logs.
    canaries: images [n, 3, height, width] that the model knows how to answer; all streams are watched by them.
    """

    def __init__(
        self,
        settings: Settings,
        model: nn.Module,
        options: dict[str, Any],
        *,
        labels: Sequence[str] | None = None,
        size: tuple[int, int] | None = None,
        watch: Watch | None = None,
        canaries: Tensor | None = None,
    ) -> None:
        torch.set_num_threads(settings.threads_each())
        self.settings, self.labels = settings, None if labels is None else list(labels)
        self.watch = Watch() if watch is None else watch
        self.size = settings.side or size
        """Height and width of the images, once they are known."""
        self._size_is_sure = self.size is not None
        self.num_classes: int | None = None
        self.ready = False
        self.stopping = False
        self.snapshot_works = True
        self.bodies = ByteBudget(settings.body_budget)
        self.around_steps: Callable[[Work[images.ImageArray, Answer]], Work[images.ImageArray, Answer]] = lambda work: (
            work
        )
        self.around_joint_steps: Callable[
            [JointWork[images.ImageArray, Answer]], JointWork[images.ImageArray, Answer]
        ] = lambda work: work
        """What makes steps, and those of several streams at once, wrapped by whoever wants to follow them."""
        self._recovering = threading.Lock()
        self._unreadable: set[str] = set()  # idle streams that could not be read when they were last asked for
        self._frozen_by: dict[str, str] = {}  # streams that an alarm froze, and its kind
        self._untold: dict[str, int] = {}  # steps that streams lost and no answer has told yet
        self._room = threading.Lock()
        self._beginning: set[str] = set()  # streams that have a place, and have not begun yet
        self.snapshots = Snapshots(Path(settings.state), settings.keep, self._damaged)
        try:
            self.fleet = Fleet(
                model, folder=self.snapshots.idle, resident=settings.resident, workers=settings.workers, **options
            )
            self.canaries = None if canaries is None else self._known(model, canaries)
            self.measures = {**STANDARD, **self.fleet.measures, **(MEASURES if self.canaries else {})}
            self.watch.expect(self.measures)
            self.watch.call(self._freeze_if_sick)
            self._restore()
            if self.size is not None:
                self._learn(self._probed(self.size))
        except BaseException:
            self.snapshots.close()
            raise

    def _known(self, model: nn.Module, canaries: Tensor) -> Canaries:
        """The canaries with the source model's answers; they tell the size of images where nobody has said it."""
        given = (canaries.shape[-2], canaries.shape[-1])
        if self.size is None:
            self.size, self._size_is_sure = given, True
        if given != self.size:
            raise ValueError(
                f"canaries must be {self.size[1]}x{self.size[0]} as the model's images are (width x height), got "
                f"{given[1]}x{given[0]}: of a folder, --canaries FOLDER:resize=N,crop=N prepares them"
            )
        source = Adapter(model, "source")
        try:
            parts = [part.to(source.network.device) for part in torch.split(canaries, 64)]
            return Canaries(canaries, torch.cat([source.predict(part).argmax(1) for part in parts]).cpu())
        except RuntimeError as error:
            raise ValueError(f"the model cannot take the canaries, images of {given[1]}x{given[0]}: {error}") from error

    def _restore(self) -> None:
        try:
            had = self.snapshots.restore(self.fleet, self.settings.resume)
        except SnapshotError as error:
            raise SnapshotError(
                f"{error}; give --state another folder, start as this one was started, or, where only a learning rate "
                "or a seed differs, choose with --resume"
            ) from error
        if self.snapshots.unreadable:
            self.watch.lost(None, 0, 0)
        for name in self.fleet:
            has = self.fleet[name].step
            if had.get(name, 0) > has:
                self.watch.lost(name, had[name], has)
        if len(self.fleet):
            _log.info("%d streams go on where they were", len(self.fleet))

    def _probed(self, size: tuple[int, int]) -> int:
        """How many classes the model tells two black images into."""
        try:
            return self._take("-", torch.zeros(2, 3, *size), adapt=False).logits.shape[1]
        except RuntimeError as error:
            raise ValueError(f"the model cannot take images of {size[1]}x{size[0]}: {error}") from error

    def _learn(self, num_classes: int) -> None:
        """The number of classes, as the model told it."""
        if self.labels is not None and len(self.labels) != num_classes:
            raise ValueError(f"there are {len(self.labels)} labels, but the model has {num_classes} classes")
        self.num_classes = self.watch.classes = num_classes

    def _damaged(self, name: str, problem: str) -> None:
        _log.warning("%s is damaged and goes on from an older snapshot, or begins anew: %s", name, problem)
        self.watch.event(name, "damaged")

    # -- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to take requests and snapshots."""
        chosen = self.settings
        if chosen.together > 1 and not self.fleet.shares_passes:
            _log.warning("--together does nothing here: this method, policy or network has streams stepped one by one")
        self._batcher: Batcher[images.ImageArray, Answer] = Batcher(
            self.around_steps(self._work),
            workers=chosen.workers,
            max_batch=chosen.max_batch,
            max_wait=chosen.max_wait,
            queue=chosen.queue,
            stream_queue=chosen.stream_queue,
            together=chosen.together,
            joint_work=self.around_joint_steps(self._joint_work),
        )
        self._decoders = Decoders()
        self._hands = started_pool(4, "tidefast-hand")
        self._labelling = started_pool(1, "tidefast-labels")
        self._periodic = asyncio.create_task(self._snapshot_now_and_then())
        self.ready = True

    async def stop(self, drain: float | None = None) -> None:
        """Finish what was accepted, within `drain` seconds, take a last snapshot, and let go of the state folder."""
        self.stopping, self.ready = True, False
        await self._batcher.stop(self.settings.drain if drain is None else drain)
        self._periodic.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._periodic
        with contextlib.suppress(OSError):
            await self._by_hand(self._take_snapshot)
        self._decoders.close()
        self._labelling.shutdown()
        self._hands.shutdown()
        self.snapshots.close()

    async def _snapshot_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self.settings.snapshot_every)
            with contextlib.suppress(OSError):  # logged and counted; the next one may work
                await self._by_hand(self._take_snapshot)

    def _take_snapshot(self, always: bool = False, least: int = 0) -> tuple[int, int] | None:
        started = time.perf_counter()
        try:
            try:
                taken = self.snapshots.take(self.fleet, always=always, least=least)
            except LostStreamError as error:
                for name in error.names:
                    self._recover(name)
                taken = self.snapshots.take(self.fleet, always=always, least=least)
        except Exception as error:  # whatever it is, such as no thread to be had: the next one may work
            self.snapshot_works = False
            self.watch.snapshot(time.perf_counter() - started, len(self.fleet), False)
            known = isinstance(error, (OSError, MemoryError, UnreadableStreamError, LostStreamError))
            _log.error("no snapshot could be taken: %s", error, exc_info=not known)
            raise error if isinstance(error, OSError) else OSError(str(error)) from error
        self.snapshot_works = True
        unreadable = self.snapshots.unreadable
        if unreadable and not set(unreadable) & set(self.snapshots.numbers()):
            unreadable.clear()
            self.watch.found(None)
        if taken is not None:
            self.watch.snapshot(time.perf_counter() - started, taken[1], True)
        return taken

    async def _by_hand(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do something that is neither a step nor decoding, away from the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._hands, work, *arguments)

    # -- images -----------------------------------------------------------------------------------------------

    async def decode(self, work: Callable[[], T], size: int) -> T:
        """Run a decoder, without keeping other requests waiting."""
        return await self._decoders.run(work, size)

    async def answer(self, name: str, pixels: images.ImageArray, *, adapt: bool) -> Answer:
        """Predict, and adapt unless told otherwise; whatever prevents it is a RefusedError."""
        if self.stopping:
            raise RefusedError("stopping", "the service is shutting down: try another one, or again later")
        if adapt:
            self._require_room(name)
        size = images.size_of(pixels)
        if self.size is None:
            self.size = size  # until the model has said what it thinks of it
        images.require_size(size, self.size)
        kind = "adapt" if adapt else "predict"
        return await self._batcher.submit(name, kind, pixels, len(pixels), self.settings.timeout)

    def _work(
        self, name: str, kind: str, requests: Sequence[PendingRequest[images.ImageArray, Answer]]
    ) -> list[Answer]:
        """One batch, in a thread: step, note, split."""
        batch = images.as_batch([request.payload for request in requests])
        with self._place_for(name) if kind == "adapt" else contextlib.nullcontext():
            taken, lost = self._taken(name, batch, kind == "adapt")
        return self._noted(name, kind, requests, batch, taken, lost)

    def _joint_work(
        self, kind: str, batches: Mapping[str, Sequence[PendingRequest[images.ImageArray, Answer]]]
    ) -> dict[str, list[Answer] | Exception]:
        """Batches of several streams, in a thread: one step of all, and each noted and split."""
        given: dict[str, Tensor] = {}
        answers: dict[str, list[Answer] | Exception] = {}
        with contextlib.ExitStack() as places:
            for name, requests in batches.items():
                try:
                    if kind == "adapt":
                        places.enter_context(self._place_for(name))
                    given[name] = images.as_batch([request.payload for request in requests])
                except Exception as error:
                    answers[name] = error
            results = self.fleet.take_together(given, adapt=kind == "adapt")
        for name, taken in results.items():
            try:
                if isinstance(taken, Exception):  # it is no step: alone it finds out what can be done
                    answers[name] = self._work(name, kind, batches[name])
                else:
                    self._unreadable.discard(name)
                    lost = self._untold.pop(name, 0)
                    answers[name] = self._noted(name, kind, batches[name], given[name], taken, lost)
            except Exception as error:
                answers[name] = error
        return answers

    def _noted(
        self,
        name: str,
        kind: str,
        requests: Sequence[PendingRequest[images.ImageArray, Answer]],
        batch: Tensor,
        taken: Taken,
        lost: int,
    ) -> list[Answer]:
        """What came of a batch, in the books and split among its requests."""
        if not self._size_is_sure:
            self._size_is_sure = True
            try:
                self._learn(taken.logits.shape[1])
            except ValueError as error:
                _log.error("answers go without labels: %s", error)
                self.labels = None
        if kind == "adapt":
            self._remember(name)
        latency = time.perf_counter() - requests[0].since
        if taken.record is not None:
            record = taken.record
            if record.concentration is None and record.skipped is None:  # a policy that does not measure it
                record = _with(record, {"concentration": float(losses.concentration(taken.logits))})
            self.watch.step(name, self._with_canaries(name, record, batch), latency=latency, images=_statistics(batch))
        else:
            self.watch.answered(name, latency=latency, images=len(batch))
            if name not in self.fleet:  # what has not begun leaves nothing behind
                self.watch.forget(name)
        probabilities, classes = taken.logits.softmax(1).max(1)
        chosen, sure = classes.tolist(), probabilities.tolist()
        answers, offset = [], 0
        for request in requests:
            rows = slice(offset, offset + request.size)
            answers.append(
                Answer(
                    taken.step,
                    len(batch),
                    offset,
                    taken.logits[rows],
                    chosen[rows],
                    sure[rows],
                    taken.frozen,
                    taken.record is not None and taken.record.adapted,
                    lost,
                )
            )
            offset += request.size
        return answers

    def _with_canaries(self, name: str, record: StepRecord, batch: Tensor) -> StepRecord:
        """The record, with what the stream makes of the canaries when it is time to ask; what it is stays as it is."""
        if self.canaries is None or not self.canaries.is_due(name, len(batch), stepped=record.skipped is None):
            return record
        try:
            measured = self.canaries.ask(
                name,
                lambda known: self._take(name, known, adapt=False).logits,
                lambda known: self.fleet.answer_as_new(known.to(self.settings.device)).cpu(),
                batch,
            )
        except Exception:  # the step is done and its answer is right, whatever became of the question
            _log.exception("stream %r could not be asked about the canaries", name)
            return record
        return _with(record, measured)

    def _take(self, name: str, batch: Tensor, *, adapt: bool) -> Taken:
        """What the fleet makes of images on the host; its answer is there too."""
        taken = self.fleet.take(name, batch.to(self.settings.device), adapt=adapt)
        return taken._replace(logits=taken.logits.cpu())

    def _taken(self, name: str, batch: Tensor, adapt: bool) -> tuple[Taken, int]:
        """What came of a batch, and how many steps the stream had lost before it."""
        pauses = list(_PAUSES)
        while True:
            try:
                taken = self._take(name, batch, adapt=adapt)
                self._unreadable.discard(name)
                return taken, self._untold.pop(name, 0)
            except LostStreamError:
                try:
                    self._recover(name)
                except UnreadableStreamError as error:
                    raise self._not_now(name, error) from error
            except UnreadableStreamError as error:  # what was in the way may be gone in a moment
                if not pauses:
                    raise self._not_now(name, error) from error
                time.sleep(pauses.pop(0))
            except Exception as error:
                if is_out_of_memory(error):
                    _log.error("a batch of stream %r found no memory: %s", name, error)
                    raise RefusedError("memory", "the service has no memory for this now: try again later") from error
                if self._size_is_sure or not isinstance(error, (ValueError, RuntimeError, TypeError, IndexError)):
                    raise
                self.size = None
                reason = " ".join(str(error).split())[:300]
                raise RefusedError(
                    "unfit", f"the model cannot take images of shape {list(batch.shape[1:])}: {reason}"
                ) from error

    def _not_now(self, name: str, error: UnreadableStreamError) -> RefusedError:
        self._unreadable.add(name)
        _log.error("%s; it stays as it is", error)
        return RefusedError(
            "storage", "the state of this stream cannot be read now, it stays as it is: try again later"
        )

    def _recover(self, name: str) -> None:
        """Take a stream whose file is damaged or gone back to a snapshot; its next answer tells what that cost."""
        with self._recovering:
            try:
                self.fleet.wake(name)  # once more: another thread may have recovered it, or the disk misread
                return
            except LostStreamError as error:
                self._damaged(name, str(error))
            had = self.fleet[name].step
            try:
                self.snapshots.recover(self.fleet, name)
            except KeyError:  # it was dropped meanwhile
                return
            if self.canaries is not None:
                self.canaries.forget(name)
            has = self.fleet[name].step
            if has != had:
                self._untold[name] = self._untold.get(name, 0) + self.watch.lost(name, had, has)

    @contextlib.contextmanager
    def _place_for(self, name: str) -> Iterator[None]:
        """Room for a stream that may begin inside; a RefusedError when there is none, however many ask at once."""
        with self._room:
            new = name not in self.fleet and name not in self._beginning
            if new:
                self._require_room(name, len(self._beginning))
                self._beginning.add(name)
        try:
            yield
        finally:
            if new:
                with self._room:
                    self._beginning.discard(name)

    def _require_room(self, name: str, more: int = 0) -> None:
        if len(self.fleet) + more >= self.settings.max_streams and name not in self.fleet:
            raise RefusedError("streams", f"there are {len(self.fleet)} streams, which is the limit: delete some first")

    def _remember(self, name: str) -> None:
        """Write down that a stream has begun, before anybody is told; one that cannot be written has not begun."""
        try:
            self.snapshots.begin(self.fleet, name)
        except OSError as error:
            with contextlib.suppress(KeyError):
                self.fleet.drop(name)
            _log.error("stream %r cannot begin, the journal cannot be written: %s", name, error)
            raise RefusedError(
                "storage", "a new stream cannot begin: its name could not be written to the disk"
            ) from error

    # -- streams ----------------------------------------------------------------------------------------------

    async def listed(self, prefix: str, order: str, after: str, limit: int) -> list[dict[str, Any]]:
        """Streams whose names begin with `prefix`: by name, or those first that need "attention".

        At most `limit` of them, from behind the one called `after`.
        """
        return await self._by_hand(self._listed, prefix, order, after, limit)

    def _listed(self, prefix: str, order: str, after: str, limit: int) -> list[dict[str, Any]]:
        names = [name for name in self.fleet if name.startswith(prefix)]
        if order == "attention":
            names = self.watch.ranked(names)
            names = names[names.index(after) + 1 :] if after in names else names
        else:
            names = [name for name in names if name > after]
        states = []
        for name in names[:limit]:
            with contextlib.suppress(RefusedError):  # it was dropped just now
                states.append(self._status(name))
        return states

    async def ranks(self, prefix: str) -> list[tuple[int, int, str]]:
        """Streams whose names begin with `prefix` in the order of attention; see `Watch.ranks`."""
        return await self._by_hand(lambda: self.watch.ranks(name for name in self.fleet if name.startswith(prefix)))

    async def status(self, name: str) -> dict[str, Any]:
        """What is known of a stream."""
        return self._status(name)

    def _status(self, name: str) -> dict[str, Any]:
        try:
            known = self.fleet.status(name)
        except KeyError:
            raise _no_stream(name) from None
        alarms = [dataclasses.asdict(alarm) for alarm in self.watch.alarms(name)]
        return {**known, "frozen_by": self._frozen_by.get(name), "alarms": alarms, "lately": self.watch.lately(name)}

    async def history(self, name: str, since: int) -> list[dict[str, Any]]:
        """What is remembered of a stream's steps after `since`, the oldest first; gone after a restart."""
        self._require(name)
        return self.watch.history(name, since)

    async def freeze(self, name: str, frozen: bool) -> None:
        """From now on the stream answers without adapting, or adapts again."""
        self._require(name)
        await self._by_hand(self._here, name, functools.partial(self.fleet.freeze, name, frozen))
        if not frozen:
            self._frozen_by.pop(name, None)
        self.watch.event(name, "freeze" if frozen else "unfreeze")

    def _freeze_if_sick(self, alarm: Alarm) -> None:
        """Where the settings say so, the stream that an alarm concerns learns nothing more until somebody looks."""
        name = alarm.stream
        if name is None or not alarm.active or alarm.kind not in self.settings.freeze_on_alarm:
            return
        if name in self.fleet and not self.fleet.is_frozen(name):
            with contextlib.suppress(KeyError):  # it was dropped just now
                self.fleet.freeze(name)
                self._frozen_by[name] = alarm.kind
                self.watch.event(name, "alarm_freeze")

    async def require_labels_wanted(self, name: str) -> None:
        """A RefusedError where labels for a stream are of no use."""
        self._require(name)
        if not self.fleet.policy.takes_labels:
            raise RefusedError(
                "unfit",
                "the reset policy learns nothing from labels: start with --reset guard:alpha=0.05",
            )

    async def feedback(self, name: str, pixels: images.ImageArray, labels: Sequence[int]) -> Feedback:
        """Tell a stream what some images show; what that decided."""
        await self.require_labels_wanted(name)
        if self.size is not None:
            images.require_size(images.size_of(pixels), self.size)
        if len(pixels) > self.settings.max_batch:
            raise RefusedError("too_large", f"a request holds at most {self.settings.max_batch} images: send several")

        def work() -> Feedback:
            batch = images.as_batch([pixels]).to(self.settings.device)
            try:
                try:
                    return self.fleet[name].feedback(batch, labels)
                except LostStreamError:
                    self._recover(name)
                    return self.fleet[name].feedback(batch, labels)
            except UnreadableStreamError as error:
                raise self._not_now(name, error) from error
            except ValueError as error:
                raise RefusedError("unfit", str(error)) from error

        loop, timeout = asyncio.get_running_loop(), self.settings.timeout
        try:
            async with asyncio.timeout(timeout):
                return await loop.run_in_executor(self._labelling, self._here, name, work)
        except TimeoutError:
            raise RefusedError("timeout", f"there was no answer within {timeout:g} s: send slower") from None

    async def reset(self, name: str) -> None:
        """Back to the source model."""
        self._require(name)
        await self._by_hand(self._here, name, self.fleet[name].reset)
        self._unreadable.discard(name)
        self._went_back(name, "reset")

    async def rollback(self, name: str, snapshot: str) -> None:
        """Back to what the stream was in a snapshot; one that was dropped begins again."""
        path = self.snapshots.find(snapshot)
        if path is None:
            raise RefusedError("unknown", f"there is no snapshot {snapshot[:40]!r}")

        def work() -> None:
            try:
                with self._place_for(name):
                    self.fleet.rollback(name, path)
            except KeyError:
                raise RefusedError("unknown", f"the snapshot {snapshot} has no stream {name!r}") from None
            except (SnapshotError, FileNotFoundError) as error:
                _log.warning("stream %r cannot be taken from snapshot %s: %s", name, snapshot, error)
                raise RefusedError(
                    "damaged", f"the snapshot {snapshot} has no readable copy of stream {name!r}"
                ) from error
            except (OSError, MemoryError) as error:
                _log.error("stream %r cannot be read from snapshot %s now: %s", name, snapshot, error)
                raise RefusedError("storage", f"the snapshot {snapshot} cannot be read now: try again later") from error
            self._unreadable.discard(name)
            self._remember(name)

        await self._by_hand(work)
        self._went_back(name, "rollback")

    def _went_back(self, name: str, how: str) -> None:
        self._untold.pop(name, None)
        if self.canaries is not None:
            self.canaries.forget(name)
        self.watch.event(name, how)

    async def drop(self, name: str) -> None:
        """Forget a stream."""
        self._require(name)

        def work() -> None:
            try:
                self.snapshots.drop(self.fleet, name)
            except KeyError:
                raise _no_stream(name) from None
            except OSError as error:
                raise RefusedError("storage", "the stream stays: its end could not be written to the disk") from error

        await self._by_hand(work)
        self._unreadable.discard(name)
        self._frozen_by.pop(name, None)
        self._untold.pop(name, None)
        if self.canaries is not None:
            self.canaries.forget(name)
        self.watch.forget(name)

    def _here(self, name: str, work: Callable[[], T]) -> T:
        """Do something to a stream, which may be dropped before its turn comes."""
        try:
            return work()
        except KeyError:
            raise _no_stream(name) from None

    def _require(self, name: str) -> None:
        if name not in self.fleet:
            raise _no_stream(name)

    # -- the whole --------------------------------------------------------------------------------------------

    async def snapshot(self, least: int = 0) -> dict[str, Any]:
        """Take a snapshot now; its number is `least`, unless there is a higher one already."""
        try:
            taken = await self._by_hand(self._take_snapshot, True, least)
        except OSError as error:
            raise RefusedError("storage", f"no snapshot could be taken: {error.strerror or error}") from error
        assert taken is not None
        return {"name": self.snapshots.path(taken[0]).name, "streams": taken[1]}

    async def listed_snapshots(self) -> list[dict[str, Any]]:
        """The snapshots, the oldest first."""
        return await self._by_hand(self.snapshots.listed)

    async def alarms(self) -> list[Alarm]:
        """Those that are on, the latest last."""
        return self.watch.alarms()

    def rejected(self, name: str | None, reason: str) -> None:
        """Count a request that was refused; `reason` is one of a small fixed set."""
        self.watch.rejected(name, reason)

    async def problems(self) -> list[str]:
        """Why the service is not ready; empty when it is."""
        problems = []
        if not self.ready:
            problems.append("the service is shutting down" if self.stopping else "the service is starting")
        if not self.snapshot_works:
            problems.append("the last snapshot failed")
        if problem := self.snapshots.problem() if self.ready else None:
            problems.append(problem)
        if self._unreadable:
            problems.append(f"idle streams that cannot be read: {len(self._unreadable)}")
        return problems

    async def metrics(self) -> bytes:
        """All numbers in Prometheus' text format."""
        self.watch.queue(self._batcher.waiting)
        return self.watch.metrics()

    async def info(self) -> dict[str, Any]:
        """What is served, and how."""
        return {
            "model": self.settings.model,
            "method": self.settings.method,
            "reset": self.settings.reset,
            "classes": self.num_classes,
            "labels": self.labels,
            "size": None if self.size is None else list(self.size),
            "streams": len(self.fleet),
            "measurements": {name: dataclasses.asdict(what) for name, what in self.measures.items()},
            "canaries": 0 if self.canaries is None else len(self.canaries),
            "settings": self.settings.public(),
        }


_PAUSES = (0.02, 0.1)  # seconds until an idle stream that cannot be read is tried again; other streams wait meanwhile


def _statistics(batch: Tensor) -> ImageStatistics:
    deviation, mean = torch.std_mean(batch, correction=0)
    lowest, highest = torch.aminmax(batch)
    return ImageStatistics(float(mean), float(deviation), float(lowest), float(highest), count=len(batch))


def _with(record: StepRecord, measured: Mapping[str, float]) -> StepRecord:
    """The record with further measurements."""
    return dataclasses.replace(record, measurements={**record.measurements, **measured})


def _no_stream(name: str) -> RefusedError:
    return RefusedError("unknown", f"there is no stream {name[:40]!r}")
