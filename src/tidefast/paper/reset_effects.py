"""Accuracy around resets, of all seeds of a contestant together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tidefast.bench import metrics
from tidefast.bench.results import Run

BEFORE, AFTER = 10, 40
"""Batches around a reset that are looked at."""
BIN = 5
"""Batches that are averaged there: a single one is noise."""
MIDDLES = np.arange(1 - BEFORE, AFTER + 1).reshape(-1, BIN).mean(axis=1)
"""The batches in the middle of the bins; the first one after a reset is 1."""


@dataclass(frozen=True, eq=False)
class Effects:
    """The resets of one contestant, of all its seeds together."""

    runs: list[Run]
    count: int
    depth: float
    measured: metrics.ResetEffects
    of: metrics.Counts
    """For each entry of `found` its run and its batch, [resets, 2]."""
    around: metrics.Floats
    """Accuracy [resets, BEFORE + AFTER], nan beyond the neighbouring resets and the ends of the stream."""
    pseudo: metrics.ResetEffects
    """The same around pseudo-resets, a few batches after each."""
    chance: float
    """How far the ten batches after would lie from the ten before, on average, had the resets no effect at all."""


def effects_of(runs: list[Run]) -> Effects:
    """The resets of runs that differ in the seed only."""
    each, pseudo, of, around, noise = [], [], [], [], []
    for at, run in enumerate(runs):
        shares, resets = run.batch_accuracy, run.resets
        each.append(metrics.reset_effects(shares, resets))
        pseudo.append(metrics.reset_effects(shares, metrics.pseudo_resets(resets, len(shares))))
        with_effect = resets[resets < len(shares) - 1]
        of += [(at, int(t)) for t in with_effect]
        around.append(aligned(shares, resets)[: len(with_effect)])
        images = aligned(run.steps["images"].astype(float), resets)[: len(with_effect)]
        noise.append(by_chance(around[-1], images))
    depths = np.concatenate([run.reset_fraction for run in runs])
    count = int((depths > 0).sum())
    depth = float(depths[depths > 0].mean()) if count else math.nan
    chance = np.concatenate(noise)
    return Effects(
        runs,
        count,
        depth,
        _together(each),
        np.array(of, np.int64).reshape(-1, 2),
        np.concatenate(around),
        _together(pseudo),
        float(chance.mean()) if len(chance) else math.nan,
    )


def _together(each: list[metrics.ResetEffects]) -> metrics.ResetEffects:
    change, delay = (np.concatenate([getattr(effects, name) for effects in each]) for name in ("change", "delay"))
    return metrics.ResetEffects(change, delay)


def aligned(accuracy: metrics.Floats, resets: metrics.Counts) -> metrics.Floats:
    """Accuracy [resets, BEFORE + AFTER] of the batches around each; the reset comes after column BEFORE - 1.

    Batches beyond the neighbouring resets belong to those: nan.

    >>> aligned(np.array([0.25, 0.5, 0.75]), np.array([1]))[0, BEFORE - 3 : BEFORE + 2].tolist()
    [nan, 0.25, 0.5, 0.75, nan]
    """
    rows = np.full((len(resets), BEFORE + AFTER), np.nan)
    edges = [-1, *resets.tolist(), len(accuracy) - 1]
    for row, before, t, after in zip(rows, edges, edges[1:], edges[2:], strict=False):
        low, high = max(before + 1, t + 1 - BEFORE), min(after, t + AFTER) + 1
        row[low - (t + 1 - BEFORE) : high - (t + 1 - BEFORE)] = accuracy[low:high]
    return rows


def by_chance(around: metrics.Floats, images: metrics.Floats) -> metrics.Floats:
    """For each reset the mean distance of two accuracies that are the same but for the draw of the images.

    Those of the ten batches before and after, from `aligned` accuracies and numbers of images. Of two shares p of n
    and m images the difference has the variance p (1 - p) (1 / n + 1 / m), and so lies sqrt(2 / pi) deviations from 0.

    >>> half = aligned(np.full(20, 0.5), np.array([9])), aligned(np.full(20, 16.0), np.array([9]))
    >>> by_chance(*half).round(4).tolist()
    [0.0446]
    """
    around, images = (np.nan_to_num(values[:, : BEFORE + metrics.AROUND]) for values in (around, images))
    before, after = images[:, :BEFORE].sum(axis=1), images[:, BEFORE:].sum(axis=1)
    p = (around * images).sum(axis=1) / (before + after)
    distance: metrics.Floats = np.sqrt(2 / math.pi * p * (1 - p) * (1 / before + 1 / after))
    return distance


def mean_around(around: metrics.Floats) -> tuple[metrics.Floats, metrics.Floats, metrics.Counts]:
    """Mean, standard error and number of resets for each BIN batches, from `aligned` rows.

    A reset counts where it has at least one of those batches; nan where fewer than half of the resets, or two, count.
    """
    binned = around.reshape(len(around), (BEFORE + AFTER) // BIN, BIN)
    known = np.isfinite(binned)
    seen = known.sum(axis=2)
    shares = np.divide(np.where(known, binned, 0.0).sum(axis=2), seen, out=np.zeros(seen.shape), where=seen > 0)
    count = (seen > 0).sum(axis=0)
    enough = count >= max(2.0, len(around) / 2)
    mean = np.where(enough, shares.sum(axis=0) / np.maximum(count, 1), np.nan)
    squares = (np.where(seen > 0, shares - mean, 0.0) ** 2).sum(axis=0)
    return mean, np.sqrt(squares / np.maximum(count - 1, 1) / np.maximum(count, 1)), count
