"""Code in the documentation runs as written."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import method_pages
import pytest
import torch

import tidefast
from tidefast import methods
from tidefast.testing import check_adapter, small_network

ROOT = Path(__file__).parent.parent


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.S)


def test_the_readme_runs_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = torch.rand(16, 3, 16, 16)
    canaries = torch.rand(32, 3, 16, 16)
    names = {"model": small_network(), "images": images, "stream": [images, images], "canaries": canaries}
    for block in [*blocks("README.md"), *blocks("docs/inside.md")]:
        exec(block, names)
    assert names["record"].step == 1
    assert (tmp_path / "state.safetensors").exists()


INSTALLABLE = (
    "-",
    ".",
    "'.",
    "pillow",
    "scikit-learn",
    "imagecorruptions-imaug",
    "transformers",
    "onnx",
    "mlflow",
    "wandb",
)
"""How what may follow `pip install` begins: options, this folder, and other people's packages."""


def test_nothing_tells_to_install_a_strangers_package_of_our_name():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "mkdocs.yml"]
    folders = ("src", "docs", "examples", "benchmarks", "training")
    texts = [p for folder in folders for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".md", ".html", ".js")]
    said = [line for p in [*pages, *texts] for line in re.findall(r"pip install (.*)", p.read_text())]
    assert said
    for line in said:
        words = line.split("#")[0].split(" in a clone")[0].split()
        assert words[0].startswith(INSTALLABLE), line
        assert not any(re.match(r"\W*(tidefast|holdfast)", word) for word in words), line


def test_no_page_waits_for_a_number():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert [path.name for path in pages if re.search(r"@@\w+@@|\bTODO\b|\bXXX\b", path.read_text())] == []


PAGES = ["docs/methods.md", *(f"docs/methods/{name}.md" for name in [*method_pages.classes(), "come"])]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: Path(page).stem)
def test_the_page_of_a_method_runs_as_written(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    images = torch.rand(16, 3, 16, 16)
    names = {"model": small_network(), "vit": small_network("attention"), "images": images}
    names |= {"source_images": torch.rand(32, 3, 16, 16), "source_labels": torch.arange(32) % 10}
    text = (ROOT / page).read_text() if page == "docs/methods.md" else method_pages.page(Path(page).stem)
    examples = re.findall(r"```python\n(.*?)```", text, re.S)
    assert examples
    for block in examples:
        exec(block, names)
    assert names["logits"].shape == (16, 10)


def test_the_experiments_page_runs_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks("docs/experiments.md"):
        exec(block, names)
    assert names["run"].complete


@pytest.fixture
def clean_registry(monkeypatch):
    monkeypatch.setattr(methods.base.registry, "_classes", dict(methods.base.registry._classes))


def test_the_method_in_the_contributing_guide_conforms_as_written(clean_registry, monkeypatch):
    code, check = blocks("CONTRIBUTING.md")
    module = types.ModuleType("margin")
    monkeypatch.setitem(sys.modules, "margin", module)
    exec(code, module.__dict__)
    exec(check, {"tidefast": tidefast})
    assert check_adapter(lambda model: tidefast.adapt(model, "margin", reset="rdumb"))
