"""A disk that fails at any call, below Python: what cannot be done is refused, and no step is lost or made up."""

from __future__ import annotations

import errno
import mmap
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="left out: the extra `serve` is not installed")
pytest.importorskip("httpx", reason="left out: httpx is not installed")

import serving

from test_serve_faults import ON_DEMAND, Client, feed, steps_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="left out: there is no gcc to build the faults with"),
]


class Disk:
    """Under the processes that this test starts."""

    def __init__(self, orders: Path) -> None:
        orders.write_bytes(bytes(4096))
        with open(orders, "r+b") as file:
            self._orders = mmap.mmap(file.fileno(), 4096)

    def fails(self, call: str, number: int, part: str, among: int = 1) -> None:
        """From now on, one in `among` such calls on files whose path has that part."""
        self._orders[:200] = f"{call} {number} {among} {part}".encode().ljust(200, b"\0")

    @property
    def failures(self) -> int:
        """How many calls have failed so far."""
        return int.from_bytes(self._orders[2048:2052], sys.byteorder)

    def works(self) -> None:
        self._orders[:200] = bytes(200)


@pytest.fixture
def disk(tmp_path, monkeypatch) -> Disk:
    source = Path(__file__).parent / "assets" / "faults" / "faults.c"
    library = tmp_path / "faults.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    disk = Disk(tmp_path / "orders")
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("FAULTS", str(tmp_path / "orders"))
    return disk


def whole_snapshots(state: Path) -> list[Path]:
    """Without what a snapshot that failed may have left where even clearing it away failed."""
    return [path for path in (state / "snapshots").iterdir() if not path.name.startswith(".")]


@pytest.mark.parametrize(("call", "number"), [("open", errno.EMFILE), ("open", errno.ENOMEM), ("read", errno.EIO)])
def test_an_idle_stream_that_cannot_be_read_waits(tmp_path, disk, call, number):
    x, y = Client("x"), Client("y")
    with serving.serving(tmp_path / "state", *ON_DEMAND, "--resident", "1") as service, service.client() as http:
        feed(service, x, steps=4)
        assert http.post("/v1/snapshots").status_code == 201
        feed(service, x, steps=4)
        feed(service, y)
        disk.fails(call, number, ".safetensors")
        with pytest.raises(RuntimeError, match=r"503.*storage"):
            feed(service, x)
        assert http.get("/readyz").status_code == 503
        disk.works()
        feed(service, x, steps=2)
        assert steps_in(http) == {"x": 10, "y": 1}
        assert http.get("/v1/alarms").json() == []
        assert http.get("/readyz").status_code == 200
    x.check()
    y.check()


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("fsync", errno.EIO),
        ("write", errno.ENOSPC),
        ("open", errno.EROFS),
        ("write", errno.EIO),
        ("fsync", errno.EDQUOT),
    ],
)
def test_a_snapshot_that_fails_at_any_call_is_not_there(tmp_path, disk, call, number):
    state = tmp_path / "state"
    clients = [Client(name) for name in "abc"]
    with serving.serving(state, *ON_DEMAND, "--resident", "2") as service, service.client() as http:
        for among in (1, 2, 3, 5):
            feed(service, *clients)
            disk.fails(call, number, "snapshots/", among)
            there = len(whole_snapshots(state))
            status = http.post("/v1/snapshots").status_code
            disk.works()
            assert status in (201, 503)
            assert len(whole_snapshots(state)) == there + (status == 201)
        feed(service, *clients)
        assert http.post("/v1/snapshots").status_code == 201
        assert sorted(whole_snapshots(state)) == sorted((state / "snapshots").iterdir()), "what failed is cleared away"
        service.kill()
    with serving.serving(state, *ON_DEMAND) as service, service.client() as http:
        assert steps_in(http) == dict.fromkeys("abc", 5)
        feed(service, *clients)
    for one in clients:
        one.check()


@pytest.mark.parametrize("among", [3, 7, 13])
def test_a_disk_that_fails_now_and_then_loses_and_invents_nothing(tmp_path, disk, among):
    """Every answer is that of a lone adapter, whatever was refused between them; so is what a restart finds."""
    state = tmp_path / "state"
    clients = [Client(name) for name in "abcde"]
    with serving.serving(state, *ON_DEMAND, "--resident", "1") as service, service.client() as http:
        feed(service, *clients)
        for round_ in range(12):
            disk.fails("any", (errno.EIO, errno.EMFILE, errno.ENOSPC)[round_ % 3], f"{state}/", among)
            for one in clients:
                try:
                    feed(service, one)
                except RuntimeError as error:
                    if "503" not in str(error):
                        raise
                    one.pending = None
            http.post("/v1/snapshots")
        disk.works()
        feed(service, *clients)
        assert "tidefast_lost_steps_total 0.0" in http.get("/metrics").text
        assert http.post("/v1/snapshots").status_code == 201
        assert http.get("/readyz").status_code == 200
        service.process.terminate()
        assert service.process.wait(30) == 0
    assert disk.failures >= 10, "next to nothing failed: the test has shown nothing"
    with serving.serving(state, *ON_DEMAND) as service, service.client() as http:
        assert steps_in(http) == {one.stream: len(one.steps) for one in clients}
        feed(service, *clients)
    for one in clients:
        one.check()
