"""What deploy/Dockerfile does, as far as that goes without an engine: its steps in folders of their own, its command.

Run are: COPY and RUN of the first stage, ENV, ENTRYPOINT and HEALTHCHECK. Not run are: the base image, useradd, USER.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOKEN = "a-token-of-some-length"


def steps() -> list[tuple[str, str]]:
    """The instructions and what they say."""
    text = re.sub(r"\\\n", " ", (ROOT / "deploy" / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def main() -> None:
    """Build, start, ask, end."""
    with tempfile.TemporaryDirectory(prefix="tidefast-image-") as temporary:
        root = Path(temporary)
        work, installed, state = root / "build", root / "opt" / "tidefast", root / "state"
        work.mkdir()
        settings: dict[str, str] = {}
        command: list[str] = []
        health: list[str] = []
        left_out = []
        for word, rest in steps():
            if word == "COPY" and "--from" not in rest:
                *names, where = rest.split()
                for name in names:
                    source, target = ROOT / name, work / where / (name if where.endswith("/") else "")
                    if source.is_dir():
                        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
                    else:
                        shutil.copy(source, target)
            elif word == "RUN" and "/opt/tidefast" in rest:
                line = rest.replace("/opt/tidefast", str(installed))
                line = re.sub(r"^python ", f"{sys.executable} ", line)
                clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
                subprocess.run(line, shell=True, cwd=work, env=clean, check=True, stdout=subprocess.DEVNULL)
            elif word == "ENV":
                name, _, value = rest.partition("=")
                settings[name] = value.replace("/opt/tidefast", str(installed)).replace("$PATH", os.environ["PATH"])
            elif word == "ENTRYPOINT":
                command = json.loads(rest)
            elif word == "HEALTHCHECK":
                health = json.loads(rest.partition("CMD ")[2])
            else:
                left_out.append(word)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        settings |= {"TIDEFAST_SERVE_STATE": str(state), "TIDEFAST_SERVE_PORT": port, "TIDEFAST_TOKEN": TOKEN}
        here = {"HOME": str(root), "TIDEFAST_SERVE_HOST": "127.0.0.1", "TIDEFAST_SERVE_OTEL": "1"}
        environment = {**settings, **here}
        executable = shutil.which(command[0], path=settings["PATH"])
        assert executable == str(installed / "bin" / command[0]), executable
        with subprocess.Popen(
            [executable, *command[1:]], cwd=root, env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                said = json.loads(process.stdout.readline())
                assert said["address"] == f"http://127.0.0.1:{port}", said
                deadline = time.monotonic() + 60
                healthy = [str(shutil.which(health[0], path=settings["PATH"])), *health[1:]]
                while subprocess.run(healthy, env=environment, stderr=subprocess.DEVNULL).returncode:
                    assert time.monotonic() < deadline, "the health check of the image fails"
                    time.sleep(0.5)
            finally:
                process.send_signal(signal.SIGTERM)
        assert process.returncode == 0, process.returncode
        print(f"the image's steps install, serve, are healthy and end; left out: {', '.join(dict.fromkeys(left_out))}")


if __name__ == "__main__":
    main()
