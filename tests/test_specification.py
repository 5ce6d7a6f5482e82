"""Names with options: one language, in Python, on the command line and in files."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

import tidefast
from nets import conv_net
from tidefast import cli, methods, models, resets, streams
from tidefast.bench import text
from tidefast.core import notation
from tidefast.core.specification import Specification
from tidefast.errors import SpecificationError

# -- values ------------------------------------------------------------------------------------------------------------

words = st.text("0123456789_.eE+-xbainfNULtruesyo~ ", max_size=8).map(str.strip) | st.sampled_from(
    [*("True", "FALSE", "Yes", "no", "ON", "Off", "Null", "~", "tRue"), *("-.inf", ".nan", ".5", "1_000", "017", "08")]
)


@given(words)
@example("1e-3")
def test_a_word_says_what_it_says_in_yaml(word: str):
    """But for what people do not expect of YAML 1.1: 1e-3 as text, dates, and numbers to base 60."""
    try:
        said = yaml.safe_load(f"[{word}]")[0] if word else None
    except (yaml.YAMLError, ValueError, IndexError):
        return
    ours = notation.scalar(word)
    if isinstance(said, str) and isinstance(ours, float):
        assert ours == float(word.replace("_", ""))
        assert "e" in word.lower()
    elif isinstance(said, (str, int, float, bool)) or said is None:
        assert (type(ours), str(ours)) == (type(said), str(said))


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab ,:[]{}'\"=#1", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc:, ", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["level", "speed", "_x1"]), plain, max_size=3))
def test_options_in_flow_style_are_read_like_a_file(options: dict[str, object]):
    written = {
        key: yaml.safe_dump(value, default_flow_style=True, width=math.inf).removesuffix("\n...\n").strip()
        for key, value in options.items()
    }
    given_ = "name:" + ",".join(f"{key}={value}" for key, value in written.items()) if options else "name"
    expected = {key: text.parse(value) for key, value in written.items()}
    assert expected == options
    assert Specification.parse(given_) == Specification("name", options)


# -- what is made of them ----------------------------------------------------------------------------------------------

OWN = """
from dataclasses import dataclass

import torch

import tidefast
from tidefast import resets, streams
from tidefast.models import load
from tidefast.methods import Tent


@tidefast.register_method("own-tent")
@dataclass(frozen=True)
class OwnTent(Tent):
    flag: bool = False


@dataclass(frozen=True)
class Bare(Tent):
    flag: bool = False


@dataclass(frozen=True)
class Rarely(resets.Periodic):
    pass


@dataclass(frozen=True)
class Patient(resets.asr.triggers.Trigger):
    rest: int = 3

    def fires(self, concentration, threshold, steps):
        return steps > self.rest


def network(width=1):
    return load("bundled-resnet")


def stream(seed, steps, batch, level="hard"):
    return streams.make("drift", seed=seed, steps=steps, batch=batch, level=level)


def sgd(parameters, rate=1.0):
    return torch.optim.SGD(parameters, lr=rate)
"""


@pytest.fixture
def own(tmp_path, monkeypatch) -> str:
    """The name of a module in the current folder, with one of each kind."""
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(OWN.replace("own-tent", f"own-{name}"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


@pytest.mark.parametrize("form", [str, dict, Specification])
def test_an_adapter_is_made_of_names_with_options_in_every_form(form):
    def given(name: str, **options: object) -> object:
        text_ = f"{name}:" + ",".join(f"{key}={value}" for key, value in options.items())
        return {str: text_, dict: {"name": name, **options}, Specification: Specification(name, options)}[form]

    adapter = tidefast.adapt(
        conv_net(),
        given("eta", similarity_margin=0.4),
        reset=given("asr", alpha0=0.9, clear_optimizer=False if form is not str else "false"),
        optimizer=given("adam", lr=1e-3),
    )
    assert adapter.method == methods.ETA(similarity_margin=0.4)
    assert adapter.policy == resets.ASR(alpha0=0.9, clear_optimizer=False)
    assert isinstance(adapter.optimizer, torch.optim.Adam)
    assert adapter.optimizer.param_groups[0]["lr"] == 1e-3
    fleet = tidefast.Fleet(conv_net(), given("eta", similarity_margin=0.4), optimizer=given("sgd", lr=0.5))
    assert fleet.method == methods.ETA(similarity_margin=0.4)


def test_presets_variants_and_nested_parts_are_made_by_adapt_too():
    policy = tidefast.adapt(conv_net(), "tent", reset="asr-no-recovery:preset=paper,when=interval:every=512").policy
    assert policy == resets.ASR.paper(accumulation="none", when="interval:every=512")


def test_streams_orders_and_models_take_options_in_their_name():
    stream = streams.make("drift:level=easy,seed=43,order={name: dirichlet, delta: 0.5}", steps=10, batch=8)
    assert str(stream) == str(
        streams.make("drift", level="easy", seed=43, order=streams.Dirichlet(0.5), steps=10, batch=8)
    )
    with pytest.raises(SpecificationError, match=r"has no option 'levl'; its options: level, .*every stream: data"):
        streams.make("drift:levl=easy")
    with pytest.raises(SpecificationError, match="model 'bundled-resnet' has no option 'width'"):
        models.load("bundled-resnet:width=2")


def test_everything_can_be_a_class_or_a_function_of_a_module(own):
    adapter = tidefast.adapt(
        conv_net(), f"{own}:Bare:flag=true", reset=f"{own}:Rarely:every=7", optimizer=f"{own}:sgd:rate=0.5"
    )
    assert (type(adapter.method).__name__, adapter.method.flag, adapter.method.name) == ("Bare", True, f"{own}:Bare")
    assert (adapter.policy.every, adapter.optimizer.param_groups[0]["lr"]) == (7, 0.5)
    assert resets.ASR(when=f"{own}:Patient:rest=5").when.rest == 5
    assert len(streams.make(f"{own}:stream:level=easy", steps=4, batch=8)) == 4
    assert isinstance(models.load(f"{own}:network:width=3"), torch.nn.Module)
    assert tidefast.adapt(conv_net(), f"own-{own}:flag=true").method.flag is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "torch:nope"], "method 'torch:nope': module torch has no 'nope'"),
        (["--method", "os:getcwd"], "method 'os:getcwd' must give a Method, got str"),
        (["--method", "nowhere:Mine"], "method 'nowhere:Mine': No module named 'nowhere'"),
        (["--method", "math:pi"], "expected a class or a function, got float"),
        (["--method", "eta:512"], "expected name:key=value,key=value, got 'eta:512'"),
        (["--method", "eta:entropy_margin=high"], "entropy_margin must be a number, got 'high'"),
        (["--reset", "asr:alpha=1"], "reset 'asr' has no option 'alpha'; its options: alpha0, "),
        (["--reset", "asr:when=intervall"], "unknown trigger 'intervall'; did you mean 'interval'?"),
        (["--optimizer", "lbfgs:lr=1"], "optimizer 'lbfgs' cannot take a step"),
        (["--optimizer", "os:getcwd"], "optimizer 'os:getcwd' cannot take a step"),
        (["--optimizer", "adma"], "unknown optimizer 'adma'; did you mean 'adam"),
        (["--optimizer", "adam:rate=1"], "optimizer 'adam' has no option 'rate'; its options: "),
        (["--optimizer", "adam:lr="], "lr= has no value"),
        (["--model", "os:getcwd"], "model 'os:getcwd' must give a torch.nn.Module, got str"),
        (["--stream", "os:getcwd"], "stream 'os:getcwd' has no option"),
    ],
    ids=str,
)
def test_what_cannot_be_made_is_one_clear_line_of_the_command(arguments, message, tmp_path, capsys):
    usual = ["--stream", "drift", "--method", "tent", "--steps", "2", "--batch", "4", "--out", str(tmp_path / "run")]
    assert cli.main(["run", *usual, *arguments]) == 2
    *bar, error = capsys.readouterr().err.splitlines()
    assert error.startswith("tidefast: error: ")
    assert message in error
    assert len(bar) <= ("model" in message)  # only what takes the making of a network to be seen ends a run that began


@pytest.mark.slow
def test_methods_and_policies_of_the_current_folder_reach_the_command_and_the_workers_of_a_sweep(own, tmp_path):
    """Without the current folder on Python's path, as for whoever calls `tidefast`."""
    command = [sys.executable, "-P", "-m", "tidefast"]
    one = ["run", "--stream", "drift", "--method", f"{own}:Bare:flag=true", "--reset", f"{own}:Rarely:every=2"]
    done = subprocess.run(
        [*command, *one, "--steps", "3", "--batch", "4", "--out", "one"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Bare (flag True) + Rarely (every 2)" in done.stdout
    grid = {"stream": "drift", "method": [f"{own}:Bare", f"own-{own}"], "reset": f"{own}:Rarely"}
    grid |= {"steps": 2, "batch": 4}
    swept = f"bench.sweep({grid!r}, 'runs', jobs=2)"
    script = f"import {own}; from tidefast import bench; print([outcome.error for outcome in {swept}])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[None, None]", done.stdout + done.stderr


@pytest.mark.slow
def test_a_name_that_only_the_parent_of_a_sweep_knows_is_explained(tmp_path):
    script = """
from dataclasses import dataclass
import tidefast
from tidefast import bench, methods

if __name__ == "__main__":
    @tidefast.register_method("homemade")
    @dataclass(frozen=True)
    class Homemade(methods.Tent):
        pass

    grid = {"stream": "drift", "method": "homemade", "steps": 2, "batch": 4}
    print(bench.sweep(grid, "runs", jobs=1)[0].error)
"""
    (tmp_path / "main.py").write_text(script)
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "unknown method 'homemade'" in done.stdout
    assert "registered only in the process that started the sweep: name it as module:Class" in done.stdout
