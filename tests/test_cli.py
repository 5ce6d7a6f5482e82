"""The command line as a user meets it."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tidefast import bench, cli
from tidefast.commands import serve as serve_command
from tidefast.serve.settings import Settings
from tidefast.testing import small_network


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help_with_an_example(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    assert f"example: tidefast {command}" in re.sub(r"\s+", " ", capsys.readouterr().out)


def test_the_command_is_installed():
    done = subprocess.run([Path(sys.executable).with_name("tidefast"), "--version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("tidefast ")


def test_list_prints_names(capsys):
    assert cli.main(["list", "resets"]) == 0
    assert capsys.readouterr().out.split()[:8] == [
        "aetta",
        "asr",
        "confidence",
        "distribution",
        "guard",
        "never",
        "periodic",
        "asr-interval",
    ]
    assert cli.main(["list", "methods", "tent", "--long"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "tent",
        "    L = mean_i H(z_i).",
        "      objective  str, one of 'entropy', 'come', default 'entropy'",
    ]
    assert cli.main(["list", "resets", "asr", "--long"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "      mu0               float, [0.0, 1.0], default 0.15" in lines
    assert "      when              part, one of 'adaptive', 'interval', default 'adaptive'" in lines
    assert cli.main(["list", "resets", "asr-s*", "--long"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index("asr-share-20") + 1] == "    asr with extent=fixed:part=0.2"
    assert "asr-full" not in lines
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    assert {"methods\troid", "streams\tdrift", "models\tbundled-resnet"} <= set(out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speed", "--methods", "tnet"], "--methods must be one of"),
        (["speed", "--network", "resnet1"], "--network must be one of 'resnet26-32px'"),
        (["speed", "--rounds", "0"], "--rounds must be a whole number of at least 1"),
        (["demo", "--steps", "0"], "--steps must be a whole number of at least 8"),
        (["demo", "--batch", "1"], "--batch must be a whole number of at least 2"),
    ],
)
def test_bad_input_exits_with_one_clear_line(arguments, message, capsys):
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("tidefast: error: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_speed_prints_the_table(capsys):
    assert cli.main(["speed", "--network", "resnet26-32px", "--methods", "eta", "--rounds", "1", "--batch", "4"]) == 0
    out = capsys.readouterr().out
    row = re.search(r"\| eta\+asr \| 2.00 \| 1.00 \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (\d+) \|", out)
    assert row, out
    assert 1.0 < float(row[3]) <= 1.03  # numbers held, in units of the network: not a matter of speed
    assert "ASR's own bookkeeping" in out


def test_demo_runs_on_the_bundled_data_and_writes_its_report(tmp_path, capsys):
    out = tmp_path / "demo"
    assert cli.main(["demo", "--steps", "8", "--batch", "8", "--out", str(out)]) == 0
    assert "ETA + ASR" in capsys.readouterr().out
    assert "<svg" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    ("command", "owner"),
    [("run", bench.run), ("run", bench.Experiment), ("sweep", bench.sweep)],
    ids=["run", "Experiment", "sweep"],
)
def test_the_defaults_that_help_names_are_those_of_what_takes_them(command, owner, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    options = re.split(r" (?=--[a-z])", " ".join(capsys.readouterr().out.split()).partition(" options: ")[2])
    said = {option.split()[0][2:]: option.partition("(default: ")[2].split(")")[0] for option in options}
    if owner is bench.Experiment:
        defaults = {field.name: field.default for field in dataclasses.fields(owner)}
    else:
        defaults = {name: parameter.default for name, parameter in inspect.signature(owner).parameters.items()}
    named = {name: defaults.get(name.replace("-", "_")) for name, value in said.items() if value}
    compared = {name: str(getattr(default, "name", default)) for name, default in named.items() if default is not None}
    assert compared == {name: said[name] for name in compared}
    assert compared


def test_serve_takes_its_defaults_from_the_settings():
    parser = argparse.ArgumentParser()
    serve_command.arguments(parser)
    options = vars(parser.parse_args([]))
    for field in dataclasses.fields(Settings):
        assert options[field.name] == field.default


FILES = {
    "lots.yaml": "stream: drift\nmethod: tent\nsteps: lots\n",
    "five.yaml": "stream: 5\nmethod: tent\n",
    "itself.yaml": "&a\nstream: drift\nmethod: tent\ngrids: [*a]\n",
    "option.yaml": "stream: &a {name: drift, order: *a}\nmethod: tent\n",
    "deep.yaml": "stream: " + "[" * 5000 + "]" * 5000,
    "many.yaml": "\n".join(
        ["stream:", "  a0: &a0 [x, x]", *(f"  a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))]
    ),
}


def test_a_stream_in_the_place_of_an_experiment_file_is_told_where_it_goes(tmp_path, capsys):
    assert cli.main(["run", "drift", "--method", "eta", "--out", str(tmp_path / "out")]) == 2
    assert "there is no experiment file 'drift'; a stream is named by --stream drift" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "sweep"])
@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("lots.yaml", "steps must be a whole number, got 'lots'"),
        ("five.yaml", "stream must be a name, name:key=value or a mapping with a name, got int 5"),
        ("itself.yaml", "or contains itself"),
        ("option.yaml", "or contains itself"),
        ("deep.yaml", "nested deeper than"),
        ("many.yaml", "holds more than 100000 values"),
    ],
)
def test_a_file_that_is_no_experiment_is_named_in_one_clear_line(command, file, message, tmp_path, capsys):
    (tmp_path / file).write_text(FILES[file])
    assert cli.main([command, str(tmp_path / file), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"tidefast: error: {tmp_path / file}: ")
    assert message in error
    assert error.count("\n") == 1


def meta_model():
    with torch.device("meta"):
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10), torch.nn.LayerNorm(10))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--optimizer=lbfgs:lr=1", "optimizer 'lbfgs' cannot take a step"),
        ("--model=torch:nope", "module torch has no 'nope'"),
        ("--model=os:getcwd", "must give a torch.nn.Module, got str"),
        ("--model=torch:zeros", "model 'torch:zeros': zeros() missing"),
        ("--model=test_cli:meta_model", "the model is on the meta device"),
        ("--model=mynet", "a network of your own is module:function, which returns it"),
        ("--model=", "a name is needed"),
    ],
)
def test_a_part_that_is_none_is_said_in_one_clear_line(option, message, tmp_path, capsys):
    command = ["run", "--stream=drift", "--method=tent", "--steps=2", "--batch=4", "--out", str(tmp_path / "out")]
    assert cli.main([*command, option]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


class Exiting(torch.nn.Module):
    """A network whose forward does what it should not."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layers, self.how = small_network(), how

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        sys.exit(self.how) if self.how == "bye" else {}["layer"]


OF_OTHERS = {
    "leaves": (lambda: sys.exit(), "model 'test_cli:leaves' called sys.exit()", 2),
    "raises": (lambda: {}["weights"], "model 'test_cli:raises' raised KeyError: 'weights'", 2),
    "leaves_later": (
        lambda: Exiting("bye"),
        "RuntimeError: the model's forward called sys.exit('bye') (test_cli.py",
        1,
    ),
    "raises_later": (lambda: Exiting("raise"), "KeyError: 'layer' (test_cli.py, line ", 1),
}
leaves, raises, leaves_later, raises_later = (make for make, _, _ in OF_OTHERS.values())


def no_stream(seed: int, steps: int, batch: int) -> None:
    sys.exit()


@pytest.mark.parametrize("name", OF_OTHERS)
def test_a_model_that_raises_or_calls_sys_exit_is_told_in_one_line(name, tmp_path, capsys, monkeypatch):
    _, message, code = OF_OTHERS[name]
    command = ["run", "--stream=drift", "--method=tent", "--steps=2", "--batch=4", f"--model=test_cli:{name}", "--out"]
    assert cli.main([*command, str(tmp_path / "out")]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    monkeypatch.setenv(cli.DEBUG, "1")
    assert cli.main([*command, str(tmp_path / "debug")]) == code
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_module_or_a_stream_that_calls_sys_exit_is_told_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "ends_early.py").write_text("import sys\nsys.exit()\n")
    for option in ("--model=ends_early:net", "--stream=test_cli:no_stream"):
        assert cli.main(["run", "--stream=drift", "--method=tent", "--out", str(tmp_path / "out"), option]) == 2
        error = capsys.readouterr().err
        assert "called sys.exit()" in error
        assert error.count("\n") == 1


@pytest.mark.slow
def test_a_sweep_tells_of_models_that_call_sys_exit(tmp_path):
    (tmp_path / "ends.py").write_text(
        "import sys\nfrom torch import nn\n\ndef at_once(): sys.exit()\n\n"
        "class Later(nn.BatchNorm2d):\n    def forward(self, images): sys.exit('bye')\n\n"
        "def later(): return nn.Sequential(Later(3))\n"
    )
    (tmp_path / "sweep.yaml").write_text(
        "{stream: drift, method: tent, steps: 2, batch: 4, grids: [{model: ['ends:at_once', 'ends:later']}]}"
    )
    command = [Path(sys.executable).with_name("tidefast"), "sweep", "sweep.yaml", "--out", "out", "--jobs", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "model 'ends:at_once' called sys.exit()" in done.stdout + done.stderr
    assert "forward called sys.exit('bye')" in done.stdout + done.stderr
