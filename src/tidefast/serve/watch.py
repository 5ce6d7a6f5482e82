"""Watching a service: what every stream did lately, alarms, and numbers for Prometheus."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidefast.core.measurement import STANDARD, Measurement
from tidefast.core.record import StepRecord
from tidefast.core.validation import require_count
from tidefast.serve import canaries
from tidefast.serve.alarm_kinds import KINDS, OF_A_STREAM
from tidefast.serve.alarms import Alarm, Bounds, ImageStatistics, StreamAlarms
from tidefast.serve.metrics import Metrics
from tidefast.serve.recent import RecentSteps

__all__ = ["Alarm", "Bounds", "ImageStatistics", "Watch"]

_log = logging.getLogger("tidefast.serve")

LATELY = 100
"""Steps that `Watch.lately` sums up."""
_TREND = 40


class Watch:
    """History, alarms and metrics of all streams; any number of threads may use it.

    bounds: what raises an alarm.
    metric_streams: so many streams have labels of their own in the metrics.
    history: so many steps are kept of each stream, and `history_total` of all; streams idle longest lose theirs first.
    callbacks: called with an Alarm when it is raised, and again with `active=False` when it is over.
    classes: of the model; needed to judge a concentration without a threshold.
    clock, wall: seconds for intervals and seconds since 1970; the latter are for people and may jump.

    >>> watch = Watch()
    >>> watch.step("camera", StepRecord(1), latency=0.02, images=ImageStatistics(0.5, 0.2, 0.0, 1.0, count=16))
    >>> watch.history("camera")[0]["step"], watch.alarms()
    (1, [])
    """

    def __init__(
        self,
        bounds: Bounds = Bounds(),  # noqa: B008 (frozen)
        *,
        metric_streams: int = 200,
        history: int = 1000,
        history_total: int = 1_000_000,
        callbacks: Iterable[Callable[[Alarm], None]] = (),
        classes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        require_count("metric_streams", metric_streams, low=0)
        require_count("history", history)
        require_count("history_total", history_total, low=history)
        if classes is not None:
            require_count("classes", classes, low=2)
        self.bounds, self.classes = bounds, classes
        self._limit, self._limit_total, self._kept = history, history_total, 0
        self._callbacks = list(callbacks)
        self._clock, self._wall = clock, wall
        self._lock = threading.Lock()
        self._metrics = Metrics(metric_streams, clock)
        self._recent: OrderedDict[str, RecentSteps] = OrderedDict()  # the stream idle longest first
        self._measured: Mapping[str, Measurement] = STANDARD
        self._judges: dict[str, StreamAlarms] = {}
        self._seen: dict[str, tuple[float, float]] = {}  # by stream: its last call, by clock and by wall
        self._alarms: dict[tuple[str | None, str], Alarm] = {}
        self._alarms_of: Counter[str] = Counter()
        self._failures = 0
        self._had: dict[str | None, int] = {}  # streams that lost steps, and the step at which they were
        self._reasons: dict[str, int] = {"": 0}  # why steps were skipped, by number

    def expect(self, measures: Mapping[str, Measurement]) -> None:
        """What the policy measures: history and metrics have it from now on, of streams that begin."""
        with self._lock:
            self._measured = self._metrics.measures = {**STANDARD, **measures}

    def call(self, callback: Callable[[Alarm], None]) -> None:
        """Call one more with every alarm, after those that were given at the beginning."""
        self._callbacks.append(callback)

    # -- taking note ------------------------------------------------------------------------------------------

    def step(self, name: str, record: StepRecord, *, latency: float, images: ImageStatistics) -> None:
        """After every adapting call."""
        with self._lock:
            self._touch(name)
            self._metrics.step(name, record, latency, images.count)
            self._remember(name, record, latency, images)
            judge = self._judges.get(name)
            if judge is None:
                judge = self._judges[name] = StreamAlarms(self.bounds, self.classes)
            judge.step(record, images)
            changed = self._settle(name, judge)
            if record.step >= self._had.get(name, math.inf):
                changed += self._found(name)
        self._tell(changed)

    def answered(self, name: str, *, latency: float, images: int) -> None:
        """After every call that was answered without adapting."""
        with self._lock:
            self._touch(name)
            self._metrics.answered(name, latency, images)

    def rejected(self, name: str | None, reason: str) -> None:
        """A request was refused; `reason` is one of a small fixed set."""
        with self._lock:
            self._metrics.rejected[reason] += 1
        _log.debug("refused a request for %r: %s", name, reason)

    def event(self, name: str, what: str) -> None:
        """Something was done to a stream: freeze, alarm_freeze, unfreeze, reset, rollback, damaged."""
        with self._lock:
            self._metrics.events[what] += 1
            changed: list[Alarm] = []
            if what in ("reset", "rollback"):
                self._metrics.began_anew(name)
                judge = self._judges.get(name)
                if judge is not None:
                    judge.clear()
                    changed = self._settle(name, judge)
                changed += self._found(name)
        _log.log(
            logging.WARNING if what in ("damaged", "alarm_freeze") else logging.INFO,
            "stream %r: %s",
            name,
            what,
            extra={"fields": {"event": what, "stream": name}},
        )
        self._tell(changed)

    def lost(self, name: str | None, had: int, has: int) -> int:
        """A stream was at step `had`, and goes on from step `has`; without a name, all of them lost some steps.

        How many it lost: all that it had where it was reset, or rolled back, after it was at step `has`.
        """
        steps = had - has if has <= had else had
        with self._lock:
            self._metrics.lost += steps
            changed = self._found(name)
            if name is None:
                message = (
                    "the newest snapshot is damaged, all streams go on from an older one: steps since then are lost. "
                    "Check the disk; this ends when the damaged snapshot is gone from the state folder."
                )
            else:
                self._had[name] = has + steps
                message = (
                    f"its file was damaged or gone: it was at step {had} and went on from step {has}, the newest that "
                    f"could be found. Check the disk. This ends at step {has + steps}, or with a reset or a rollback."
                )
            changed.append(self._raise((name, "lost"), Alarm(name, "lost", self._wall(), message, steps, 0)))
        self._tell(changed)
        return steps

    def found(self, name: str | None) -> None:
        """What was lost is made up for."""
        with self._lock:
            changed = self._found(name)
        self._tell(changed)

    def queue(self, waiting: int) -> None:
        """So many images wait for their batch."""
        with self._lock:
            self._metrics.waiting = waiting

    def snapshot(self, seconds: float, streams: int, ok: bool) -> None:
        """A snapshot was taken, or failed."""
        with self._lock:
            self._metrics.snapshot(seconds, streams, ok)
            self._failures = 0 if ok else self._failures + 1
            changed: list[Alarm] = []
            key = (None, "snapshots")
            if self._failures >= self.bounds.failures and key not in self._alarms:
                message = (
                    f"{self._failures} snapshots in a row failed: a restart now would lose the steps since the last "
                    "good one. Check the space and the permissions of the state folder; the log has the error."
                )
                alarm = Alarm(None, "snapshots", self._wall(), message, self._failures, self.bounds.failures)
                changed.append(self._raise(key, alarm))
            elif ok and key in self._alarms:
                changed.append(self._lower(key))
        self._tell(changed)

    def forget(self, name: str) -> None:
        """A stream was removed."""
        with self._lock:
            recent = self._recent.pop(name, None)
            self._kept -= 0 if recent is None else len(recent)
            self._judges.pop(name, None)
            self._seen.pop(name, None)
            self._had.pop(name, None)
            self._metrics.forget(name)
            changed = [self._lower((name, kind)) for kind in KINDS if (name, kind) in self._alarms]
        self._tell(changed)

    # -- reading ----------------------------------------------------------------------------------------------

    def history(self, name: str, since: int = 0) -> list[dict[str, Any]]:
        """The kept steps after step `since`, each a StepRecord's fields with time, latency, images and run.

        `run` is a number that grows when the stream was reset or rolled back, and steps count anew from there.
        """
        with self._lock:
            recent = self._recent.get(name) or RecentSteps()
            steps = recent.after(since)
            reasons = list(self._reasons)
        return [recent.unpacked(step, reasons) for step in steps]

    def lately(self, name: str) -> dict[str, Any]:
        """A stream at a glance: resets in its last steps, the trend of its concentration, when it was last used, and
        what it last made of the canaries (None before it was asked)."""
        with self._lock:
            recent = self._recent.get(name) or RecentSteps()
            steps = recent.latest(LATELY)
            seen = self._seen.get(name)
            measured = self._metrics.measured(name)
            asked = {what: round(measured[what], 4) for what in canaries.MEASURES if what in measured}
        return {
            "resets": sum(map(recent.was_reset, steps)),
            "steps": len(steps),
            "trend": [recent.trend(step, ("concentration", "threshold")) for step in steps[-_TREND:]],
            "seen": None if seen is None else round(seen[1], 3),
            "canaries": asked or None,
        }

    def alarms(self, name: str | None = None) -> list[Alarm]:
        """Active alarms of a stream, or all of them, the latest last."""
        with self._lock:
            return [alarm for alarm in self._alarms.values() if name is None or alarm.stream == name]

    def ranked(self, names: Iterable[str]) -> list[str]:
        """Names in the order of attention."""
        return [name for *_, name in self.ranks(names)]

    def ranks(self, names: Iterable[str]) -> list[tuple[int, int, str]]:
        """Names in the order of attention: most alarms first, then used within a minute, an hour, earlier, never.

        Before each name stand the numbers that make the order, to merge several lists by.
        """
        with self._lock:
            now, used, alarms = self._clock(), self._seen.copy(), self._alarms_of.copy()

        def rank(name: str) -> tuple[int, int, str]:
            seen = used.get(name)
            idle = math.inf if seen is None else now - seen[0]
            return -alarms[name], sum(idle > limit for limit in (60.0, 3600.0, 1e12)), name

        return sorted(map(rank, names))

    def metrics(self) -> bytes:
        """All numbers in Prometheus' text format."""
        with self._lock:
            reading = self._metrics.read()
        return reading.text()

    # -- inside, with the lock held ---------------------------------------------------------------------------

    def _touch(self, name: str) -> None:
        self._seen[name] = (self._clock(), self._wall())

    def _remember(self, name: str, record: StepRecord, latency: float, images: ImageStatistics) -> None:
        recent = self._recent.get(name)
        if recent is None:
            recent = self._recent[name] = RecentSteps(self._measured)
        before = len(recent)
        recent.go_back_to(record.step)
        if len(self._reasons) < 1000:
            self._reasons.setdefault(record.skipped or "", len(self._reasons))
        recent.append(record, self._wall(), latency, images, self._reasons.get(record.skipped or "", 0))
        recent.drop_first(max(0, len(recent) - self._limit))
        self._kept += len(recent) - before
        self._recent.move_to_end(name)
        while self._kept > self._limit_total:
            idle = next(steps for steps in self._recent.values() if len(steps))
            self._kept -= (dropped := min(len(idle), 1 + len(idle) // 2))
            idle.drop_first(dropped)

    def _settle(self, name: str, judge: StreamAlarms) -> list[Alarm]:
        """Bring a stream's alarms in line with what its judge says; those that changed."""
        on = judge.on()
        if not on and not self._alarms_of[name]:
            return []
        changed = []
        for kind in OF_A_STREAM:
            key = (name, kind)
            if kind in on and key not in self._alarms:
                value, bound = judge.values[kind]
                alarm = Alarm(name, kind, self._wall(), judge.message(kind), value, bound)
                changed.append(self._raise(key, alarm))
            elif kind not in on and key in self._alarms:
                changed.append(self._lower(key))
        return changed

    def _found(self, name: str | None) -> list[Alarm]:
        self._had.pop(name, None)
        return [self._lower((name, "lost"))] if (name, "lost") in self._alarms else []

    def _raise(self, key: tuple[str | None, str], alarm: Alarm) -> Alarm:
        self._alarms[key] = alarm
        self._metrics.alarms[alarm.kind] += 1
        if alarm.stream is not None:
            self._alarms_of[alarm.stream] += 1
        return alarm

    def _lower(self, key: tuple[str | None, str]) -> Alarm:
        alarm = self._alarms.pop(key)
        self._metrics.alarms[alarm.kind] -= 1
        if alarm.stream is not None:
            self._alarms_of[alarm.stream] -= 1
            self._alarms_of += Counter()  # drops zeros
        return Alarm(alarm.stream, alarm.kind, alarm.since, alarm.message, alarm.value, alarm.bound, active=False)

    # -- inside, without the lock -----------------------------------------------------------------------------

    def _tell(self, changed: list[Alarm]) -> None:
        """Log lines and callbacks; a callback that fails is logged and harms nobody."""
        for alarm in changed:
            about = "the service" if alarm.stream is None else f"stream {alarm.stream!r}"
            if alarm.active:
                _log.warning("alarm %s of %s: %s", alarm.kind, about, alarm.message, extra=_fields(alarm))
            else:
                _log.info("alarm %s of %s is over", alarm.kind, about, extra=_fields(alarm))
            for callback in self._callbacks:
                try:
                    callback(alarm)
                except Exception:
                    _log.exception("a callback failed on the alarm %s of %s", alarm.kind, about)


def _fields(alarm: Alarm) -> dict[str, Any]:
    """What a log for machines tells of an alarm beside the line."""
    told = {"alarm": alarm.kind, "stream": alarm.stream, "value": alarm.value, "bound": alarm.bound}
    return {"fields": {**told, "active": alarm.active}}
