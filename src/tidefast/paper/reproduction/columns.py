"""From a column of a published table to what is measured for it, at each scale."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

from tidefast.bench.experiment import Experiment
from tidefast.paper.published import PaperTable
from tidefast.paper.reproduction import quantity
from tidefast.paper.reproduction.quantity import Metric, Quantity
from tidefast.paper.reproduction.rows import Line
from tidefast.paper.scale import LEVELS, Place, Setting
from tidefast.paper.study import accuracy

NINE = {28: "easy", 29: "medium", 30: "hard", 35: "easy", 36: "medium", 37: "hard", 13: "hard"}
"""Tables of nine streams, and their level."""
VISITS = 20
"""Of the published recurring streams."""
Make = Callable[[Place, str, str], Experiment]
"""An experiment from a place, a method and a reset policy."""


@dataclass(frozen=True)
class Column:
    """A column: the paper's key for it, and what is measured for a contestant (None: nothing)."""

    key: str
    places: tuple[Place, ...]
    measure: Callable[[Line, tuple[Place, ...], Make], Quantity | None]
    ordered: bool = True
    """Whether more is better."""
    decimals: int = 2
    ours: str = ""
    """What ours is, where it is not what the heading says."""
    heading: str = ""
    """Instead of the paper's."""
    heavy: bool = False
    """Whether only a few contestants are run by default at the small scale."""

    def quantity(self, line: Line, make: Make) -> Quantity | None:
        """What is measured for a row."""
        return self.measure(line, self.places, make)


def columns(table: PaperTable, setting: Setting) -> list[Column]:
    """What is measured for a table, in the order of its columns."""
    number = table.number
    single = {
        6: lambda: _durations("easy", setting),
        7: lambda: _durations("hard", setting),
        8: lambda: [Column("pearson", (setting.ccc("hard"),), _mean())],
        10: lambda: _efficiency(setting),
        13: lambda: _nine(13, setting),
        24: lambda: [Column(f"batch{size}", (_small(setting, size),), _mean()) for size in (2, 4)],
        31: lambda: _orders(setting, None),
        32: lambda: _orders(setting, 0.1),
    }
    recurring = {9: setting.in_c, 11: setting.in_c, 12: setting.in_c, 33: setting.in_c, 34: setting.d109}
    changing = {22: 1.0, 23: 10.0}
    if number in single:
        chosen = single[number]()
    elif number in NINE:
        chosen = _nine(number, setting)
    elif number in recurring:
        chosen = _visits(table, recurring[number](), heavy=number in (33, 34))
    elif number in changing:
        chosen = _visits(table, setting.cdc(changing[number]))
    elif number == 4:
        chosen = _main(setting)
    else:
        chosen = _levels(setting, averaged=number in (1, 2, 3, 27))
    by_key = {column.key: column for column in chosen}
    return [by_key[column.key] for column in table.columns if column.key in by_key]


def _mean(metric: Metric = accuracy, *, spread: bool = False) -> Callable[..., Quantity]:
    """The mean of a metric over the places."""

    def measure(line: Line, places: tuple[Place, ...], make: Make) -> Quantity:
        runs = tuple(make(place, line.method, line.reset) for place in places)
        return Quantity(runs, line.metric or metric, statistics.fmean, spread)

    return measure


def _against_base(line: Line, places: tuple[Place, ...], make: Make) -> Quantity | None:
    """The gain over the same method without resets."""
    if line.reset == "never":
        return None
    runs = tuple(make(places[0], line.method, reset) for reset in (line.reset, "never"))
    return Quantity(runs, accuracy, quantity.gain)


def _against_eta(line: Line, places: tuple[Place, ...], make: Make) -> Quantity:
    """Seconds in units of ETA's."""
    runs = (make(places[0], line.method, line.reset), make(places[0], "ETA", "never"))
    return Quantity(runs, quantity.seconds, quantity.ratio)


def _averaged(setting: Setting, level: str) -> tuple[Place, ...]:
    """The streams that a published level averages: one at the small scale."""
    if setting.name == "mini":
        return (setting.ccc(level),)
    pairs = itertools.product(setting.speeds, sorted(setting.seeds))
    return tuple(setting.ccc(level, speed=speed, seed=seed) for speed, seed in pairs)


def _levels(setting: Setting, *, averaged: bool, prefix: str = "") -> list[Column]:
    streams = {level: _averaged(setting, level) if averaged else (setting.ccc(level),) for level in LEVELS}
    every = tuple(place for places in streams.values() for place in places)
    chosen = [Column(prefix + level, places, _mean(spread=True)) for level, places in streams.items()]
    return [*chosen, Column(f"{prefix}mean", every, _mean())]


def _nine(number: int, setting: Setting) -> list[Column]:
    level, seeds = NINE[number], sorted(setting.seeds)
    if setting.name == "mini":
        seeds = seeds if number == 13 else seeds[:1]
        streams = {f"speed1000_seed{seed}": setting.ccc(level, seed=seed) for seed in seeds}
        return [Column(key, (place,), _mean()) for key, place in streams.items()]
    pairs = itertools.product(setting.speeds, seeds)
    streams = {f"speed{v}_seed{s}": setting.ccc(level, speed=v, seed=s) for v, s in pairs}
    chosen = [Column(key, (place,), _mean()) for key, place in streams.items()]
    return [*chosen, Column("mean", tuple(streams.values()), _mean(spread=True))]


def _durations(level: str, setting: Setting) -> list[Column]:
    seed = min(setting.seeds)
    places = {
        "original": (setting.ccc(level, seed=seed),),
        "modified": (setting.ccc(level, seed=seed, speed="random"),),
    }
    chosen = [Column(key, place, _mean()) for key, place in places.items()]
    return chosen + [Column(f"{key}_gain", place, _against_base, decimals=1) for key, place in places.items()]


def _small(setting: Setting, size: int) -> Place:
    return setting.ccc("easy", speed=setting.speeds[0], seed=min(setting.seeds), batch=size)


def _orders(setting: Setting, delta: float | None, prefix: str = "order") -> list[Column]:
    places = {f"{prefix}{order + 1}": setting.cin_c(order, delta) for order in setting.orders}
    chosen = [Column(key, (place,), _mean(), heavy=True) for key, place in places.items()]
    short = f"the mean of {len(places)} orders" if len(places) < 10 else ""
    return [*chosen, Column("mean", tuple(places.values()), _mean(spread=True), ours=short, heavy=True)]


def _visits(table: PaperTable, place: Place, *, heavy: bool = False) -> list[Column]:
    """The visits of a recurring stream; where ours are fewer, the last stands for the last."""
    ours = int(place.stream.options.get("visits", VISITS))
    metric = quantity.recovery if table.number == 11 else quantity.Visit
    chosen = []
    for at in range(1, VISITS + 1):
        if at < ours or at == VISITS:
            instead = f"visit {ours}" if at == VISITS != ours else ""
            chosen.append(
                Column(f"visit{at}", (place,), _mean(metric(0 if at == VISITS else at)), ours=instead, heavy=heavy)
            )
    overall = quantity.recovery(None) if table.number == 11 else accuracy
    instead = f"the mean of {ours} visits" if ours != VISITS else ""
    return [*chosen, Column("mean", (place,), _mean(overall), ours=instead, heavy=heavy)]


def _main(setting: Setting) -> list[Column]:
    chosen = _levels(setting, averaged=True, prefix="ccc_")
    for key, delta in (("cin_c_iid", None), ("cin_c_noniid", 0.1)):
        chosen.append(replace(_orders(setting, delta)[-1], key=key))
    for key, place in (("in_c", setting.in_c()), ("in_d109", setting.d109())):
        ours = int(place.stream.options.get("visits", VISITS))
        instead = {"visit20": f"visit {ours}", "mean": f"the mean of {ours} visits"} if ours != VISITS else {}
        for name, metric in (("visit1", quantity.Visit(1)), ("visit20", quantity.Visit(0)), ("mean", accuracy)):
            chosen.append(Column(f"{key}_{name}", (place,), _mean(metric), ours=instead.get(name, ""), heavy=True))
    return chosen


def _efficiency(setting: Setting) -> list[Column]:
    """Parameters and time on one level, accuracy over all."""
    levels = tuple(setting.ccc(level) for level in LEVELS)
    counted = {"trainable": quantity.trainable, "params": quantity.held}
    return [
        *(Column(key, levels[-1:], _mean(metric), ordered=False) for key, metric in counted.items()),
        Column("seconds_per_batch", levels[-1:], _against_eta, heading="seconds per batch over ETA's"),
        Column("accuracy", levels, _mean()),
    ]
