"""Baked networks: ordinary modules with the adapted weights, that answer as the adapter did and need no tidefast."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor, nn

import tidefast
from tidefast import cli, methods
from tidefast.core import checkpoint
from tidefast.testing import quick_adapter, small_network

INSEPARABLE = {"dplot", "lame", "memo", "rmt", "t3a", "vida"}
"""They answer with more than a pass of the network, or with one that has parts of theirs in it."""


def network(norm: str = "batch") -> nn.Module:
    torch.manual_seed(0)
    return small_network(norm)


def images(count: int = 16, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def adapted(method: str = "roid", norm: str = "batch", **options) -> tidefast.Adapter:
    adapter = quick_adapter(network(norm), method, optimizer="sgd:lr=0.05", **options)
    for seed in range(3):
        adapter(images(seed=seed))
    return adapter


def uncorrected(adapter: tidefast.Adapter, batch: Tensor) -> Tensor:
    """What the method answers before it looks at the batch as a whole."""
    object.__setattr__(adapter.method, "output", lambda logits: logits)
    return adapter.predict(batch)


@pytest.mark.parametrize("method", sorted(set(tidefast.list_methods()) - INSEPARABLE))
def test_a_baked_network_answers_as_its_adapter_and_is_free_of_it(method: str):
    norm = "attention" if methods.base.registry.get(method).transformers_only else "batch"
    adapter, batch = adapted(method, norm), images(32, 9)
    module = adapter.bake(batch)
    assert torch.allclose(module(batch), uncorrected(adapter, batch), atol=1e-3)
    assert not module.training
    assert set(module.state_dict()) == set(network(norm).state_dict())
    homes = {type(part).__module__ for part in module.modules()} - {"tidefast.testing"}  # of the small networks
    assert all(home.startswith("torch.") for home in homes)
    owned = {parameter.data_ptr() for parameter in adapter.network.module.parameters()}
    assert not owned & {parameter.data_ptr() for parameter in module.parameters()}
    before = module(batch)
    adapter(images(seed=7))
    assert torch.equal(module(batch), before)


@pytest.mark.parametrize("norm", ["batch", "layer", "group"])
def test_baking_changes_nothing_and_fixes_the_statistics(norm: str, tmp_path):
    adapter, batch = adapted("eta", norm), images(32, 9)
    adapter.save(tmp_path / "before")
    module = adapter.bake(batch)
    adapter.save(tmp_path / "after")
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()
    assert torch.allclose(module(batch)[:1], module(batch[:1]), atol=1e-5)  # an image is answered alike in any company


@pytest.mark.parametrize("method", sorted(INSEPARABLE))
def test_answers_that_are_more_than_a_network_cannot_be_baked(method: str):
    with pytest.raises(ValueError, match=r"more than one pass of its network|cannot be separated from the network"):
        adapted(method).bake(images(32, 9))


def test_images_that_fix_nothing_are_refused():
    adapter = adapted()
    with pytest.raises(ValueError, match="statistics of one image would be noise"):
        adapter.bake(images(1))
    with pytest.raises(ValueError, match="must be finite"):
        adapter.bake(images() / 0.0)


def test_a_stream_of_a_fleet_is_baked():
    fleet = tidefast.Fleet(network(), "tent", optimizer="sgd:lr=0.05")
    fleet["a"](images())
    alone = tidefast.adapt(network(), "tent", optimizer="sgd:lr=0.05")
    alone(images())
    assert torch.equal(fleet["a"].bake(images(32, 9))(images()), alone.bake(images(32, 9))(images()))


def test_a_baked_network_saves_with_torch_and_safetensors(tmp_path):
    module = adapted().bake(images(32, 9))
    torch.save(module, tmp_path / "module.pt")
    safetensors.torch.save_file(module.state_dict(), tmp_path / "weights.safetensors")
    fresh = network().eval()
    fresh.load_state_dict(safetensors.torch.load_file(tmp_path / "weights.safetensors"))
    again = torch.load(tmp_path / "module.pt", weights_only=False)
    for other in (fresh, again):
        assert torch.equal(other(images()), module(images()))


WITHOUT = """
import sys
sys.modules["tidefast"] = None  # whoever imports it fails
import numpy as np, torch
images = torch.from_numpy(np.load(sys.argv[1] + "/images.npy"))
with torch.no_grad():
    for name, load in (("module.pt", lambda path: torch.load(path, weights_only=False)),
                       ("program.pt2", lambda path: torch.export.load(path).module())):
        np.save(sys.argv[1] + "/" + name + ".npy", load(sys.argv[1] + "/" + name)(images).numpy())
"""


@pytest.mark.slow
def test_what_is_saved_and_exported_runs_where_there_is_no_tidefast(tmp_path):
    module = adapted().bake(images(32, 9))
    torch.save(module, tmp_path / "module.pt")
    shapes = ({0: torch.export.Dim.AUTO},)
    torch.export.save(torch.export.export(module, (images(2),), dynamic_shapes=shapes), tmp_path / "program.pt2")
    np.save(tmp_path / "images.npy", images(5).numpy())
    subprocess.run([sys.executable, "-c", WITHOUT, str(tmp_path)], check=True, timeout=300)
    for name in ("module.pt", "program.pt2"):
        assert np.allclose(np.load(tmp_path / f"{name}.npy"), module(images(5)).numpy(), atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch.onnx itself
@pytest.mark.parametrize("norm", ["batch", "layer", "group", "attention"])
def test_onnxruntime_gives_the_same_answers(norm: str, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    module = adapted("roid", norm).bake(images(32, 9))
    shapes = ({0: torch.export.Dim.AUTO},)
    program = torch.export.export(module, (images(2),), dynamic_shapes=shapes)
    torch.onnx.export(program, (), tmp_path / "net.onnx", input_names=["images"], output_names=["logits"])
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    for count in (2,) if norm == "attention" else (1, 5):  # the small transformer asks for the length of its batch
        batch = images(count)
        (answers,) = session.run(["logits"], {"images": batch.numpy()})
        assert np.allclose(answers, module(batch).numpy(), atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch.onnx itself
@pytest.mark.parametrize("kind", [".pt2", ".onnx", ".safetensors", ".pt"])
def test_the_command_bakes_a_snapshot(kind: str, tmp_path, capsys):
    model = tidefast.models.load("bundled-resnet")
    adapter = tidefast.adapt(model, "eta:similarity_margin=0.4", reset="asr", optimizer="adam:lr=1e-3")
    batch = tidefast.streams.make("drift", steps=1, batch=16)[0].images
    adapter(batch)
    adapter.save(tmp_path / "state")
    out = tmp_path / f"net{kind}"
    command = ["bake", "--snapshot", str(tmp_path / "state"), "--data", "bundled", "--images", "64", "--out", str(out)]
    assert cli.main(command) == 0
    assert "1 steps of eta, statistics of 64 images" in capsys.readouterr().out
    clean = torch.cat([part for part, _ in tidefast.datasets.source_batches(tidefast.datasets.open("bundled"), 64)])
    expected = adapter.bake(clean)(batch)
    if kind == ".onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        answers = torch.tensor(onnxruntime.InferenceSession(out).run(None, {"images": batch.numpy()})[0])
    elif kind == ".safetensors":
        model.load_state_dict(safetensors.torch.load_file(out))
        answers = model.eval()(batch)
    else:
        answers = (torch.load(out, weights_only=False) if kind == ".pt" else torch.export.load(out).module())(batch)
    assert torch.allclose(answers, expected, atol=1e-4)


@pytest.mark.parametrize("method", [name for name in tidefast.list_methods() if name not in ("cmae", "rem")])
def test_what_a_snapshot_says_of_its_method_makes_it_again(method: str, tmp_path):
    adapter = quick_adapter(network(), method)
    adapter.save(tmp_path / "state")
    assert methods.base.registry.make(checkpoint.configuration(tmp_path / "state")["method"]) == adapter.method


def declaring() -> torch.nn.Module:
    """A network that says how large its images are."""
    model = tidefast.models.load("bundled-resnet")
    model.model_input = tidefast.models.ModelInput(size=32)
    return model


def test_the_command_prepares_files_as_a_run_does(tmp_path, capsys):
    data = tidefast.datasets.open("bundled-train")
    for at in range(24):
        (tmp_path / "photos" / str(data.labels[at])).mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(data[np.array([at])].images[0]).resize((40, 40))
        picture.save(tmp_path / "photos" / str(data.labels[at]) / f"{at}.png")
    given = ["--model", "test_bake:declaring", "--source", str(tmp_path / "photos")]
    run = ["run", "--stream", "drift", "--method", "santa", *given, "--steps", "2", "--out", str(tmp_path / "run")]
    assert cli.main(run) == 0
    snapshot = ["--snapshot", str(tmp_path / "run" / "snapshot.safetensors"), "--data", str(tmp_path / "photos")]
    assert cli.main(["bake", *given, *snapshot, "--out", str(tmp_path / "net.pt")]) == 0
    assert "2 steps of santa, statistics of 24 images" in capsys.readouterr().out


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    adapted().save(tmp_path / "state")
    command = ["bake", "--snapshot", str(tmp_path / "state"), "--data", "bundled", "--out", str(tmp_path / "net.zip")]
    assert cli.main(command) == 2
    assert "--out must end in .pt2, .onnx, .safetensors, .pt" in capsys.readouterr().err
    assert cli.main([*command[:-1], str(tmp_path / "net.pt")]) == 2
    assert "belongs to another network" in capsys.readouterr().err
