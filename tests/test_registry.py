"""Names: ours, and those of packages that plug in."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import dataclass

import pytest

import tidefast
from tidefast import methods
from tidefast.core.registry import Registry


def test_names_are_listed_and_filtered():
    assert {"source", "batchnorm", "alphabatchnorm", "tent", "eta", "eata", "sar", "roid", "cmf"} <= set(
        tidefast.list_methods()
    )
    assert tidefast.list_methods("e*ta") == ["eata", "eta"]
    assert tidefast.list_resets() == ["aetta", "asr", "confidence", "distribution", "guard", "never", "periodic"]


def test_names_ignore_case_and_know_aliases():
    registry = methods.base.registry
    assert registry.get("ROID") is methods.ROID
    assert registry.get("bn") is methods.BatchNorm


def test_a_class_registers_by_decorator_and_a_taken_name_is_refused():
    registry: Registry[object] = Registry("thing")

    @registry.register("first", "one")
    @dataclass
    class First:
        pass

    assert registry.get("one") is First
    assert First.name == "first"
    with pytest.raises(ValueError, match="'one' is taken by"):
        registry.register("second", "one")(type("Second", (), {}))


def test_a_variant_is_a_class_with_options_under_a_name_of_its_own():
    registry: Registry[object] = Registry("thing")

    @registry.register("line", "stroke")
    @dataclass
    class Line:
        width: int = 1
        colour: str = "black"

    registry.variant("line-thick", "line", width=3)
    registry.variant("line-thick", "line", width=3)  # as when a module is imported again
    registry.variant("line-thick-red", "line-thick", colour="red")
    assert registry.make("LINE-thick", colour="blue") == Line(3, "blue")
    assert registry.make("line-thick-red") == Line(3, "red")
    assert registry.get("line-thick") is Line
    assert registry.names() == ["line"]
    assert registry.variants("*-thick") == {"line-thick": ("line", {"width": 3})}
    for name in ("line", "stroke", "line-thick"):
        with pytest.raises(ValueError, match=f"'{name}' is taken"):
            registry.variant(name, "line", width=4)
    with pytest.raises(ValueError, match="'line-thick' is taken by a variant of line"):
        registry.register("line-thick")(type("Other", (), {}))
    with pytest.raises(tidefast.errors.UnknownNameError, match="unknown thing 'lime'; did you mean 'line'"):
        registry.variant("lime-green", "lime")
    with pytest.raises(tidefast.errors.UnknownNameError, match="did you mean 'line-thick'"):
        registry.make("line-thik")


PLUGIN = """
from dataclasses import dataclass
from tidefast.methods import Objective, Tent

@dataclass(frozen=True)
class Half(Tent):
    def loss(self, step, state):
        objective = super().loss(step, state)
        return Objective(objective.loss / 2, objective.selected)
"""


@pytest.mark.slow
def test_an_installed_package_plugs_in_by_entry_point_and_a_broken_one_only_warns(tmp_path):
    """The packages are real: a module and its metadata on the path of a new process."""
    (tmp_path / "half_tent.py").write_text(PLUGIN)
    for name, value in (("half", "half_tent:Half"), ("broken", "no_such_module:Thing")):
        metadata = tmp_path / f"{name}_plugin-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-plugin\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[tidefast.methods]\n{name} = {value}\n")
    script = textwrap.dedent(
        f"""
        import sys, warnings
        sys.path.insert(0, {str(tmp_path)!r})
        import tidefast
        from tidefast.testing import check_adapter
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert "half" in tidefast.list_methods(), tidefast.list_methods()
        assert "plug-in 'broken'" in str(caught[0].message), str(caught[0].message)
        check_adapter(lambda model: tidefast.adapt(model, "half", reset="asr"))
        from tidefast.cli import main
        assert main(["list", "methods", "ha*"]) == 0
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["half"]
