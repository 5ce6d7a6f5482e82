"""What a network declares of its images is heeded: by `models.load`, by runs and by calibration."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from torch import nn

from test_classes import Colours, make_folder
from tidefast import cli, models
from tidefast.models import ModelInput, declared_input
from tidefast.models.images import images_for

MEAN, DEVIATION = (0.5, 0.4, 0.3), (0.2, 0.2, 0.25)


def declaring() -> nn.Module:
    net = Colours().eval()
    net.model_input = ModelInput(size=40, resize=44)
    return net


def normalised() -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).eval()
    net.model_input = ModelInput(2, None, MEAN, DEVIATION)
    return net


def test_images_have_the_size_that_the_model_declares_unless_another_is_asked_for(tmp_path):
    data = make_folder(tmp_path, {"3": 3, "7": 7})
    images = images_for(declaring(), data)
    assert (images.crop, images.resize) == (40, 44)
    assert images_for(declaring(), data, size=24).crop == 24
    assert images_for(Colours().eval(), data).crop == 224


def test_a_declared_normalisation_is_put_in_front_of_a_network_of_ones_own():
    loaded, images = models.load("test_model_input:normalised"), torch.rand(3, 3, 2, 2)
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, DEVIATION))
    torch.manual_seed(0)
    expected = loaded[1]((images - mean) / deviation)
    torch.testing.assert_close(loaded(images), expected)
    assert declared_input(loaded) == ModelInput(2)
    assert not loaded.training


def test_a_network_that_declares_nothing_is_taken_as_it_is():
    loaded = models.load("test_classes:colours")
    assert isinstance(loaded, Colours)
    assert declared_input(loaded) == ModelInput()


def test_mean_and_deviation_go_together():
    with pytest.raises(ValueError, match="give both"):
        ModelInput(mean=MEAN)


def test_timm_networks_declare_their_input_by_themselves(timm):
    by_name = models.load("timm:architecture=mobilenetv3_small_050,weights=random,num_classes=7")
    by_function = models.load("timm.models:mobilenetv3_small_050")
    for loaded in (by_name, by_function):
        assert declared_input(loaded).size == 224
        torch.testing.assert_close(loaded[0].mean.flatten(), torch.tensor((0.485, 0.456, 0.406)))
    assert by_name(torch.rand(2, 3, 32, 32)).shape == (2, 7)
    with pytest.raises(ValueError, match="timm has no network 'mobilnetv3_small_050'; did you mean 'mobilenetv3_small"):
        models.load("timm:architecture=mobilnetv3_small_050")


def test_torchvision_networks_declare_their_input_by_themselves(torchvision, tmp_path):
    torch.save(torchvision.models.squeezenet1_1(num_classes=7).state_dict(), tmp_path / "own.pth")
    loaded = models.load("torchvision:architecture=squeezenet1_1,num_classes=7", weights=str(tmp_path / "own.pth"))
    assert declared_input(loaded) == ModelInput(224, 256)
    assert loaded(torch.rand(2, 3, 64, 64)).shape == (2, 7)
    with pytest.raises(ValueError, match="torchvision has no network 'squeezenet'; did you mean"):
        models.load("torchvision:architecture=squeezenet")
    with pytest.raises(ValueError, match="holds no weights of squeezenet1_0"):
        models.load("torchvision:architecture=squeezenet1_0", weights=str(tmp_path / "own.pth"))
    with pytest.raises(ValueError, match="needs an architecture, as in torchvision:architecture="):
        models.load("torchvision")


def test_a_torchvision_that_does_not_fit_torch_is_an_error_of_one_line(monkeypatch, tmp_path, capsys):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms is missing')")
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    command = ["run", "--stream", "clean", "--method", "source", "--model", "resnet50", "--out", str(tmp_path / "run")]
    assert cli.main(command) == 2
    error = capsys.readouterr().err
    assert "torchvision, which does not work with torch" in error
    assert "Traceback" not in error


def test_a_saved_classifier_of_transformers_brings_its_names_size_and_normalisation(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        id2label={0: "crow", 1: "newt", 2: "owl"},
    )
    transformers.ResNetForImageClassification(config).save_pretrained(tmp_path / "net")
    processor = {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}}
    normal = {"image_mean": list(MEAN), "image_std": list(DEVIATION), "image_processor_type": "ConvNextImageProcessor"}
    (tmp_path / "net" / "preprocessor_config.json").write_text(json.dumps({**processor, **normal}))
    loaded = models.load({"name": "transformers", "architecture": str(tmp_path / "net")})
    assert declared_input(loaded) == ModelInput(32, 40)
    torch.testing.assert_close(loaded[0].mean.flatten(), torch.tensor(MEAN))
    data = make_folder(tmp_path / "photos", {"owl": 3, "crow": 7})
    assert sorted(set(images_for(loaded, data).labels.tolist())) == [0, 2]
