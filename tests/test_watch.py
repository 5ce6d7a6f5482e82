"""Watching a service: alarms on simulated streams that are well and that are not, history, and metrics."""

from __future__ import annotations

import logging
import math
import random
import threading
import time

import pytest

pytest.importorskip("prometheus_client", reason="left out: the extra `serve` is not installed")

from prometheus_client.parser import text_string_to_metric_families

from tidefast.core.measurement import STANDARD
from tidefast.core.record import StepRecord
from tidefast.serve.alarm_kinds import KINDS
from tidefast.serve.alarms import Latch, SlowAverage
from tidefast.serve.watch import Alarm, Bounds, ImageStatistics, Watch

NORMAL = ImageStatistics(0.45, 0.22, 0.0, 1.0, count=16)


def recorded(step: int, **values: object) -> StepRecord:
    """A record; what of the values is a measurement goes there, None is left out."""
    measured = {name: values.pop(name) for name in STANDARD if name in values}
    return StepRecord(step, **values, measurements={name: v for name, v in measured.items() if v is not None})


class Simulated:
    """A stream under ASR as our benchmarks know it: a reset every thirty steps or so, noisy images that drift."""

    def __init__(self, watch: Watch, name: str = "camera", seed: int = 0) -> None:
        self.watch, self.name, self.random = watch, name, random.Random(seed)
        self.step, self.threshold = 0, -2.1

    def run(self, steps: int, **changes: object) -> None:
        for _ in range(steps):
            self.one(**changes)

    def one(self, *, images: ImageStatistics | None = None, **changes: object) -> None:
        chance = self.random
        self.step += 1
        over = chance.random() < 1 / 30
        concentration = self.threshold + (abs(chance.gauss(0, 0.05)) if over else -abs(chance.gauss(0.05, 0.05)))
        drift = 0.15 * math.sin(self.step / 200)
        count = chance.choice((1, 4, 16, 16, 16))
        record = {
            "loss": chance.gauss(1, 0.3),
            "selected": count,
            "concentration": concentration,
            "threshold": self.threshold,
            "inconsistency": min(1.0, max(0.0, chance.gauss(0.3 + drift, 0.15))),
            "reset_fraction": chance.uniform(0.5, 1.0) if over else 0.0,
        }
        noise = 1 / math.sqrt(count)
        seen = ImageStatistics(
            0.45 + drift + chance.gauss(0, 0.12 * noise), 0.22 * math.exp(chance.gauss(0, 0.2 * noise)), 0.0, 1.0, count
        )
        self.watch.step(self.name, recorded(self.step, **{**record, **changes}), latency=0.02, images=images or seen)


def kinds(watch: Watch, name: str = "camera") -> set[str]:
    return {alarm.kind for alarm in watch.alarms(name)}


def steps_until(watch: Watch, stream: Simulated, kind: str, raised: bool, limit: int, **changes: object) -> int:
    for taken in range(1, limit + 1):
        stream.one(**changes)
        if (kind in kinds(watch)) == raised:
            return taken
    raise AssertionError(f"{kind} was {'not raised' if raised else 'still there'} after {limit} steps")


# -- alarms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_stream_raises_no_alarm_in_thousands_of_steps(seed):
    raised: list[Alarm] = []
    stream = Simulated(Watch(callbacks=[raised.append]), seed=seed)
    stream.run(4000)
    assert raised == []


COLLAPSED = {"concentration": -0.01, "inconsistency": 0.95, "reset_fraction": 1.0}
BROKEN = {
    "concentration": None,
    "threshold": None,
    "inconsistency": None,
    "nonfinite": 1,
    "skipped": "non-finite images",
}


@pytest.mark.parametrize(
    ("kind", "sick", "raised_within", "cleared_within"),
    [
        ("resets", {"reset_fraction": 0.6}, 21, 130),
        ("concentration", {"concentration": -0.5}, 10, 40),
        ("disagreement", {"inconsistency": 0.95}, 50, 50),
        ("nonfinite", BROKEN, 3, 20),
        ("input", {"images": ImageStatistics(0.02, 0.01, 0.0, 0.05, 16)}, 20, 25),
        ("input", {"images": ImageStatistics(0.0, 0.0, 0.0, 0.0, 16)}, 20, 25),
        ("input", {"images": ImageStatistics(115.0, 56.0, 0.0, 255.0, 16)}, 20, 25),
    ],
)
def test_a_sick_stream_raises_its_alarm_soon_and_clears_it_when_it_is_well(kind, sick, raised_within, cleared_within):
    told: list[tuple[str, bool]] = []
    watch = Watch(callbacks=[lambda alarm: told.append((alarm.kind, alarm.active))])
    stream = Simulated(watch)
    stream.run(300)
    steps_until(watch, stream, kind, True, raised_within, **sick)
    (alarm,) = (alarm for alarm in watch.alarms("camera") if alarm.kind == kind)
    assert alarm.stream == "camera"
    assert len(alarm.message) > 60
    assert steps_until(watch, stream, kind, False, cleared_within) > 1
    assert told == [(kind, True), (kind, False)]  # once each: it did not flap
    stream.run(1000)
    assert len(told) == 2


def test_a_collapse_is_told_by_three_alarms():
    watch = Watch()
    stream = Simulated(watch)
    stream.run(200)
    stream.run(50, **COLLAPSED)
    assert kinds(watch) == {"resets", "concentration", "disagreement"}


def test_one_odd_batch_is_no_alarm():
    watch = Watch()
    stream = Simulated(watch)
    for _ in range(40):
        stream.run(30)
        stream.one(**COLLAPSED)
        stream.one(images=ImageStatistics(0.0, 0.0, 0.0, 0.0, 16))
        stream.one(**BROKEN)
    assert watch.alarms() == []


def test_images_that_stay_different_become_the_new_normal():
    watch = Watch()
    stream = Simulated(watch)
    stream.run(300)
    night = ImageStatistics(0.1, 0.03, 0.0, 0.4, 16)
    steps_until(watch, stream, "input", True, 20, images=night)
    assert steps_until(watch, stream, "input", False, 1500, images=night) > 20


def test_single_images_after_large_batches_are_no_alarm():
    watch, chance = Watch(), random.Random(2)
    for step, count in enumerate([256] * 500 + [1] * 100, start=1):
        noise = 1 / math.sqrt(count)
        images = ImageStatistics(
            chance.gauss(0.45, 0.3 * noise), 0.22 * math.exp(chance.gauss(0, 0.8 * noise)), 0, 1, count
        )
        watch.step("camera", StepRecord(step), latency=0.01, images=images)
        assert watch.alarms() == []


def test_given_normal_values_are_used_from_the_first_batch():
    watch = Watch(Bounds(normal_mean=(0.3, 0.6), normal_deviation=(0.1, 0.4)))
    stream = Simulated(watch)
    steps_until(watch, stream, "input", True, 15, images=ImageStatistics(0.9, 0.2, 0.1, 1.0, 16))
    (alarm,) = watch.alarms()
    assert (alarm.value, alarm.bound) == (0.9, 0.6)
    assert "0.900" in alarm.message
    assert "0.3 to 0.6" in alarm.message


def test_without_a_threshold_the_concentration_is_judged_by_the_number_of_classes():
    narrow = recorded(1, concentration=-0.05)
    for classes, expected in ((10, {"concentration"}), (None, set())):
        watch = Watch(classes=classes)
        for _ in range(10):
            watch.step("camera", narrow, latency=0.01, images=NORMAL)
        assert kinds(watch) == expected


def test_steps_that_only_gather_images_neither_raise_nor_clear():
    watch = Watch()
    stream = Simulated(watch)
    stream.run(50, **COLLAPSED)
    before = kinds(watch)
    assert "resets" in before
    for step in range(51, 500):
        watch.step("camera", StepRecord(step, skipped="window holds 3 of 16 images"), latency=0.01, images=NORMAL)
    assert kinds(watch) == before


def test_resetting_a_stream_clears_what_is_about_its_adaptation_only():
    watch = Watch()
    stream = Simulated(watch)
    stream.run(100)
    stream.run(60, images=ImageStatistics(0.0, 0.0, 0.0, 0.0, 16), **COLLAPSED)
    assert kinds(watch) == {"resets", "concentration", "disagreement", "input"}
    watch.event("camera", "freeze")
    assert len(kinds(watch)) == 4
    watch.event("camera", "rollback")
    assert kinds(watch) == {"input"}


def test_failing_snapshots_raise_an_alarm_of_the_service():
    told: list[Alarm] = []
    watch = Watch(callbacks=[told.append])
    watch.snapshot(0.1, 3, ok=True)
    watch.snapshot(0.1, 3, ok=False)
    assert told == []
    watch.snapshot(0.1, 3, ok=False)
    watch.snapshot(0.1, 3, ok=False)
    assert [(alarm.stream, alarm.kind, alarm.active) for alarm in told] == [(None, "snapshots", True)]
    watch.snapshot(0.1, 3, ok=True)
    assert [alarm.active for alarm in told] == [True, False]
    assert watch.alarms() == []


def test_alarms_are_logged_and_a_failing_callback_harms_nobody(caplog, monkeypatch):
    monkeypatch.setattr(
        logging.getLogger("tidefast.serve"), "filters", []
    )  # a service of another test bounds its lines

    def fails(alarm: Alarm) -> None:
        raise RuntimeError("the pager is broken")

    told: list[Alarm] = []
    watch = Watch(callbacks=[fails, told.append])
    with caplog.at_level(logging.INFO, "tidefast.serve"):
        Simulated(watch, name="back\x7f\ndoor").run(10, concentration=-0.5)
    assert len(told) == 1
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith(r"alarm concentration of stream 'back\x7f\ndoor': ") for line in lines)
    assert any("a callback failed" in line for line in lines)


def test_a_callback_may_use_the_watch():
    watch = Watch(callbacks=[lambda alarm: seen.append(watch.alarms(alarm.stream))])
    seen: list[list[Alarm]] = []
    Simulated(watch).run(10, concentration=-0.5)
    assert [len(alarms) for alarms in seen] == [1]


def test_jumps_of_the_wall_clock_raise_no_alarm_and_leave_intervals_alone():
    now, wall = [100.0], [1.7e9]
    watch = Watch(clock=lambda: now[0], wall=lambda: wall[0])
    stream = Simulated(watch)
    watch.snapshot(0.5, 1, ok=True)
    for jump in (0.0, 1e8, -3e8, 0.0):
        wall[0] += jump
        now[0] += 10.0
        stream.run(200)
    assert watch.alarms() == []
    assert value(watch, "tidefast_snapshot_age_seconds") == 40.0
    assert [record["step"] for record in watch.history("camera")] == list(range(1, 801))
    assert watch.ranked(["a", "camera"]) == ["camera", "a"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"resets": 0}, "resets must be a whole number"),
        ({"resets": 100, "window": 100}, "window must be a whole number of at least 101"),
        ({"disagreement": 1.2}, "disagreement must lie in"),
        ({"pace": 0.0}, "pace must lie in"),
        ({"normal_mean": (0.6, 0.3)}, "normal_mean must be a pair"),
        ({"nonfinite": 30}, "nonfinite_window must be"),
    ],
)
def test_senseless_bounds_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        Bounds(**wrong)


def test_a_latch_needs_as_many_as_it_says():
    latch = Latch(3, 5)
    assert [latch(bad) for bad in (1, 1, 0, 0, 0, 1, 0, 1, 1)] == [False] * 8 + [True]


def test_the_slow_average_is_not_carried_away():
    average = SlowAverage(settle=20, pace=0.01, floor=0.01)
    chance = random.Random(0)
    for _ in range(500):
        average(chance.gauss(0.5, 0.05), 16)
    assert average.centre == pytest.approx(0.5, abs=0.02)
    assert average.scatter == pytest.approx(0.05, rel=0.25)
    assert average(1e9, 16) > 1e9
    assert average.centre == pytest.approx(0.5, abs=0.02)


# -- history --------------------------------------------------------------------------------------------------


def test_history_holds_what_the_record_said():
    watch = Watch(wall=lambda: 1.7e9)
    measured = dict(zip(STANDARD, (-2.25, -2.125, 0.25, 0.9, 0.3), strict=True))
    record = StepRecord(7, 0.5, 12, reset_fraction=0.75, seconds=0.02, measurements=measured)
    watch.step("camera", record, latency=0.03, images=NORMAL)
    (found,) = watch.history("camera")
    assert {**record.as_dict(), "skipped": None}.items() <= found.items()
    assert (found["time"], found["latency"], found["images"], found["mean"]) == (1.7e9, 0.03, 16, 0.45)


def test_history_has_no_number_that_json_lacks():
    watch = Watch()
    odd = recorded(1, loss=math.inf, concentration=math.nan, penalty=1e300, nonfinite=2, skipped="non-finite images")
    watch.step("camera", odd, latency=0.01, images=ImageStatistics(math.nan, math.inf, -math.inf, math.inf))
    (found,) = watch.history("camera")
    assert all(math.isfinite(value) for value in found.values() if isinstance(value, float))
    assert (found["loss"], found["penalty"], found["mean"], found["skipped"]) == (None, None, None, "non-finite images")
    assert b"NaN" in watch.metrics()  # Prometheus knows it


def test_history_is_read_from_a_step_on_and_is_bounded():
    watch = Watch(history=50)
    Simulated(watch).run(120)
    assert [record["step"] for record in watch.history("camera")] == list(range(71, 121))
    assert [record["step"] for record in watch.history("camera", since=117)] == [118, 119, 120]
    assert watch.history("camera", since=120) == []
    assert watch.history("nobody") == []


def test_after_a_rollback_history_tells_the_new_story():
    watch = Watch()
    stream = Simulated(watch)
    stream.run(20)
    stream.step = 10
    stream.run(3)
    found = watch.history("camera")
    assert [record["step"] for record in found] == list(range(1, 14))
    assert [record["run"] for record in found] == [0] * 10 + [1] * 3


def test_streams_idle_longest_lose_their_history_first():
    watch = Watch(history=100, history_total=1000)
    for number in range(50):
        Simulated(watch, name=f"camera-{number:02d}").run(100)
    kept = [len(watch.history(f"camera-{number:02d}")) for number in range(50)]
    assert sum(kept) <= 1000
    assert kept[-1] == 100
    assert kept[0] == 0


def test_a_stream_at_a_glance():
    watch = Watch(wall=lambda: 5.0)
    stream = Simulated(watch)
    stream.run(150, reset_fraction=0.0)
    stream.run(3, reset_fraction=0.5)
    glance = watch.lately("camera")
    assert (glance["resets"], glance["steps"], glance["seen"], len(glance["trend"])) == (3, 100, 5.0, 40)
    assert watch.lately("nobody") == {"resets": 0, "steps": 0, "trend": [], "seen": None, "canaries": None}


def test_streams_are_ranked_by_alarms_then_by_activity_then_by_name():
    now = [0.0]
    watch = Watch(clock=lambda: now[0])
    for name in ("aged", "sick"):
        Simulated(watch, name=name).run(10, **({"concentration": -0.5} if name == "sick" else {}))
    now[0] = 200.0
    for name in ("c", "b"):
        watch.answered(name, latency=0.01, images=1)
    assert watch.ranked(["never", "aged", "b", "sick", "c"]) == ["sick", "b", "c", "aged", "never"]


def test_a_forgotten_stream_leaves_nothing_but_sums():
    told: list[Alarm] = []
    watch = Watch(callbacks=[told.append])
    Simulated(watch).run(20, **COLLAPSED)
    assert kinds(watch)
    watch.forget("camera")
    watch.forget("camera")
    assert watch.alarms() == watch.history("camera") == []
    assert not told[-1].active
    assert "camera" not in watch.metrics().decode()
    assert value(watch, "tidefast_stream_steps_total", stream="other") == 20
    assert all(value(watch, "tidefast_alarms", kind=kind) == 0 for kind in KINDS)


# -- metrics --------------------------------------------------------------------------------------------------


def samples(watch: Watch) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every number, after a reading by Prometheus' own parser; two of the same name and labels fail."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(watch.metrics().decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


def value(watch: Watch, metric: str, **labels: str) -> float:
    return samples(watch)[metric, tuple(sorted(labels.items()))]


def streams_in(watch: Watch) -> set[str]:
    return {dict(labels)["stream"] for _, labels in samples(watch) if "stream" in dict(labels)}


def test_metrics_say_what_happened():
    now = [0.0]
    watch = Watch(clock=lambda: now[0])
    record = recorded(1, concentration=-2.0, threshold=-1.5, inconsistency=0.25, reset_fraction=0.6)
    watch.step("camera", record, latency=0.03, images=NORMAL)
    watch.step("camera", StepRecord(2, nonfinite=1, skipped="non-finite images"), latency=0.2, images=NORMAL)
    watch.answered("camera", latency=0.004, images=3)
    watch.rejected("camera", "busy")
    watch.rejected(None, "unauthorized")
    watch.event("camera", "freeze")
    watch.queue(12)
    watch.snapshot(0.5, 7, ok=True)
    watch.snapshot(0.1, 7, ok=False)
    now[0] = 30.0
    expected = {
        ("tidefast_steps_total",): 2,
        ("tidefast_images_total",): 35,
        ("tidefast_answers_total",): 1,
        ("tidefast_resets_total",): 1,
        ("tidefast_nonfinite_total",): 1,
        ("tidefast_reset_depth_bucket", ("le", "0.5")): 0,
        ("tidefast_reset_depth_bucket", ("le", "0.75")): 1,
        ("tidefast_reset_depth_sum",): 0.6,
        ("tidefast_latency_seconds_count", ("call", "adapt")): 2,
        ("tidefast_latency_seconds_count", ("call", "predict")): 1,
        ("tidefast_rejected_total", ("reason", "busy")): 1,
        ("tidefast_rejected_total", ("reason", "unauthorized")): 1,
        ("tidefast_events_total", ("what", "freeze")): 1,
        ("tidefast_queue_images",): 12,
        ("tidefast_streams",): 1,
        ("tidefast_snapshots_total",): 1,
        ("tidefast_snapshot_failures_total",): 1,
        ("tidefast_snapshot_age_seconds",): 30.0,
        ("tidefast_snapshot_seconds",): 0.5,
        ("tidefast_snapshot_streams",): 7,
        ("tidefast_stream_steps_total", ("stream", "camera")): 2,
        ("tidefast_stream_images_total", ("stream", "camera")): 35,
        ("tidefast_stream_depth_total", ("stream", "camera")): 0.6,
        ("tidefast_stream_latency_seconds_count", ("stream", "camera")): 3,
    }
    found = samples(watch)
    for (name, *labels), number in expected.items():
        assert found[name, tuple(labels)] == pytest.approx(number), name
    watch.step("camera", record, latency=0.03, images=NORMAL)
    assert value(watch, "tidefast_stream_concentration", stream="camera") == -2.0
    assert value(watch, "tidefast_stream_threshold", stream="camera") == -1.5
    assert value(watch, "tidefast_stream_inconsistency", stream="camera") == 0.25


def test_labels_are_bounded_over_thousands_of_streams():
    watch = Watch(metric_streams=20)
    sizes = []
    for start in range(0, 5000, 500):
        for number in range(start, start + 500):
            watch.step(f"camera-{number}", recorded(1, concentration=-2.0), latency=0.01, images=NORMAL)
        assert streams_in(watch) == {f"camera-{n}" for n in range(start + 480, start + 500)} | {"other"}
        sizes.append(len(samples(watch)))
    assert len(set(sizes[1:])) == 1
    total = sum(number for (name, _), number in samples(watch).items() if name == "tidefast_stream_steps_total")
    assert total == value(watch, "tidefast_steps_total") == 5000


def test_an_active_stream_keeps_its_label():
    watch = Watch(metric_streams=2)
    for name in ("a", "b"):
        watch.answered(name, latency=0.01, images=1)
    assert streams_in(watch) == {"a", "b", "other"}
    for name in ("a", "c", "d", "e"):
        watch.answered(name, latency=0.01, images=1)
    assert streams_in(watch) == {"a", "e", "other"}


def test_no_counter_ever_falls_while_its_label_lasts():
    watch, chance = Watch(metric_streams=3), random.Random(1)
    before: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for _ in range(200):
        for _ in range(chance.randrange(8)):
            watch.answered(f"camera-{chance.randrange(9)}", latency=0.01, images=chance.randrange(1, 5))
        if chance.random() < 0.1:
            watch.forget(f"camera-{chance.randrange(9)}")
        now = samples(watch)
        grown = {key: number for key, number in now.items() if key[0].endswith("_total")}
        assert all(number >= before.get(key, 0.0) for key, number in grown.items())
        whole = sum(number for (name, _), number in now.items() if name == "tidefast_stream_images_total")
        assert whole == now["tidefast_images_total", ()]
        before = grown


@pytest.mark.parametrize("name", ["other", 'a"b\\c', "<img src=x onerror=alert(1)>", "köln/straße 7", "{}=,"])
def test_any_name_makes_a_readable_label(name):
    watch = Watch()
    watch.answered(name, latency=0.01, images=2)
    assert value(watch, "tidefast_stream_images_total", stream=name) == 2


def test_threads_lose_nothing_and_the_watch_is_quick():
    watch = Watch()

    def work(number: int) -> None:
        stream = Simulated(watch, name=f"camera-{number}", seed=number)
        for _ in range(10):
            stream.run(50)
            watch.metrics()
            watch.history(stream.name)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert value(watch, "tidefast_steps_total") == 4000
    assert all(len(watch.history(f"camera-{number}")) == 500 for number in range(8))
    assert time.perf_counter() - started < 30
