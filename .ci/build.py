"""The sdist and the wheel, and the wheel in an environment of its own: does what the README promises hold there?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
LARGEST = 30_000_000
MODEL = """
import torch
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 10))
stream = [torch.rand(16, 3, 8, 8) for _ in range(3)]
canaries = torch.rand(64, 3, 8, 8)
"""
WITHOUT_EXTRA = {
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
"""Commands that need an extra, which a plain installation does not have."""


def main() -> None:
    """Build, install, try."""
    with tempfile.TemporaryDirectory(prefix="tidefast-build-") as temporary:
        folder = Path(temporary)
        run(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT), cwd=folder)
        [wheel] = folder.glob("*.whl")
        assert list(folder.glob("*.tar.gz")), "there is no sdist"
        size = wheel.stat().st_size
        assert size < LARGEST, f"the wheel has {size:,} bytes, more than {LARGEST:,}"
        environment = folder / "environment"
        venv.create(environment, with_pip=True)
        python = str(environment / "bin" / "python")
        run(python, "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(wheel), cwd=folder)

        [lines] = re.findall(r"```python\n(import tidefast\n.+?)```", (ROOT / "README.md").read_text(), re.DOTALL)[:1]
        run(python, "-c", f"{MODEL}{lines}\nassert logits.shape == (16, 10) and adapter.step == 3", cwd=folder)

        tidefast = str(environment / "bin" / "tidefast")
        assert run(tidefast, "--version", cwd=folder) == f"tidefast {VERSION}\n"
        assert "methods\troid\n" in run(tidefast, "list", cwd=folder)
        assert "ICLR 2026" in run(tidefast, "paper", cwd=folder)
        for command, extra in WITHOUT_EXTRA.items():
            error = run(tidefast, *command.split(), cwd=folder, code=2)
            expected = rf"tidefast: error: .+: pip install '\.\[{extra}\]' in a clone of tidefast\n"
            assert re.fullmatch(expected, error), f"tidefast {command} says {error!r}"
        print(f"{wheel.name}: installed on its own, it adapts, lists, and names the extras that it lacks")


def run(*command: str, cwd: Path, code: int = 0) -> str:
    """What a command prints (where it fails as it should: on the error stream), away from the source tree."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True)
    if done.returncode != code:
        sys.exit(f"{' '.join(command)[:200]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stderr if code else done.stdout


if __name__ == "__main__":
    main()
