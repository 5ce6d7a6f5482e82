"""The networks that people have: torchvision's, timm's and Hugging Face's adapt, by name and with random weights."""

from __future__ import annotations

import networks
import pytest
import torch

import tidefast

pytestmark = pytest.mark.slow

WITHOUT_NORMALIZATION = {"nf_resnet26"}


@pytest.fixture
def candidate(request, torchvision):
    if request.param.library == "transformers":
        pytest.importorskip("transformers")
    return request.param


def of(*names: str):
    chosen = [one for one in networks.CANDIDATES if (one.name in WITHOUT_NORMALIZATION) == bool(names)]
    return pytest.mark.parametrize("candidate", chosen, ids=lambda one: f"{one.library}-{one.name}", indirect=True)


@of()
def test_a_network_adapts_and_goes_back_to_its_source(candidate):
    model, images = candidate.build(), candidate.images()
    adapter = tidefast.adapt(model, "tent")  # no policy: on random weights it may reset all of a step
    source = adapter.network.arena.values.clone()
    before = adapter.predict(images)
    for _ in range(2):
        assert adapter(images).shape == (networks.BATCH, networks.CLASSES)
    assert not torch.equal(adapter.network.arena.values, source)
    adapter.reset()
    torch.testing.assert_close(adapter.predict(images), before, rtol=0, atol=0)


@of("without")
def test_a_network_without_normalisation_layers_is_refused_in_one_sentence(candidate):
    model = candidate.build()
    with pytest.raises(ValueError, match=r"this network has none that it may adapt .* or the method 'source'"):
        tidefast.adapt(model, "roid")
    assert tidefast.adapt(model, "source")(candidate.images()).shape == (networks.BATCH, networks.CLASSES)
