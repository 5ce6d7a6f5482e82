"""Dependencies point downwards only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tidefast

ROOT = Path(tidefast.__file__).parent
LAYERS = [
    {"errors"},
    {"core"},
    {"augment", "probes"},
    {"resets"},
    {"methods"},
    {"preparation"},
    {"adapter"},
    {"fleet"},
    {"testing", "corruptions", "datasets"},
    {"models"},
    {"speed", "streams"},
    {"bench", "serve"},
    {"report"},
    {"demo", "paper"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}


def imports(path: Path) -> set[str]:
    """Parts of tidefast that a file imports when it runs, type-checking blocks and functions left out."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tidefast":
            parts = node.module.split(".")[1:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("tidefast.")}
    return found & RANK.keys()


def parts() -> list[tuple[str, Path]]:
    return [
        (path.relative_to(ROOT).parts[0].removesuffix(".py"), path)
        for path in sorted(ROOT.rglob("*.py"))
        if path != ROOT / "__init__.py"
    ]


def test_every_part_has_its_layer():
    assert {part for part, _ in parts()} <= RANK.keys()


@pytest.mark.parametrize(("part", "path"), parts(), ids=lambda value: "/".join(Path(value).parts[-2:]))
def test_a_part_imports_only_what_lies_below_it(part: str, path: Path):
    for other in imports(path) - {part}:
        assert RANK[other] < RANK[part], f"{part} imports {other}"


@pytest.mark.parametrize(("part", "path"), parts(), ids=lambda value: "/".join(Path(value).parts[-2:]))
def test_only_commands_import_what_only_this_paper_needs(part: str, path: Path):
    """Functions and type-checking blocks included."""
    if part in ("paper", "commands"):
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
        else:
            continue
        assert not any(f"{name}.".startswith("tidefast.paper.") for name in names), f"{path} imports {names}"


def test_the_core_needs_neither_torchvision_nor_timm_nor_sklearn():
    import subprocess
    import sys

    code = "import sys, tidefast; print([m for m in ('torchvision', 'timm', 'sklearn', 'cv2') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_service_needs_neither_experiments_nor_streams_nor_what_only_those_need():
    import subprocess
    import sys

    absent = ("tidefast.bench", "tidefast.streams", "yaml", "pyarrow", "loky", "scipy", "numba", "cv2")
    code = f"""
import sys
sys.modules.update(dict.fromkeys({absent!r}))
import tempfile
from pathlib import Path
from tidefast import serve
settings = serve.Settings(
    method="eata:source_samples=64", source="bundled-train", reset="asr:when=interval:every=9", optimizer="adam",
    state=Path(tempfile.mkdtemp()), threads=1,
)
service = serve.open_service(settings)
print(service.fleet.method.name, service.fleet.policy.when)
service.snapshots.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "eata Interval(every=9)"


def type_names(path: Path) -> set[str]:
    """Classes and aliases of types that a file defines, private ones without their underscore; an alias is written like
    a class, in CamelCase."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name.lstrip("_"))
        elif isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if name[0].isupper() and not name.isupper()}


def test_a_type_name_means_one_thing():
    homes: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for name in type_names(path):
            homes.setdefault(name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
