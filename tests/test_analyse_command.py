"""`tidefast analyse`, and what is true of every analysis."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch

from tidefast import cli
from tidefast.bench import Experiment, assembly, run
from tidefast.commands import paper_runs
from tidefast.paper import published
from tidefast.paper.analyses import registry
from tidefast.paper.reproduction import targets
from tidefast.paper.scale import FullScale, MiniScale

OURS = {"calibration"}
RESETS = ("never", "periodic:every=8", "asr")


class Tiny(MiniScale):
    """A few batches of everything that is cut by steps."""

    steps = 9
    batch = 8
    every = 3


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder with three contestants on one stream: some analyses have nothing to say about them."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("runs")
    fields = {"model": "nets:conv_net", "optimizer": "adam:lr=1e-2", "steps": 24, "batch": 8}
    for reset in RESETS:
        experiment = Experiment("drift", "eta", reset=reset, **fields)
        run(experiment, folder / experiment.key, batches=folder / "batches")
    return folder


# the command


def test_without_a_name_it_lists_what_there_is(capsys):
    assert cli.main(["analyse"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == registry.names()
    assert all(registry.get(line.split()[0]).title in line for line in lines)


def test_one_analysis_writes_data_table_and_figure_and_shows_the_table(runs, tmp_path, capsys):
    assert cli.main(["analyse", "stability", str(runs), "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    names = {
        "stability-blocks.csv",
        "stability-fine.csv",
        *(f"stability.{kind}" for kind in ("md", "pdf", "svg", "png")),
    }
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    assert all(str(tmp_path / "out" / name) in out.splitlines()[-2] for name in names)
    assert all(label in out for label in ("ETA + RDumb", "ETA + ASR"))


@pytest.mark.slow
def test_all_writes_what_can_be_said_and_has_a_line_for_the_rest(runs, tmp_path, capsys):
    assert cli.main(["analyse", "all", str(runs), "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    written = {path.stem for path in tmp_path.glob("*.md")}
    assert {"collapse", "resets", "stability"} <= written
    assert {"variance", "groups"}.isdisjoint(written)
    assert any(line.startswith("groups: none of these runs says anything about groups") for line in lines)
    assert sum(line.startswith("variance: none of these runs can be compared") for line in lines) == 1
    assert {line.split(":")[0] for line in lines} >= set(registry.names()) - written
    assert lines[-1] == f"{len(written)} of {len(registry.names())} analyses were written to {tmp_path}"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("groups", "none of these runs says anything about groups; without a folder it runs what it needs"),
        ("variance", "none of these runs can be compared: there must be some with asr:measure=spread"),
        ("colapse", "unknown analysis 'colapse'; did you mean 'collapse'?"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(name, said, runs, tmp_path, capsys):
    assert cli.main(["analyse", name, str(runs), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", ["collapse", "all"])
def test_a_folder_without_runs_is_an_error(what, tmp_path, capsys):
    assert cli.main(["analyse", what, str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"tidefast: error: there is no finished run in {tmp_path}\n"


def test_without_a_folder_it_takes_the_runs_it_needs_references_too(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(paper_runs, "setting", lambda options: Tiny())
    for one in registry.get("resets")().experiments(Tiny()):
        run(one, tmp_path / "runs" / one.key, batches=tmp_path / "batches")
    assert cli.main(["analyse", "resets", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    rows = [line.split("|")[1].strip() for line in (tmp_path / "out/resets.md").read_text().splitlines() if "|" in line]
    assert {"ETA", "ETA + RDumb", "ETA + ASR", "ETA + ASR (full)"} <= set(rows)  # ETA is never reset


# every analysis


@pytest.mark.parametrize("name", registry.names())
def test_every_analysis_has_a_title_and_a_counterpart_in_the_paper_or_is_ours(name):
    analysis = registry.get(name)()
    assert analysis.name == name
    assert len(analysis.title) > 20
    assert not analysis.title.endswith(".")
    kinds = [said.partition(" ")[::2] for said in analysis.paper]
    assert any(kind in ("table", "figure") for kind, _ in kinds) or name in OURS
    for kind, which in kinds:
        if kind == "table":
            assert published.table(int(which)).number == int(which)
        elif kind == "figure":
            assert which in targets.LABELS


@pytest.mark.parametrize("name", registry.names())
@pytest.mark.parametrize("setting", [MiniScale(), FullScale()], ids=["mini", "full"])
def test_every_analysis_knows_what_to_run_at_every_scale(name, setting):
    experiments = registry.get(name)().experiments(setting)
    assert len({one.key for one in experiments}) == len(experiments) >= 2
    for one in experiments:
        assembly.check(one)


def test_every_figure_with_data_has_its_analysis():
    assert set(targets.by_figure()) == set(targets.LABELS) - {targets.DIAGRAM}


def test_another_network_and_other_images_take_the_place_of_the_bundled_ones():
    parser = argparse.ArgumentParser()
    paper_runs.arguments(parser)
    setting = paper_runs.setting(parser.parse_args(["--model", "mynets:small", "--data", "photos"]))
    experiment = setting.experiment(setting.ccc("hard"), "ETA", "ASR")
    assert experiment.model.name == "mynets:small"
    assert experiment.stream.options["data"] == "photos"
    assert (
        paper_runs.setting(parser.parse_args([])).experiment(setting.ccc("hard"), "ETA").model.name == "bundled-resnet"
    )
    with pytest.raises(ValueError, match="--data goes with --mini"):
        paper_runs.setting(parser.parse_args(["--full", "--data", "photos"]))
    with pytest.raises(ValueError, match="--imagenet goes with --full"):
        paper_runs.setting(parser.parse_args(["--imagenet", "val"]))
