"""Streams: any step at any time with the same bits, schedules, orders, CCC's building blocks, and worker processes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from processes import hear_ctrl_c
from tidefast import streams
from tidefast.corruptions import corrupt
from tidefast.datasets import DatasetError, ImageSet, bundled, folder
from tidefast.errors import UnknownNameError
from tidefast.streams import (
    AsGiven,
    Batch,
    ByLabel,
    Dirichlet,
    Domain,
    Order,
    Shuffled,
    SlotDirichlet,
    Stream,
    StreamError,
    find_path,
    hold,
    join,
    make,
    noise_chain,
    synthetic_matrix,
    walk,
)

FOG, SNOW, CLEAN = Domain(("fog", 3)), Domain(("snow", 5)), Domain()
PATIENCE = 60
BUNDLED = bundled()


def image_set(count: int = 50, classes: int = 5, side: int = 8) -> ImageSet:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (count, side, side, 3), np.uint8)
    # The label can be read off the image, so that a mix-up of labels and images shows.
    labels = np.arange(count, dtype=np.int64) % classes
    images[:, 0, 0, 0] = labels
    return ImageSet(images, labels, tuple("abcdefghij"[:classes]))


def equal(first: Batch, second: Batch) -> bool:
    return (
        torch.equal(first.images, second.images)
        and torch.equal(first.labels, second.labels)
        and (first.domain, first.index, first.spans) == (second.domain, second.index, second.spans)
    )


def members(stream: Stream) -> list[list[int]]:
    """The places in the image set of each clean batch, found by their bytes."""
    place = {image.tobytes(): i for i, image in enumerate(stream.data[np.arange(len(stream.data))].images)}
    return [[place[image.tobytes()] for image in stream.pixels(k).images] for k in range(len(stream))]


# --- The stream as a function of (stream, seed, k)


def mixed_stream(seed: int = 7) -> Stream:
    schedule = (hold(FOG, 30) + hold(Domain(("gaussian_noise", 2.5), ("contrast", 1)), 45) + hold(CLEAN, 5)) * 2
    return Stream(image_set(), schedule, batch=16, seed=seed)


def test_any_step_equals_iteration_in_any_order_and_from_any_start():
    stream, again = mixed_stream(), mixed_stream()
    whole = list(stream)
    assert [batch.index for batch in whole] == list(range(len(stream))) == list(range(10))
    for k in (9, 0, 5, 3, 5):
        assert equal(again[k], whole[k])
    for start in (0, 4, 9, 10):
        rest = list(mixed_stream().batches(start))
        assert len(rest) == len(whole) - start
        assert all(map(equal, rest, whole[start:]))
    assert equal(stream[-1], whole[9])
    assert [batch.index for batch in stream.batches(2, 4)] == [2, 3]


def test_a_batch_does_not_share_memory_with_the_image_set():
    data = image_set()
    before = data.images.copy(), data.labels.copy()
    stream = Stream(data, hold(CLEAN, 50), batch=50, order=AsGiven())
    batch = stream[0]
    batch.images.zero_()
    batch.labels.zero_()
    assert (data.images == before[0]).all()
    assert (data.labels == before[1]).all()
    assert stream[0].images.any()


def test_a_pickled_stream_is_the_same_stream():
    stream = mixed_stream()
    copy = pickle.loads(pickle.dumps(stream))
    assert all(map(equal, copy, stream))


def test_the_seed_changes_images_and_noise():
    one, other = mixed_stream(1), mixed_stream(2)
    assert not torch.equal(one[0].images, other[0].images)
    same_images = [
        Stream(image_set(), hold(Domain(("gaussian_noise", 5)), 50), order=AsGiven(), seed=seed)[0] for seed in (1, 2)
    ]
    assert not torch.equal(same_images[0].images, same_images[1].images)


def test_global_generators_are_neither_read_nor_moved():
    np.random.seed(1)  # the very state that must not matter
    torch.manual_seed(1)
    first = mixed_stream()[3]
    state = np.random.get_state()[1].copy(), torch.get_rng_state()
    assert equal(mixed_stream()[3], first)
    assert (np.random.get_state()[1] == state[0]).all()
    assert torch.equal(torch.get_rng_state(), state[1])


def test_images_are_floats_in_the_unit_interval_channels_first_and_keep_their_labels():
    data = image_set()
    stream = Stream(data, hold(CLEAN, 50), batch=50)
    batch = stream[0]
    assert batch.images.shape == (50, 3, 8, 8)
    assert batch.images.dtype == torch.float32
    assert batch.images.is_contiguous()
    assert batch.labels.dtype == torch.int64
    assert torch.equal((batch.images[:, 0, 0, 0] * 255).round().long(), batch.labels)
    exact = stream.pixels(0).images.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
    assert (batch.images.numpy() == exact).all()
    assert 0 <= batch.images.min() < 0.01 < 0.99 < batch.images.max() <= 1


def test_corruptions_are_applied_in_order_with_the_position_as_index():
    data = image_set()
    pair = (("gaussian_noise", 2.5), ("contrast", 4.0))
    stream = Stream(data, hold(CLEAN, 20) + hold(Domain(*pair), 30), batch=10, order=AsGiven(), seed=3)
    expected = data.images[10:20]
    for name, severity in pair:
        expected = corrupt(expected, name, severity, seed=3, scale="cifar", indices=range(30, 40))
    assert (stream.pixels(3).images == expected).all()
    reverse = Stream(data, hold(CLEAN, 20) + hold(Domain(*pair[::-1]), 30), batch=10, order=AsGiven(), seed=3)
    assert not (reverse.pixels(3).images == expected).all()


def test_noise_is_fresh_at_every_position_or_fixed_to_the_image():
    schedule = hold(Domain(("gaussian_noise", 5)), 50) * 2
    fresh, fixed = (
        Stream(image_set(), schedule, batch=50, renewal="same", noise=noise) for noise in ("fresh", "fixed")
    )
    assert torch.equal(fresh[0].labels, fresh[1].labels)
    assert not torch.equal(fresh[0].images, fresh[1].images)
    assert torch.equal(fixed[0].images, fixed[1].images)


def test_the_scale_follows_the_size_of_the_images_unless_given():
    large = np.zeros((2, 120, 120, 3), np.uint8), [0, 1]
    assert Stream(large, hold(CLEAN, 2)).scale == "imagenet"
    assert Stream(large, hold(CLEAN, 2), scale="cifar").scale == "cifar"
    assert Stream(image_set(), hold(CLEAN, 2)).scale == "cifar"


# --- Schedules and batches


def test_a_batch_that_crosses_domains_says_which_image_is_of_which():
    stream = Stream(image_set(), hold(FOG, 20) + hold(SNOW, 40), batch=16, order=AsGiven())
    batch = stream[1]
    assert [(span.domain, span.images) for span in batch.spans] == [(FOG, 4), (SNOW, 12)]
    assert batch.domain == SNOW
    assert stream.spans(1) == batch.spans
    images = stream.pixels(1).images
    foggy = corrupt(stream.data.images[16:20], "fog", 3, seed=0, scale="cifar", indices=range(16, 20))
    snowy = corrupt(stream.data.images[0:12], "snow", 5, seed=0, scale="cifar", indices=range(20, 32))
    assert (images == np.concatenate([foggy, snowy])).all()


def test_batches_that_do_not_cross_end_with_each_stretch():
    stream = Stream(image_set(), (hold(FOG, 20) + hold(SNOW, 32)) * 2, batch=16, cross=False)
    assert [len(batch) for batch in stream] == [16, 4, 16, 16, 16, 4, 16, 16]
    assert all(len(batch.spans) == 1 for batch in stream)
    dropped = Stream(image_set(), (hold(FOG, 20) + hold(SNOW, 32)) * 2, batch=16, cross=False, ragged="drop")
    assert [str(batch.domain) for batch in dropped] == ["fog 3", "snow 5", "snow 5"] * 2


@given(
    images=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    batch=st.integers(1, 25),
    cross=st.booleans(),
    drop=st.booleans(),
)
def test_batches_cover_the_schedule_once_and_in_order(images: list[int], batch: int, cross: bool, drop: bool):
    schedule = join(hold(Domain(("fog", i / 2)), n) for i, n in enumerate(images))
    whole = [sum(images) // batch] if cross else [n // batch for n in images]
    if drop and not sum(whole):
        with pytest.raises(ValueError, match="no batch of"):
            Stream(image_set(), schedule, batch=batch, cross=cross, ragged="drop")
        return
    stream = Stream(image_set(), schedule, batch=batch, cross=cross, ragged="drop" if drop else "keep")
    spans = [stream.spans(k) for k in range(len(stream))]
    seen = Counter(span.domain for each in spans for span in each for _ in range(span.images))
    if not drop:
        assert [seen[stretch.domain] for stretch in schedule.stretches] == images
    elif cross:
        assert len(spans) == whole[0]
        assert seen.total() == whole[0] * batch
    else:
        assert [seen[stretch.domain] for stretch in schedule.stretches] == [n * batch for n in whole]
    sizes = [sum(span.images for span in each) for each in spans]
    assert max(sizes) <= batch
    if cross or drop:
        assert all(size == batch for size in sizes[:-1])
    order = [span.domain.corruptions for each in spans for span in each]
    assert order == sorted(order)


@given(images=st.lists(st.integers(1, 9), min_size=1, max_size=4), visits=st.integers(1, 4), more=st.integers(1, 60))
def test_schedules_join_repeat_and_are_cut(images: list[int], visits: int, more: int):
    one = join(hold(Domain(("fog", 1 + i)), n) for i, n in enumerate(images))
    again = one * visits
    assert again.images == visits * sum(images)
    assert [again.at(p) for p in range(again.images)] == [one.at(p % one.images) for p in range(again.images)]
    assert [stretch.visit for stretch in again.stretches] == [v for v in range(visits) for _ in images]
    assert 2 * one == one * 2 == one.fill(2 * one.images)
    filled = one.fill(more)
    assert filled.images == more
    assert all(filled.at(p) == one.at(p % one.images) for p in range(more))
    assert [s.visit for s in ((one * 2) * 2).stretches] == [v for v in range(4) for _ in images]


def test_steps_end_a_stream_early_and_never_late():
    assert len(Stream(image_set(), hold(CLEAN, 100), batch=16, steps=3)) == 3
    with pytest.raises(ValueError, match=r"steps=8 is more than the 7 batches of 16"):
        Stream(image_set(), hold(CLEAN, 100), batch=16, steps=8)


# --- Orders


def test_each_stretch_is_a_permutation_and_stretches_differ():
    drawn = members(Stream(image_set(), hold(CLEAN, 50) * 3, batch=50))
    assert all(sorted(each) == list(range(50)) for each in drawn)
    assert len({tuple(each) for each in drawn}) == 3


def test_a_stretch_longer_than_the_set_goes_on_with_another_pass():
    drawn = list(itertools.chain(*members(Stream(image_set(), hold(CLEAN, 125), batch=7))))
    passes = drawn[:50], drawn[50:100], drawn[100:]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(50))
    assert passes[0] != passes[1]
    assert len(set(passes[2])) == 25


def test_renewal_says_when_a_pass_begins():
    schedule = hold(CLEAN, 30) * 4
    stretch, same, stream = (
        members(Stream(image_set(), schedule, batch=30, renewal=renewal)) for renewal in ("stretch", "same", "stream")
    )
    assert len({tuple(each) for each in stretch}) == 4
    assert len({tuple(each) for each in same}) == 1
    running = list(itertools.chain(*stream))
    assert sorted(running[:50]) == sorted(running[50:100]) == list(range(50))
    assert running[:50] != running[50:100]


@pytest.mark.parametrize("order", [AsGiven(), Shuffled(), ByLabel(), Dirichlet(0.5), SlotDirichlet(0.1)])
@settings(max_examples=20, deadline=None)
@given(extra=st.lists(st.integers(0, 3), max_size=60), seed=st.integers(0, 1000))
def test_every_order_shows_each_image_once(order: Order, extra: list[int], seed: int):
    labels = np.array([0, 1, 2, 3] * 20 + extra, dtype=np.int64)
    drawn = order.draw(labels, np.random.default_rng(seed))
    assert sorted(drawn.tolist()) == list(range(len(labels)))


def same_label_share(order: Order, labels: np.ndarray, draws: int = 20) -> float:
    shares = []
    for seed in range(draws):
        sequence = labels[order.draw(labels, np.random.default_rng(seed))]
        shares.append((np.diff(sequence) == 0).mean())
    return float(np.mean(shares))


def test_a_smaller_delta_sorts_more_and_a_large_one_only_within_chunks():
    labels = np.repeat(np.arange(10), 100)
    assert same_label_share(Shuffled(), labels) == pytest.approx(0.1, abs=0.02)
    # Even shares: ten chunks of ten pieces of ten images; 90 of 100 neighbours share a label.
    assert same_label_share(Dirichlet(1000.0), labels) == pytest.approx(0.9, abs=0.02)
    assert 0.9 < same_label_share(Dirichlet(1.0), labels) < same_label_share(Dirichlet(0.1), labels)


@pytest.mark.parametrize("seed", range(10))
def test_dirichlet_leaves_no_chunk_below_ten_and_fills_none_far_beyond_its_share(seed: int):
    random = np.random.default_rng(seed)
    while (cuts := Dirichlet(0.1)._cuts([100] * 10, random)) is None:
        pass
    sizes = np.diff(cuts, axis=1).sum(axis=0)
    assert sizes.sum() == 1000
    assert sizes.min() >= 10
    assert sizes.max() < 100 + 100  # it was below its share when its last class came


@pytest.mark.parametrize("order", [Dirichlet(1000.0), SlotDirichlet(1000.0)])
def test_each_chunk_shows_its_classes_in_an_order_of_its_own(order: Order):
    labels = np.repeat(np.arange(10), 100)
    sequence = labels[order.draw(labels, np.random.default_rng(0))]
    runs = [label for label, _ in itertools.groupby(sequence.tolist())]
    assert len(runs) > 90  # ten chunks of ten classes; a run may reach into the next chunk
    first_half, second_half = sequence[:40].tolist(), sequence[-40:].tolist()
    assert len({tuple(dict.fromkeys(half)) for half in (sorted(first_half), first_half, second_half)}) == 3


# Classes, images of each, delta; then the sheet's share of equal neighbours and distinct labels in a batch.
RECORDED = [
    (1000, 50, 1.0, 64, 0.005, 63.6),
    (1000, 50, 0.1, 64, 0.064, 59.7),
    (1000, 50, 0.05, 64, 0.186, 51.9),
    (10, 1000, 0.1, 200, 0.995, 1.9),
]


def statistics(sequence: np.ndarray, batch: int) -> tuple[float, float]:
    whole = len(sequence) // batch
    batches = sequence[: batch * whole].reshape(whole, batch)
    return float((np.diff(sequence) == 0).mean()), float(np.mean([len(set(each)) for each in batches.tolist()]))


@pytest.mark.parametrize(("classes", "each", "delta", "batch", "same", "distinct"), RECORDED)
def test_dirichlet_has_the_recorded_statistics(
    classes: int, each: int, delta: float, batch: int, same: float, distinct: float
):
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(classes), each))
    draws = [
        statistics(labels[Dirichlet(delta).draw(labels, np.random.default_rng(seed))], batch)
        for seed in range(1 if classes > 10 else 10)
    ]
    found = np.mean(draws, axis=0)
    assert found[0] == pytest.approx(same, abs=0.002, rel=0.04 if classes > 10 else 0)
    assert found[1] == pytest.approx(distinct, rel=0.01 if classes > 10 else 0.1)


@pytest.mark.parametrize(("count", "same", "distinct"), [(50, 0.600, 26.2), (5, 0.024, 62.3)])
def test_slot_dirichlet_has_the_recorded_statistics(count: int, same: float, distinct: float):
    labels = np.repeat(np.arange(1000), count)
    found = statistics(labels[SlotDirichlet(0.1).draw(labels, np.random.default_rng(0))], 64)
    assert found[0] == pytest.approx(same, abs=0.01)
    assert found[1] == pytest.approx(distinct, rel=0.02)


def test_dirichlet_that_cannot_succeed_says_so_at_once():
    with pytest.raises(StreamError, match="10 images for each of its 5 chunks"):
        Stream(image_set(count=49), hold(CLEAN, 49), order=Dirichlet(0.1))[0]
    with pytest.raises(StreamError, match="larger delta"):
        Dirichlet(1e-4).draw(np.repeat(np.arange(50), 10), np.random.default_rng(0))


# --- CCC


def moves(path: list[tuple[int, int]]) -> str:
    names = {(-1, 0): "U", (0, 1): "R"}
    return "".join(names[b[0] - a[0], b[1] - a[1]] for a, b in itertools.pairwise(path))


@pytest.mark.parametrize(
    ("target", "start", "end", "expected", "mean"),
    [
        (0, (20, 0), (0, 20), "R" * 20 + "U" * 20, 5.3683),
        (20, (12, 0), (0, 16), "RURRUURRURRURURURURRURURRURU", 19.9481),
        (40, (7, 0), (0, 7), "UURRURURRURURU", 39.9139),
    ],
)
def test_paths_of_the_reference(target: float, start: tuple, end: tuple, expected: str, mean: float):
    matrix = 76 * np.exp(-2.2 * np.arange(21)[:, None] / 20 - 1.6 * np.arange(21) / 20)
    path = find_path(matrix, target)
    assert (path[0], path[-1]) == (start, end)
    assert moves(path) == expected
    assert np.mean([matrix[cell] for cell in path]) == pytest.approx(mean, abs=5e-5)
    assert np.allclose(synthetic_matrix(), matrix, rtol=1e-15)
    assert all(type(i) is int for cell in path for i in cell)


def plain_path(matrix: np.ndarray, target: float) -> list[tuple[int, int]]:
    """The rule as the sheet states it, cell by cell and without sharing anything."""
    from functools import cache

    @cache
    def best(i: int, j: int) -> tuple[float, int, str]:
        here = float(matrix[i, j])
        if i == 0:
            return here, 1, ""
        up = best(i - 1, j)
        if j == 20:
            return up[0] + here, up[1] + 1, "U" + up[2]
        right = best(i, j + 1)
        if abs((up[0] + here) / (up[1] + 1) - target) < abs((right[0] + here) / (right[1] + 1) - target):
            return up[0] + here, up[1] + 1, "U" + up[2]
        return right[0] + here, right[1] + 1, "R" + right[2]

    start = min(range(1, 21), key=lambda i: abs(best(i, 0)[0] / best(i, 0)[1] - target))
    path = [(start, 0)]
    for move in best(start, 0)[2]:
        i, j = path[-1]
        path.append((i - 1, j) if move == "U" else (i, j + 1))
    return path


@pytest.mark.parametrize("seed", range(20))
def test_paths_through_any_matrix_follow_the_rule(seed: int):
    random = np.random.default_rng(seed)
    matrix = random.uniform(0, 80, (21, 21))
    if seed % 2:
        matrix = np.round(matrix / 20) * 20  # many ties
    target = float(random.choice([0, 20, 40]))
    assert find_path(matrix, target) == plain_path(matrix, target)


CHAINS = {
    ("easy", 43): "gaussian_noise glass_blur elastic pixelate impulse_noise snow motion_blur contrast elastic pixelate "
    "shot_noise snow",
    ("easy", 44): "zoom_blur frost elastic jpeg shot_noise impulse_noise zoom_blur defocus_blur glass_blur "
    "gaussian_noise defocus_blur shot_noise",
    ("easy", 45): "glass_blur zoom_blur snow glass_blur shot_noise glass_blur motion_blur gaussian_noise shot_noise "
    "snow gaussian_noise shot_noise",
    ("medium", 44): "zoom_blur frost elastic shot_noise impulse_noise zoom_blur defocus_blur glass_blur gaussian_noise "
    "defocus_blur shot_noise fog",
    ("hard", 43): "gaussian_noise impulse_noise shot_noise contrast impulse_noise gaussian_noise contrast "
    "gaussian_noise contrast impulse_noise contrast shot_noise",
    ("hard", 44): "contrast gaussian_noise shot_noise contrast shot_noise impulse_noise gaussian_noise shot_noise "
    "gaussian_noise shot_noise impulse_noise contrast",
    ("hard", 45): "impulse_noise contrast impulse_noise gaussian_noise impulse_noise gaussian_noise contrast "
    "gaussian_noise impulse_noise gaussian_noise impulse_noise gaussian_noise",
}
CHAINS["medium", 43], CHAINS["medium", 45] = CHAINS["easy", 43], CHAINS["easy", 45]


@pytest.mark.parametrize(("level", "seed"), CHAINS)
def test_chains_of_the_published_streams(level: str, seed: int):
    expected = CHAINS[level, seed].split()
    assert noise_chain(level, seed, 12) == expected
    assert noise_chain(level, seed, 5) == expected[:5]
    assert noise_chain({"easy": 40.0, "medium": 20, "hard": 0}[level], seed, 12) == expected
    assert noise_chain(level.title(), seed, 12) == expected


def test_a_walk_gives_each_cell_its_severities_and_images():
    schedule = walk("elastic", "fog", [(20, 0), (20, 1), (19, 1)], images_per_cell=30)
    assert [stretch.domain.corruptions for stretch in schedule.stretches] == [
        (("elastic_transform", 5.0), ("fog", 0.0)),
        (("elastic_transform", 5.0), ("fog", 0.25)),
        (("elastic_transform", 4.75), ("fog", 0.25)),
    ]
    assert {stretch.images for stretch in schedule.stretches} == {30}


# --- Streams by name


def self_contained() -> list[str]:
    return [name for name in streams.registry.names() if not streams.registry.get(name).needs]


def test_the_named_streams_are_listed_and_each_delivers():
    assert {"clean", "drift", "drift-easy", "recurring"} <= set(self_contained())
    for name in self_contained():
        stream = make(name, BUNDLED, seed=43, steps=30, batch=32)
        assert len(stream) == 30
        assert stream[29].images.shape[1:] == (3, 32, 32)
        assert equal(make(name, BUNDLED, seed=43, steps=30, batch=32)[17], stream[17])
        assert len(make(name, image_set(200), steps=2, batch=4)[1]) == 4


def test_a_longer_stream_begins_like_a_shorter_one():
    for name in self_contained():
        assert equal(make(name, BUNDLED, steps=5, batch=32)[4], make(name, BUNDLED, steps=400, batch=32)[4])


def test_drift_moves_by_quarter_severities_and_its_conditions_come_back():
    stream = make("drift", BUNDLED, seed=43, steps=3000, images_per_cell=128)
    domains = [stream.spans(k)[0].domain for k in range(len(stream))]
    for before, after in itertools.pairwise(domains):
        old, new = dict(before.active), dict(after.active)
        assert sum(abs(old.get(name, 0) - new.get(name, 0)) for name in {*old, *new}) in (0, 0.25)
    pure = [str(domain) for domain, _ in itertools.groupby(domains) if len(domain.active) == 1]
    visits = Counter(pure)
    assert set(visits) == {"gaussian_noise 5", "shot_noise 5", "impulse_noise 5", "contrast 5"}
    assert min(visits.values()) >= 6
    assert max(len(domain.active) for domain in domains) == 2


def test_the_speed_of_drift_is_images_per_cell():
    fast, slow = (make("drift", BUNDLED, seed=43, steps=100, images_per_cell=images) for images in (64, 640))
    assert all(fast.spans(k) == slow.spans(10 * k) for k in range(10))
    assert len({fast.spans(k)[0].domain for k in range(41)}) == 41


def test_drift_easy_is_milder_and_draws_from_fourteen_types():
    stream = make("drift-easy", BUNDLED, seed=43, steps=4000, images_per_cell=64)
    active = [pair for k in range(len(stream)) for pair in stream.spans(k)[0].domain.active]
    assert len({name for name, _ in active}) == 14
    assert max(severity for _, severity in active) < 3


def test_recurring_repeats_the_same_images_of_the_same_conditions():
    stream = make("recurring", BUNDLED, corruptions=("fog", "shot_noise"), severity=4, images=100, visits=3)
    assert len(stream) == 2 * 2 * 3
    assert [(str(b.domain), b.spans[0].visit, len(b)) for b in stream.batches(2, 6)] == [
        ("shot_noise 4", 0, 64),
        ("shot_noise 4", 0, 36),
        ("fog 4", 1, 64),
        ("fog 4", 1, 36),
    ]
    for k in range(4):
        assert torch.equal(stream[k].images, stream[k + 8].images)
    assert torch.equal(stream[0].labels, stream[2].labels)
    assert not torch.equal(stream[0].images, stream[2].images)
    for ragged in ("keep", "drop"):
        assert len(make("recurring", BUNDLED, steps=5000, ragged=ragged)) == 5000


# --- Bad input


@pytest.mark.parametrize(
    ("kind", "match", "call"),
    [
        (UnknownNameError, "unknown stream 'drfit'; did you mean 'drift'", lambda: make("drfit")),
        (
            TypeError,
            "'drift' has no option 'spede'; its options: level, images_per_cell",
            lambda: make("drift", spede=1),
        ),
        (ValueError, "batch must be a whole number of at least 1, got 0", lambda: make("clean", batch=0)),
        (ValueError, "steps must be .* at least 1, got 0", lambda: make("clean", steps=0)),
        (ValueError, "seed must be .* at least 0, got -1", lambda: make("clean", seed=-1)),
        (ValueError, r"seed must be below 2\*\*64", lambda: make("clean", BUNDLED, seed=2**64)),
        (ValueError, r"severity must lie in \[0, 5\], got 5.5", lambda: Domain(("fog", 5.5))),
        (ValueError, r"severity must lie in \[0, 5\], got 6", lambda: make("recurring", severity=6)),
        (UnknownNameError, "did you mean 'fog'", lambda: Domain(("fogg", 5))),
        (ValueError, "each corruption once", lambda: Domain(("jpeg", 5), ("jpeg_compression", 1))),
        (TypeError, r"\('fog', 3\)", lambda: Domain("fog", 3)),
        (ValueError, "at least one stretch", lambda: join([])),
        (ValueError, "images of a stretch .* got 0", lambda: hold(FOG, 0)),
        (ValueError, "image set is empty", lambda: make("clean", image_set()[[]])),
        (ValueError, "image set is empty", lambda: make("clean", (np.zeros((0, 8, 8, 3), np.uint8), []))),
        (ValueError, r"channels last", lambda: make("clean", (np.zeros((2, 3, 8, 8), np.uint8), [0, 1]))),
        (ValueError, "got float64", lambda: make("clean", (np.zeros((2, 8, 8, 3)), [0, 1]))),
        (
            ValueError,
            r"labels must be whole numbers \[2\]",
            lambda: make("clean", (np.zeros((2, 8, 8, 3), np.uint8), [0])),
        ),
        (TypeError, "an ImageSet, an ImageFolder or a pair", lambda: make("clean", 10)),
        (DatasetError, "no images at 'cifar10'", lambda: make("clean", "cifar10")),
        (UnknownNameError, "unknown order 'iid'.*shuffled", lambda: make("clean", BUNDLED, order="iid")),
        (TypeError, "order must be an Order, its name", lambda: make("clean", BUNDLED, order=1)),
        (TypeError, "Order, such as", lambda: Stream(image_set(), hold(FOG, 64), order="shuffled")),
        (ValueError, "'keep', 'drop', got 'pad'", lambda: make("clean", BUNDLED, ragged="pad")),
        (ValueError, "'imagenet', 'cifar', got 'mnist'", lambda: make("clean", BUNDLED, scale="mnist")),
        (ValueError, "no batch of 64 fits", lambda: Stream(image_set(), hold(FOG, 63), ragged="drop")),
        (ValueError, "delta must lie in", lambda: Dirichlet(0.0)),
        (UnknownNameError, "unknown level 'extreme'", lambda: noise_chain("extreme", 43, 3)),
        (ValueError, "at least two different", lambda: noise_chain(["fog"], 43, 3)),
        (ValueError, r"got shape \[21\]", lambda: find_path(np.zeros(21), 20)),
        (
            ValueError,
            "1 cells that are not",
            lambda: find_path(np.where(np.eye(21) * np.arange(21) == 20, np.nan, 1), 20),
        ),
    ],
)
def test_bad_input_is_refused_in_plain_words(kind: type[Exception], match: str, call):
    with pytest.raises(kind, match=match):
        call()


@pytest.mark.parametrize("k", [10, -11, 10**9])
def test_a_step_outside_the_stream_is_an_index_error(k: int):
    with pytest.raises(IndexError, match=f"step {k} is outside the stream of 10 steps"):
        mixed_stream()[k]
    with pytest.raises(IndexError, match="stop=11 is outside"):
        mixed_stream().batches(stop=11)
    with pytest.raises(TypeError, match="batches"):
        mixed_stream()[1:3]


# --- Worker processes


def children() -> set[int]:
    return {process.pid for process in multiprocessing.active_children() if process.pid is not None}


def gone(pid: int) -> bool:
    """Whether a process ended, within a while; a zombie did."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
def test_workers_give_the_same_bits_in_true_order():
    stream = mixed_stream()
    expected = list(stream.batches(start=3))
    made = list(stream.batches(start=3, workers=2))
    assert len(made) == len(expected)
    assert all(map(equal, made, expected))
    assert not children()


@pytest.mark.slow
def test_leaving_the_loop_ends_the_workers():
    stream = make("drift", BUNDLED, steps=200)
    for batch in stream.batches(workers=1):
        assert equal(batch, stream[0])
        started = children()
        break
    assert len(started) == 1
    assert not children()
    assert all(map(gone, started))


@pytest.mark.slow
def test_a_killed_worker_is_an_error_that_names_the_batch():
    ahead = make("drift", BUNDLED, steps=500).batches(start=5, workers=2)
    assert next(ahead).index == 5
    started = children()
    os.kill(min(started), signal.SIGKILL)
    with pytest.raises(StreamError, match=r"ended by SIGKILL\) died before it delivered batch \d+") as raised:
        list(ahead)
    assert re.search(r"stream.batches\(start=\d+\) goes on from here", str(raised.value))
    assert not children()
    assert all(map(gone, started))


@pytest.mark.slow
def test_an_exception_in_a_worker_arrives_with_its_traceback(tmp_path: Path):
    for name in ("crow", "newt"):
        (tmp_path / name).mkdir()
        for i in range(4):
            Image.new("RGB", (8, 8), (10 * i, 0, 0)).save(tmp_path / name / f"{i}.png")
    (tmp_path / "newt" / "1.png").write_bytes(b"no image")
    data = folder(tmp_path, resize=None, crop=8, verify=False)
    stream = Stream(data, hold(FOG, 8), batch=2, order=AsGiven())
    ahead = stream.batches(workers=1)
    assert equal(next(ahead), stream[0])
    assert equal(next(ahead), stream[1])
    with pytest.raises(DatasetError, match=r"1\.png is truncated") as raised:
        next(ahead)
    assert "in a prefetch worker, at batch 2" in raised.value.__notes__[0]
    assert "read_rgb" in raised.value.__notes__[0]
    assert not children()


SCRIPT = """
import multiprocessing, time
from tidefast.streams import make

def workers():
    return [process.pid for process in multiprocessing.active_children()]

if __name__ == "__main__":
    stream = make("drift", steps=5000)
    try:
        for batch in stream.batches(workers=1):
            if batch.index == 0:
                print(*workers(), flush=True)
            time.sleep(0.01)
    except KeyboardInterrupt:
        del batch
    print(*workers(), flush=True)
    ahead = stream.batches(workers=1)
    next(ahead)
    print(*workers(), flush=True)
    time.sleep(1000)
"""


@pytest.mark.slow
def test_ctrl_c_ends_the_workers_and_none_outlives_its_parent(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_ctrl_c,
    ) as parent:
        assert parent.stdout is not None
        watchdog = threading.Timer(2 * PATIENCE, parent.kill)  # a hang is a failure, not a hang
        watchdog.start()
        first = int(parent.stdout.readline())
        os.killpg(parent.pid, signal.SIGINT)  # Ctrl-C in a terminal reaches the whole group
        assert parent.stdout.readline() == "\n"
        assert gone(first)
        second = int(parent.stdout.readline())
        parent.kill()
        _, errors = parent.communicate(timeout=PATIENCE)
        watchdog.cancel()
    assert gone(second)
    # A library whose threads are just starting may end a process with a line of its own; whatever else is ours.
    assert errors in ("", "terminate called without an active exception\n")
