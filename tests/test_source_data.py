"""What methods take from source data: passes, labels, starting points, files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import tidefast
from tidefast import methods, resets
from tidefast.core.network import Network
from tidefast.core.source import SourceData
from tidefast.datasets import ImageSet
from tidefast.datasets.tensors import source_batches
from tidefast.testing import small_network

IMAGES, LABELS = torch.rand(40, 3, 16, 16), torch.arange(40) % 10


@dataclass(frozen=True)
class Moved(methods.Tent):
    """Starts `distance` away from the caller's model."""

    distance: float = 0.5
    labelled: bool = False
    prepared_with: ClassVar[tuple[str, ...]] = ("distance",)

    @property
    def needs_source(self) -> str:
        return "source images"

    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        for _ in range(2):
            list(source.labelled() if self.labelled else source)
        network.arena.values.add_(1.0)  # as a warm-up would
        return {"start": network.arena.source + self.distance}

    def start(self, constants: Mapping[str, Tensor]) -> Tensor | None:
        return constants["start"]


@dataclass(frozen=True)
class Curious(resets.Never):
    """A policy that wants source data."""

    @property
    def needs_source(self) -> str:
        return "a look at the source"

    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        return {"mean": torch.stack([images.mean() for images in source]).mean()}


def test_batches_come_with_labels_as_often_as_asked():
    data = SourceData(Network(small_network()), (IMAGES, LABELS), "Moved")
    for _ in range(2):
        images, labels = zip(*data.labelled(), strict=True)
        assert torch.equal(torch.cat(images), IMAGES)
        assert torch.equal(torch.cat(labels), LABELS)
    first, of_first = data.first(7)
    assert torch.equal(first, IMAGES[:7])
    assert torch.equal(of_first, LABELS[:7])
    endless = data.endless(labelled=True)
    assert [len(next(endless)[0]) for _ in range(3)] == [40, 40, 40]


@pytest.mark.parametrize("source", [IMAGES, [IMAGES], [(IMAGES, "no labels")], [(IMAGES, LABELS.float())]])
def test_a_method_that_needs_labels_says_so(source):
    with pytest.raises(ValueError, match=r"Moved needs labelled source data: source= must yield \(images, labels\)"):
        tidefast.prepare(small_network(), Moved(labelled=True), source)


def test_a_generator_serves_one_pass_and_is_told_apart_from_a_loader():
    with pytest.raises(ValueError, match="Moved goes over the source data several times"):
        tidefast.prepare(small_network(), Moved(), (batch for batch in [IMAGES]))
    assert tidefast.prepare(small_network(), methods.EATA(), (batch for batch in [IMAGES])).tensors["fisher"].any()
    assert tidefast.prepare(small_network(), Moved(), [IMAGES]).tensors


def test_two_batches_of_images_are_not_a_batch_with_labels():
    data = SourceData(Network(small_network()), [IMAGES[:20], IMAGES[20:]], "Moved")
    assert torch.equal(torch.cat(list(data)), IMAGES)


def test_images_and_labels_must_be_as_many():
    with pytest.raises(ValueError, match="40 images but 39 labels"):
        tidefast.prepare(small_network(), Moved(), (IMAGES, LABELS[1:]))


def test_a_prepared_start_is_what_resets_return_to():
    model = small_network()
    adapter = tidefast.adapt(model, Moved(), reset=resets.Periodic(every=2), source=IMAGES)
    start = adapter.network.arena.source.clone()
    assert torch.equal(adapter.network.arena.values, start)
    assert torch.allclose(start.sum() - len(start) * 0.5, Network(model, methods.Tent().configure).arena.source.sum())
    adapter(IMAGES[:16])
    assert not torch.equal(adapter.network.arena.values, start)
    adapter(IMAGES[:16])
    assert torch.equal(adapter.network.arena.values, start)
    adapter(IMAGES[:16])
    adapter.reset()
    assert torch.equal(adapter.network.arena.values, start)


def test_a_preparation_is_computed_once_and_belongs_to_its_settings(tmp_path, monkeypatch):
    file, model = tmp_path / "prepared.safetensors", small_network()
    first = tidefast.prepare(model, Moved(), IMAGES, cache=file)
    monkeypatch.setattr(Moved, "prepare", lambda *args: pytest.fail("computed again"))
    again = tidefast.prepare(model, Moved(), IMAGES, cache=file)
    assert torch.equal(first.tensors["start"], again.tensors["start"])
    assert tidefast.adapt(model, Moved(), source=file).constants
    with pytest.raises(tidefast.SnapshotError, match="made with other settings"):
        tidefast.adapt(model, Moved(distance=1.0), source=file)
    with pytest.raises(tidefast.SnapshotError, match="other settings"):
        tidefast.prepare(model, Moved(distance=1.0), IMAGES, cache=file)
    with pytest.raises(tidefast.SnapshotError, match="another network"):
        tidefast.adapt(small_network("group"), Moved(), source=file)


def test_a_policy_may_need_source_data_too(tmp_path):
    model, file = small_network(), tmp_path / "both.safetensors"
    with pytest.raises(ValueError, match="Curious needs a look at the source: pass source="):
        tidefast.adapt(model, "tent", reset=Curious())
    alone = tidefast.adapt(model, "tent", reset=Curious(), source=IMAGES)
    assert float(alone.constants["mean"]) == pytest.approx(float(IMAGES.mean()), abs=1e-3)
    tidefast.prepare(model, Moved(), [IMAGES], reset=Curious()).save(file)
    both = tidefast.adapt(model, Moved(), reset=Curious(), source=file)
    assert {"mean", "start"} == both.constants.keys()
    with pytest.raises(tidefast.SnapshotError, match="made for the reset none"):
        tidefast.adapt(model, Moved(), reset=Curious(), source=tidefast.prepare(model, Moved(), IMAGES))


def test_every_batch_of_a_sorted_set_is_spread_over_its_classes():
    labels = np.arange(200) // 20
    images = np.zeros((200, 4, 4, 3), np.uint8)
    images[:, 0, 0, 0] = np.arange(200)
    spread = source_batches(ImageSet(images, labels, tuple("abcdefghij")), 200)
    assert all(len(torch.unique(of_batch)) == 10 for _, of_batch in spread)
    assert sorted(torch.cat([batch for batch, _ in spread])[:, 0, 0, 0].mul(255).round().tolist()) == list(range(200))
    shuffled = np.random.default_rng(0).permutation(labels)
    kept = source_batches(ImageSet(images, shuffled, tuple("abcdefghij")), 200)
    assert torch.cat([of_batch for _, of_batch in kept]).tolist() == shuffled.tolist()
