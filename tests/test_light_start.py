"""The command line and the package start light: no torch before it is needed, and no extra that is not."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tidefast
from tidefast import cli, report
from tidefast.core import extras

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=300)


CALL = """
import sys, time
from tidefast.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as stop:
    code = stop.code
print("torch" in sys.modules, code, time.process_time())
"""


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--help"], 0), (["--version"], 0), (["lst"], 2), ([], 2), (["run", "--help"], 0)]
)
def test_what_is_only_about_the_command_line_needs_no_torch(arguments, code):
    imported, left, _ = python(CALL, *arguments).stdout.splitlines()[-1].split()
    assert (imported, left) == ("False", str(code))


@pytest.mark.slow
def test_help_costs_at_most_a_quarter_of_importing_torch():
    best = {
        what: min(float(python(code, *arguments).stdout.split()[-1]) for _ in range(2))
        for what, code, arguments in (
            ("torch", "import time, torch; print(time.process_time())", []),
            ("help", CALL, ["--help"]),
        )
    }
    assert best["help"] <= best["torch"] / 4, best


@pytest.mark.parametrize(("typed", "meant"), [("lst", "list"), ("analyze", "analyse"), ("sevre", "serve")])
def test_a_mistyped_command_gets_the_nearest_name_in_one_line(typed, meant, capsys):
    assert cli.main([typed, "--out", "x"]) == 2
    error = capsys.readouterr().err
    assert (
        error == f"tidefast: error: there is no command {typed!r}; did you mean {meant!r}? tidefast --help lists all\n"
    )


def test_a_command_like_no_other_gets_no_guess(capsys):
    assert cli.main(["xyzzy"]) == 2
    assert capsys.readouterr().err == "tidefast: error: there is no command 'xyzzy'; tidefast --help lists all\n"


# -- the package ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_public_name_is_there_when_it_is_touched():
    code = """
import sys, tidefast
assert "torch" not in sys.modules
assert set(tidefast.__all__) <= set(dir(tidefast))
from tidefast import *
from tidefast import adapt, methods, resets
assert adapt is tidefast.Adapter and "roid" in list_methods() and "asr" in list_resets()
assert "drift" in list_streams() and "bundled-resnet" in list_models()
assert all(name in globals() for name in tidefast.__all__)
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", [tidefast, report], ids=lambda package: package.__name__)
def test_the_table_of_public_names_holds_all_of_them_and_each_leads_somewhere(package):
    assert set(package.__all__) <= set(package._WHERE)
    for name in package._WHERE:
        assert package.__getattr__(name) is getattr(package, name)
    with pytest.raises(AttributeError, match="has no attribute 'adpat'"):
        _ = package.adpat


# -- extras ---------------------------------------------------------------------------------------------------------

WITHOUT = """
import contextlib, io, json, sys
missing, commands, imports = json.loads(sys.argv[1])
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from tidefast.cli import main
done = {}
for command in commands:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        done[" ".join(command)] = [main(command), out.getvalue(), err.getvalue()]
for statement in imports:
    try:
        exec(statement)
    except ImportError as error:
        done[statement] = str(error)
print(json.dumps(done))
"""
"""As after a plain installation, without any extra."""

NEEDY = {
    "demo": "bench",
    "run --stream drift --method eta --out x": "bench",
    "sweep grid.yaml --out x": "bench",
    "report x": "bench",
    "analyse": "figures",
    "reproduce": "bench",
    "calibrate --out x.npz --images 8": "data",
    "generate --out x --total 100": "data",
    "serve": "serve",
}
"""Commands, and the extra that each needs."""

FRUGAL = {
    "list": "streams\tdrift",
    "list --long": "needs",
    "paper": "(ICLR 2026)",
    "paper 4 --format markdown": "| ETA",
    "calibrate --show bundled": "alone at severity 5",
}
"""Commands that need no extra, and something that they print."""

IMPORTS = {
    "import tidefast.bench": "bench",
    "from tidefast import bench": "bench",
    "from tidefast.report import write": "bench",
    "import tidefast.demo": "bench",
    "import tidefast.paper.analyses": "bench",
    "import tidefast.paper.reproduction": "bench",
    "from tidefast.serve import make_app": "serve",
}
"""Imports in Python, and the extra that each needs."""


@pytest.fixture(scope="module")
def without_extras(tmp_path_factory):
    missing = sorted(set().union(*extras.PACKAGES.values(), {"ray", "starlette", "timm", "torchvision"}))
    given = json.dumps([missing, [command.split() for command in (*FRUGAL, *NEEDY)], [*IMPORTS]])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, given],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path_factory.mktemp("without"),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", NEEDY)
def test_a_command_whose_extra_is_missing_names_it_in_one_line(command, without_extras):
    code, _, error = without_extras[command]
    assert code == 2
    assert error.startswith("tidefast: error: ")
    assert error.endswith(f": pip install '.[{NEEDY[command]}]' in a clone of tidefast\n")
    assert error.count("\n") == 1


@pytest.mark.parametrize("statement", IMPORTS)
def test_an_import_whose_extra_is_missing_names_it(statement, without_extras):
    extra = IMPORTS[statement]
    assert without_extras[statement].startswith(f"tidefast.{extra} needs packages that are not installed (")
    assert without_extras[statement].endswith(f": pip install '.[{extra}]' in a clone of tidefast")


@pytest.mark.parametrize("command", FRUGAL)
def test_what_needs_no_extra_works_without_one(command, without_extras):
    code, out, error = without_extras[command]
    assert (code, error) == (0, "")
    assert FRUGAL[command] in out


def requirements(extra: str) -> set[str]:
    """Distributions that an extra brings, those of the extras it includes too."""
    brought: set[str] = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        if included := re.match(r"tidefast\[(.+)\]", requirement):
            brought |= set().union(*map(requirements, included[1].split(",")))
        else:
            brought.add(re.split(r"[^\w.-]", requirement)[0].lower())
    return brought


@pytest.mark.parametrize("extra", extras.PACKAGES)
def test_the_table_of_packages_is_what_the_project_file_says(extra):
    always = {re.split(r"[^\w.-]", requirement)[0].lower() for requirement in PROJECT["dependencies"]}
    distributions = importlib.metadata.packages_distributions()
    required = requirements(extra) - always
    # Several distributions may share a package, as OpenTelemetry's do.
    brought = {
        package: {name.lower().replace("_", "-") for name in distributions[package]}
        for package in extras.PACKAGES[extra]
    }
    assert required <= set().union(*brought.values())
    assert all(names & required for names in brought.values())
