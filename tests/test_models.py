"""The bundled networks: what they cost, what they know, and that their card tells the truth."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import re
import sys
import urllib.error
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import tidefast.datasets
from tidefast import models
from tidefast.datasets import ImageSet
from tidefast.errors import SpecificationError, UnknownNameError
from tidefast.models.bundled import Bundled

ROOT = Path(__file__).parents[1]
CARD = (ROOT / "docs" / "bundled.md").read_text()
NAMES = ["bundled-resnet", "bundled-vit"]


def file_of(name: str) -> Path:
    entry = models.registry.get(name)
    assert issubclass(entry, Bundled)
    return Path(models.__file__).with_name(entry.file)


def card_row(name: str, title: str) -> str:
    """The cell of the card's table in the row `title` and the column of the network."""
    column = NAMES.index(name) + 1
    (row,) = [line for line in CARD.splitlines() if line.startswith(f"| {title} |")]
    return row.strip("|").split("|")[column].strip()


@pytest.fixture(scope="module")
def subset() -> ImageSet:
    return tidefast.datasets.bundled()


@pytest.fixture(scope="module")
def pixels(subset: ImageSet) -> Tensor:
    return torch.from_numpy(subset.images).permute(0, 3, 1, 2).float() / 255


def test_the_bundled_networks_are_listed_and_an_unknown_name_suggests_one() -> None:
    assert set(NAMES) <= set(models.list_models())
    assert models.registry.names("*vit") == ["bundled-vit"]
    with pytest.raises(UnknownNameError, match="did you mean 'bundled-resnet'"):
        models.load("bundled-resnt")


@pytest.mark.parametrize("name", NAMES)
def test_accuracy_on_the_bundled_subset_is_what_the_card_says(name: str, subset: ImageSet, pixels: Tensor) -> None:
    network = models.load(name)
    with torch.no_grad():
        predicted = torch.cat([network(batch).argmax(1) for batch in pixels.split(500)]).numpy()
    accuracy = 100 * float((predicted == subset.labels).mean())
    assert accuracy >= {"bundled-resnet": 88.0, "bundled-vit": 85.0}[name]
    stated = float(card_row(name, "accuracy, bundled subset").removesuffix(" %"))
    assert accuracy == pytest.approx(stated, abs=0.15)  # another CPU may round a few images the other way


@pytest.mark.parametrize("name", NAMES)
def test_the_card_states_the_hash_and_size_of_the_weights(name: str) -> None:
    content = file_of(name).read_bytes()
    assert card_row(name, "sha256 of the file") == f"`{hashlib.sha256(content).hexdigest()}`"
    assert int(card_row(name, "bytes").replace(",", "")) == len(content)


@pytest.mark.parametrize("name", NAMES)
def test_the_card_states_multiply_adds_and_parameters(name: str) -> None:
    network = models.load(name)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        network(torch.rand(1, 3, 32, 32))
    multiply_adds = counter.get_total_flops() // 2
    assert multiply_adds <= {"bundled-resnet": 15_000_000, "bundled-vit": 17_000_000}[name]
    assert card_row(name, "multiply-adds per image") == f"{multiply_adds / 1e6:.2f} M"
    parameters = sum(parameter.numel() for parameter in network.parameters())
    assert card_row(name, "parameters") == f"{parameters:,}"


def test_the_code_on_the_card_runs_as_written() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", CARD, re.S)
    names: dict[str, object] = {}
    exec(code, names)
    logits = names["logits"]
    assert isinstance(logits, Tensor)
    assert logits.shape == (100, 10)


def test_everything_bundled_fits_eight_megabytes() -> None:
    images = Path(tidefast.datasets.__file__).with_name("bundled_cifar10.xz")
    assert sum(path.stat().st_size for path in (images, *map(file_of, NAMES))) < 8_000_000


def test_the_networks_normalise_as_their_names_promise() -> None:
    def kinds(name: str) -> set[str]:
        return {type(module).__name__ for module in models.load(name).modules() if "Norm" in type(module).__name__}

    assert kinds("bundled-resnet") == {"PixelNormalization", "BatchNorm2d"}
    assert kinds("bundled-vit") == {"PixelNormalization", "LayerNorm", "ChannelNorm"}


@pytest.mark.parametrize("name", NAMES)
def test_each_load_is_a_network_of_its_own_in_evaluation_mode_and_single_precision(name: str) -> None:
    one, other = models.load(name), models.load(name)
    assert not any(module.training for module in one.modules())
    assert {value.dtype for value in one.state_dict().values()} <= {torch.float32, torch.int64}
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.zero_()
    assert all(bool(parameter.any()) for parameter in other.parameters() if parameter.dim() > 1)


@pytest.mark.parametrize("name", NAMES)
def test_the_memory_layout_and_the_batch_size_do_not_change_the_answer(name: str, pixels: Tensor) -> None:
    network = models.load(name)
    images = pixels[:8]
    with torch.no_grad():
        logits = network(images.contiguous())
        torch.testing.assert_close(
            network(images.contiguous(memory_format=torch.channels_last)), logits, rtol=1e-4, atol=1e-4
        )
        torch.testing.assert_close(network(images[:1]), logits[:1], rtol=1e-4, atol=1e-4)


# The training script, on noise, for two epochs of two steps


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_bundled", ROOT / "training" / "train_bundled.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def noise() -> ImageSet:
    rng = np.random.default_rng(3)
    return ImageSet(rng.integers(0, 256, (256, 32, 32, 3), np.uint8), rng.integers(0, 10, 256), ("",) * 10)


class _Interruption(logging.Handler):
    """Stops the process's work as soon as the first epoch is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        if "epoch 1/2" in record.getMessage():
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_interrupted_training_ends_with_the_same_bits(
    name: str, script: ModuleType, noise: ImageSet, tmp_path: Path
) -> None:
    for part in ("whole", "broken"):
        (tmp_path / part).mkdir()
    script.train(name, noise, noise[:8], tmp_path / "whole", epochs=2)
    interruption = _Interruption()
    script.log.setLevel(logging.INFO)
    script.log.addHandler(interruption)
    with pytest.raises(KeyboardInterrupt):
        script.train(name, noise, noise[:8], tmp_path / "broken", epochs=2)
    script.log.removeHandler(interruption)
    assert torch.load(tmp_path / "broken" / f"{name}.pt", weights_only=True)["done"] == 1
    script.train(name, noise, noise[:8], tmp_path / "broken", epochs=2)
    whole, broken = (torch.load(tmp_path / part / f"{name}.pt", weights_only=True) for part in ("whole", "broken"))
    for kind in ("network", "average"):
        assert whole[kind].keys() == broken[kind].keys()
        assert all(torch.equal(value, broken[kind][key]) for key, value in whole[kind].items())
    with pytest.raises(SystemExit, match=re.escape("belongs to a run of 2 epochs")):
        script.train(name, noise, noise[:8], tmp_path / "broken", epochs=3)


def test_augmented_images_are_shifted_and_mirrored_cuts_of_the_original(script: ModuleType) -> None:
    column = np.broadcast_to(np.arange(32, dtype=np.uint8)[None, :, None], (32, 32, 3))
    ramps = ImageSet(np.stack([column] * 64), np.zeros(64, np.int64), ("ramp",))
    ((batch, labels),) = script.Epochs(ramps, batch_size=64, cutout=0, seed=0).batches(0)
    assert batch.shape == (64, 3, 32, 32)
    assert labels.tolist() == [0] * 64
    middle = (batch[:, 0, 16] * 255).round().int()[:, 8:24].diff(dim=1)  # the padding does not reach these
    assert {tuple(row.tolist()) for row in middle} == {(1,) * 15, (-1,) * 15}


def test_cutout_covers_one_square_in_each_image(script: ModuleType) -> None:
    white = ImageSet(np.full((32, 32, 32, 3), 255, np.uint8), np.zeros(32, np.int64), ("white",))
    ((batch, _),) = script.Epochs(white, batch_size=32, cutout=8, seed=0).batches(0)
    assert (batch == 0.5).sum(dim=(1, 2, 3)).tolist() == [3 * 64] * 32


def test_the_learning_rate_rises_to_its_peak_and_falls_to_zero(script: ModuleType) -> None:
    recipe = script.RECIPES["bundled-resnet"]
    rates = [script.rate(recipe, k / 1000) for k in range(1001)]
    top = rates.index(max(rates))
    assert top == pytest.approx(1000 * recipe.warmup, abs=1)
    assert rates == sorted(rates[: top + 1]) + sorted(rates[top + 1 :], reverse=True)
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)


# --- The networks of the published tables


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameters"), [("resnet50", 25_557_032), ("vit_b_16", 86_567_656)])
def test_torchvision_networks_by_name_normalise_and_select(torchvision, tmp_path, name, parameters):
    torch.manual_seed(0)
    network = torchvision.models.get_model(name, weights=None).eval()
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    loaded = models.load(name, weights=str(tmp_path / "weights.pth"))
    assert sum(p.numel() for p in loaded.parameters()) == parameters
    assert not loaded.training
    images = torch.rand(2, 3, 224, 224)
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    with torch.no_grad():
        expected = network((images - mean.view(3, 1, 1)) / deviation.view(3, 1, 1))
        torch.testing.assert_close(loaded(images), expected)
        selected = models.load(name, weights=str(tmp_path / "weights.pth"), classes="d109")(images)
    assert selected.shape == (2, 109)
    torch.testing.assert_close(selected[:, [0, 108]], expected[:, [403, 340]])  # aircraft_carrier, zebra


@pytest.mark.parametrize("name", ["resnet50", "torchvision:architecture=mobilenet_v2"])
def test_weights_that_cannot_be_fetched_are_an_error_that_says_what_to_give(torchvision, monkeypatch, tmp_path, name):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))

    def unreachable(*_, **__):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(torch.hub, "download_url_to_file", unreachable)
    with pytest.raises(OSError, match=r"pretrained weights of \w+ are not in .*not known.*: give weights= a file"):
        models.load(name)


def test_whatever_a_function_of_ones_own_raises_is_one_sentence(monkeypatch, tmp_path):
    (tmp_path / "somebodys.py").write_text("def net():\n    raise RuntimeError('size mismatch for fc.weight')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecificationError, match="model 'somebodys:net' raised RuntimeError: size mismatch for fc"):
        models.load("somebodys:net")


def test_missing_weights_and_wrong_options_are_named(torchvision, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no weights at .*none\.pth"):
        models.load("resnet50", weights=str(tmp_path / "none.pth"))
    with pytest.raises(ValueError, match="classes must be 'd109'"):
        models.load("resnet50", classes="d110")
    with pytest.raises(ValueError, match="has no option 'width'; its options: weights, classes"):
        models.load("resnet50", width=2)
