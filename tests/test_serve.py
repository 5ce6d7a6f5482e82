"""The service as its clients meet it: a real server on loopback, real files, real signals."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import httpx
import numpy as np
import PIL.Image
import pytest
import safetensors.torch
import torch
import uvicorn

import tidefast
from tidefast import cli, models, serve
from tidefast.fleet.manifest import file_name
from tidefast.serve.batching import Batcher
from tidefast.serve.refused import RefusedError
from tidefast.serve.snapshots import Journal, Snapshots
from tidefast.streams import as_tensor
from tidefast.testing import small_network

NPY = {"Content-Type": "application/x-npy"}
TOKEN = "a-token-of-some-length"
LEVELS = np.random.default_rng(0).integers(0, 256, (64, 8, 16, 16, 3), dtype=np.uint8)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def encoded(array: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    PIL.Image.fromarray(array).save(file, kind)
    return file.getvalue()


def net() -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return small_network()


def lone() -> tidefast.Adapter:
    return tidefast.adapt(net(), "eta", reset="asr")


@contextlib.contextmanager
def running(
    folder: Path,
    model: torch.nn.Module | None = None,
    watch=None,
    labels=None,
    method="eta",
    reset="asr",
    canaries=None,
    **chosen,
):
    """A server of this process, and a client for it."""
    settings = serve.Settings(**{"state": folder, "side": (16, 16), "threads": 1, "snapshot_every": 600.0, **chosen})
    options = {"method": method, "reset": reset}
    service = serve.Service(settings, model or net(), options, watch=watch, labels=labels, canaries=canaries)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(serve.make_app(service), log_config=None, access_log=False, lifespan="on", ws="none")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        deadline = time.monotonic() + 30
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        with httpx.Client(base_url=address, timeout=30) as client:
            client.service = service
            yield client
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def send(client: httpx.Client, name: str, array: np.ndarray, verb: str = "adapt", **query) -> dict:
    answer = client.post(f"/v1/streams/{name}/{verb}", content=npy(array), headers=NPY, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with running(tmp_path_factory.mktemp("state"), max_wait=0.0, max_body=2_000_000, labels=list("abcdefghij")) as made:
        yield made


# -- answers --------------------------------------------------------------------------------------------------------


def test_answers_are_those_of_a_lone_adapter(client):
    adapter = lone()
    for step in range(4):
        said = send(client, "same", LEVELS[step], logits="true")
        expected = adapter(as_tensor(LEVELS[step]))
        assert torch.equal(torch.tensor(said["logits"]), expected)
        assert [one["class"] for one in said["predictions"]] == expected.argmax(1).tolist()
        assert [one["label"] for one in said["predictions"]] == ["abcdefghij"[c] for c in expected.argmax(1)]
        assert (said["step"], said["batch"]) == (step + 1, {"size": 8, "offset": 0})
        assert said["adapted"] == (adapter.last.selected > 0)
    said = send(client, "same", LEVELS[9], "predict", logits="true")
    assert torch.equal(torch.tensor(said["logits"]), adapter.predict(as_tensor(LEVELS[9])))
    assert (said["step"], said["adapted"]) == (4, False)


def test_a_collapse_is_seen_whatever_the_reset_policy(tmp_path):
    """The policy `never` measures nothing: the service does."""
    collapsed = net()
    with torch.no_grad():
        collapsed[-1].bias[0] += 50.0
    with running(tmp_path, collapsed, reset="never", max_wait=0.0) as client:
        for step in range(12):
            send(client, "sick", LEVELS[step % len(LEVELS)])
        history = client.get("/v1/streams/sick/history").json()
        assert all(record["concentration"] > -0.01 for record in history)
        assert [alarm["kind"] for alarm in client.get("/v1/alarms").json()] == ["concentration"]


def test_every_kind_of_body_gives_the_same_answer(client):
    floats = as_tensor(LEVELS[0]).numpy()
    form = [("images", (f"{i}.png", encoded(one), "image/png")) for i, one in enumerate(LEVELS[0])]
    said = [
        send(client, "kinds", LEVELS[0], "predict", logits="true")["logits"],
        send(client, "kinds", floats, "predict", logits="true")["logits"],
        client.post("/v1/streams/kinds/predict?logits=true", files=form).json()["logits"],
    ]
    assert said[0] == said[1] == said[2]
    one = client.post(
        "/v1/streams/kinds/predict", content=encoded(LEVELS[0][0], "JPEG"), headers={"Content-Type": "image/jpeg"}
    )
    assert one.status_code == 200
    assert len(one.json()["predictions"]) == 1
    assert "logits" not in one.json()


def test_predicting_begins_no_stream(client):
    send(client, "unborn", LEVELS[0], "predict")
    assert client.get("/v1/streams/unborn").status_code == 404


def test_close_requests_make_one_step_and_can_be_reproduced(tmp_path):
    with running(tmp_path, max_wait=0.2, max_batch=16) as client, ThreadPoolExecutor(6) as pool:
        sizes = [1, 2, 3, 5, 8, 4, 1, 7, 2, 6]
        sent = [LEVELS[i][:size] for i, size in enumerate(sizes)]
        said = list(pool.map(lambda one: send(client, "s", one, logits="true"), sent))
        adapter = lone()
        steps = sorted({one["step"] for one in said})
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) < len(sizes)
        for step in steps:
            parts = [(one["batch"]["offset"], i) for i, one in enumerate(said) if one["step"] == step]
            whole = torch.cat([as_tensor(sent[i]) for _, i in sorted(parts)])
            assert {said[i]["batch"]["size"] for _, i in parts} == {len(whole)}
            assert len(whole) <= 16
            logits = adapter(whole)
            for offset, i in parts:
                assert torch.equal(torch.tensor(said[i]["logits"]), logits[offset : offset + sizes[i]])


def test_many_streams_at_once_do_not_mix(tmp_path):
    adapters = [lone() for _ in range(12)]
    with running(tmp_path, max_wait=0.005, workers=2, resident=3) as client:

        def one(stream: int) -> bool:
            for step in range(4):
                levels = LEVELS[(7 * stream + step) % 64]
                said = send(client, f"s{stream}", levels, logits="true")
                if not torch.equal(torch.tensor(said["logits"]), adapters[stream](as_tensor(levels))):
                    return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(one, range(12)))
        assert len(client.get("/v1/streams").json()) == 12


def test_unusable_pixels_are_answered_and_counted(client):
    floats = as_tensor(LEVELS[0]).numpy().copy()
    floats[0, 0, 0, 0] = np.nan
    said = send(client, "nan", floats)
    assert len(said["predictions"]) == 8
    assert client.get("/v1/streams/nan").json()["last"]["nonfinite"] == 1
    assert "nan" not in client.get("/v1/streams/nan/history").text.replace('"nan"', "").lower()


# -- what can be done to a stream -----------------------------------------------------------------------------------


def test_freeze_reset_rollback_delete(tmp_path):
    with running(tmp_path, max_wait=0.0) as client:
        send(client, "x", LEVELS[0])
        snapshot = client.post("/v1/snapshots")
        assert (snapshot.status_code, snapshot.json()["streams"]) == (201, 1)
        after = send(client, "x", LEVELS[1], logits="true")
        assert client.post("/v1/streams/x/freeze").json()["frozen"] is True
        said = send(client, "x", LEVELS[2])
        assert (said["step"], said["frozen"], said["adapted"]) == (2, True, False)
        assert client.post("/v1/streams/x/unfreeze").json()["frozen"] is False
        name = client.get("/v1/snapshots").json()[-1]["name"]
        assert client.post("/v1/streams/x/rollback", json={"snapshot": name}).json()["step"] == 1
        assert send(client, "x", LEVELS[1], logits="true")["logits"] == after["logits"]
        assert client.post("/v1/streams/x/reset").json()["step"] == 0
        assert client.delete("/v1/streams/x").status_code == 204
        assert client.get("/v1/streams/x").status_code == 404
        assert client.post("/v1/streams/x/rollback", json={"snapshot": name}).json()["step"] == 1
        assert client.post("/v1/streams/x/rollback", json={"snapshot": "000099"}).status_code == 404
        assert client.post("/v1/streams/y/rollback", json={"snapshot": name}).status_code == 404
        assert client.post("/v1/streams/x/rollback", json={"snapshot": "../x"}).status_code == 422


@pytest.mark.parametrize("verb", ["freeze", "unfreeze", "reset"])
def test_a_stream_that_is_not_there_is_404(client, verb):
    answer = client.post(f"/v1/streams/nobody/{verb}")
    assert (answer.status_code, answer.json()["reason"]) == (404, "unknown")
    assert client.delete("/v1/streams/nobody").status_code == 404
    assert client.get("/v1/streams/nobody/history").status_code == 404


def test_streams_are_listed_in_pages(tmp_path):
    with running(tmp_path, max_wait=0.0) as client:
        for name in ("b1", "a2", "a1", "b2"):
            send(client, name, LEVELS[0])
        names = [one["name"] for one in client.get("/v1/streams", params={"limit": 3}).json()]
        assert names == ["a1", "a2", "b1"]
        rest = client.get("/v1/streams", params={"after": "b1"}).json()
        assert [one["name"] for one in rest] == ["b2"]
        assert [one["name"] for one in client.get("/v1/streams?prefix=a").json()] == ["a1", "a2"]
        found = client.get("/v1/streams?order=attention&after=a1").json()
        assert len(found) == 3
        assert {"name", "step", "frozen", "frozen_by", "where", "last", "alarms", "lately"} == found[0].keys()
        history = client.get("/v1/streams/a1/history").json()
        assert [one["step"] for one in history] == [1]
        assert client.get("/v1/streams/a1/history?since=1").json() == []


@pytest.mark.parametrize(
    "name", ["a/b", "../../etc/passwd", "..", "ключ 鍵 🔑", "100%", "%2F", "a b", "x" * 200, "a?b#c"]
)
def test_any_printable_name_is_a_stream(client, name):
    path = f"/v1/streams/{quote(name, safe='')}".replace("..", "%2E%2E")
    host, port = client.base_url.host, client.base_url.port
    with socket.create_connection((host, port)) as raw:  # clients tidy addresses up; a socket does not
        body = npy(LEVELS[0])
        head = f"POST {path}/adapt HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
        raw.sendall((head + f"Content-Type: application/x-npy\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body)
        said = b"".join(iter(lambda: raw.recv(65536), b""))
    assert said.startswith(b"HTTP/1.1 200"), said[:500]
    assert json.loads(said.partition(b"\r\n\r\n")[2])["stream"] == name
    assert name in client.service.fleet


@pytest.mark.parametrize("name", ["%00", "a%0Ab", "%FF", "x" * 201])
def test_other_names_are_refused(client, name):
    answer = client.post(f"/v1/streams/{name}/adapt", content=npy(LEVELS[0]), headers=NPY)
    assert (answer.status_code, answer.json()["reason"]) == (422, "unfit")


# -- what is refused ------------------------------------------------------------------------------------------------


def _bomb(width: int, height: int) -> bytes:
    """A small PNG file that says it is huge."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def _header(shape: str, kind: str = "|u1") -> bytes:
    said = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(said)) + said


@pytest.mark.parametrize(
    ("kind", "body", "status", "reason"),
    [
        ("image/png", _bomb(50_000, 50_000), 413, "too_large"),
        ("image/png", _bomb(5_000, 5_000), 413, "too_large"),
        ("image/png", _bomb(16, 16)[:40], 400, "malformed"),
        ("image/png", encoded(LEVELS[0][0])[:-30], 400, "malformed"),
        ("image/jpeg", b"rubbish", 400, "malformed"),
        ("image/png", encoded(LEVELS[0][0], "GIF"), 400, "malformed"),
        ("image/png", b"", 400, "malformed"),
        ("image/png", encoded(LEVELS[0][0][:8]), 422, "unfit"),
        ("application/x-npy", npy(np.array([object()])), 422, "unfit"),
        ("application/x-npy", npy(LEVELS[0].astype(np.float64)), 422, "unfit"),
        ("application/x-npy", npy(np.asfortranarray(LEVELS[0])), 422, "unfit"),
        ("application/x-npy", npy(LEVELS[0][0]), 422, "unfit"),
        ("application/x-npy", npy(LEVELS[0][:0]), 422, "unfit"),
        ("application/x-npy", npy(np.full((2, 3, 16, 16), 255, np.float32)), 422, "unfit"),
        ("application/x-npy", npy(LEVELS[0])[:-1], 400, "malformed"),
        ("application/x-npy", npy(LEVELS[0]) + b"x", 400, "malformed"),
        ("application/x-npy", _header("(1000000, 16, 16, 3)"), 400, "malformed"),
        ("application/x-npy", _header("(1, 99999999, 99999999, 3)"), 413, "too_large"),
        ("application/x-npy", _header("(-1, 16, 16, 3)"), 422, "unfit"),
        ("application/x-npy", _header("__import__('os')"), 400, "malformed"),
        ("application/x-npy", b"\x93NUMPY\x09\x00", 400, "malformed"),
        ("application/x-npy", npy(np.concatenate(LEVELS[:9])), 413, "too_large"),
        ("application/x-npy", bytes(2_000_001), 413, "too_large"),
        ("application/json", b"{}", 415, "unsupported"),
        ("", b"", 415, "unsupported"),
        ("multipart/form-data", b"x", 400, "malformed"),
        ("multipart/form-data; boundary=x", b"--x\r\nrubbish", 422, "unfit"),
    ],
)
def test_bad_bodies_are_refused_and_harm_nothing(client, kind, body, status, reason):
    answer = client.post("/v1/streams/bad/adapt", content=body, headers={"Content-Type": kind} if kind else {})
    assert (answer.status_code, answer.json()["reason"]) == (status, reason), answer.text
    assert answer.json()["detail"]
    assert "bad" not in client.service.fleet
    assert client.get("/readyz").status_code == 200


def test_bad_forms_are_refused(client):
    png = encoded(LEVELS[0][0])
    many = [("images", (f"{i}.png", png)) for i in range(66)]
    for files, status in (
        (many, 413),
        (many[:65], 413),
        ([("pictures", ("a.png", png))], 422),
        ([("images", ("a.png", png)), ("images", ("b.png", encoded(LEVELS[0][0][:8])))], 422),
        ([("images", ("a.png", b"rubbish"))], 400),
    ):
        answer = client.post("/v1/streams/bad/adapt", files=files)
        assert answer.status_code == status, answer.text
    form = client.post("/v1/streams/bad/adapt", files={"x": (None, "text")})
    assert form.status_code == 400


def test_a_body_without_a_length_is_bounded_too(client):
    sent = 0

    def pieces(count: int):
        nonlocal sent
        for _ in range(count):
            sent += 1
            yield bytes(100_000)

    answer = client.post("/v1/streams/bad/adapt", content=pieces(30), headers=NPY)
    assert (answer.status_code, answer.json()["reason"]) == (413, "too_large")
    sent = 0
    with contextlib.suppress(httpx.TransportError):  # whoever never ends is not waited for
        client.post("/v1/streams/bad/adapt", content=pieces(100_000), headers=NPY)
    assert sent < 1000
    assert client.get("/readyz").status_code == 200


def test_the_size_is_learned_from_the_first_images_that_fit(tmp_path):
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(768, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)
    )
    with running(tmp_path, model, side=None, max_wait=0.0) as client:
        answer = client.post("/v1/streams/x/adapt", content=npy(LEVELS[0][:, :8]), headers=NPY)
        assert (answer.status_code, answer.json()["reason"]) == (422, "unfit")
        assert client.get("/v1/streams").json() == []
        send(client, "x", LEVELS[0])
        assert client.get("/v1/info").json()["size"] == [16, 16]
        assert client.get("/v1/info").json()["classes"] == 3
        answer = client.post("/v1/streams/x/adapt", content=npy(LEVELS[0][:, :8]), headers=NPY)
        assert "must be 16x16" in answer.json()["detail"]


def test_too_many_streams_are_refused(tmp_path):
    with running(tmp_path, max_streams=2, max_wait=0.0) as client:
        for name in ("a", "b", "a"):
            send(client, name, LEVELS[0])
        answer = client.post("/v1/streams/c/adapt", content=npy(LEVELS[0]), headers=NPY)
        assert (answer.status_code, answer.json()["reason"]) == (409, "streams")
        send(client, "c", LEVELS[0], "predict")
        client.delete("/v1/streams/a")
        send(client, "c", LEVELS[0])


class _Slow(torch.nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.inner, self.seconds = net(), seconds

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return self.inner(given)


def test_a_full_queue_says_so_and_late_answers_time_out(tmp_path):
    with (
        running(tmp_path, _Slow(0.4), max_wait=0.0, max_batch=8, stream_queue=16, queue=24, timeout=1.0) as client,
        ThreadPoolExecutor(12) as pool,
    ):
        post = lambda name: client.post(f"/v1/streams/{name}/adapt", content=npy(LEVELS[0]), headers=NPY)  # noqa: E731
        answers = list(pool.map(post, ["x"] * 6 + ["y"] * 6))
        codes = [answer.status_code for answer in answers]
        assert set(codes) == {200, 429, 504} or set(codes) == {200, 429}
        busy = next(answer for answer in answers if answer.status_code == 429)
        assert busy.json()["reason"] == "busy"
        assert int(busy.headers["Retry-After"]) >= 1
        metrics = client.get("/metrics").text
        assert re.search(r'tidefast_rejected_total\{reason="busy"\} [1-9]', metrics)


def test_the_rate_of_a_client_is_limited(tmp_path):
    with running(tmp_path, rate=5.0) as client:
        codes = [client.get("/v1/info").status_code for _ in range(14)]
        assert codes[:10] == [200] * 10
        assert 429 in codes
        assert client.get("/healthz").status_code == 200


# -- who may ask ----------------------------------------------------------------------------------------------------


def test_the_token_guards_everything_that_tells_of_streams(tmp_path):
    with running(tmp_path, token=TOKEN) as client:
        for path in ("/v1/streams", "/v1/info", "/metrics", "/v1/nothing", "/v1/streams/x"):
            for headers in (
                {},
                {"Authorization": f"Bearer {TOKEN}x"},
                {"Authorization": TOKEN},
                {"Authorization": "Basic x"},
            ):
                answer = client.get(path, headers=headers)
                assert (answer.status_code, answer.json()["reason"]) == (401, "unauthorized")
                assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert client.post("/v1/streams/x/adapt", content=npy(LEVELS[0]), headers=NPY).status_code == 401
        given = {"Authorization": f"Bearer {TOKEN}"}
        assert client.get("/v1/streams", headers=given).json() == []
        assert TOKEN not in client.get("/v1/info", headers=given).text
        document = client.get("/openapi.json").json()
        assert document["paths"]["/v1/streams"]["get"]["security"] == [{"token": []}]
        assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
        for path in ("/", "/page.js", "/page.css", "/healthz", "/readyz", "/openapi.json"):
            assert client.get(path).status_code == 200


def test_pages_of_other_sites_are_not_served(client):
    assert client.get("/v1/info", headers={"Origin": "https://example.org"}).status_code == 403
    assert client.get("/v1/info", headers={"Host": "example.org"}).status_code == 403
    assert client.get("/v1/info", headers={"Host": "[::1"}).status_code == 403
    own = f"http://{client.base_url.host}:{client.base_url.port}"
    assert client.get("/v1/info", headers={"Origin": own}).status_code == 200


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"host": "0.0.0.0"}, "without a token"),
        ({"token": "short"}, "16 or more"),
        ({"token": "ü" * 20}, "16 or more"),
        ({"port": 70000}, "port"),
        ({"max_batch": 0}, "max_batch"),
        ({"stream_queue": 8}, "stream_queue"),
        ({"max_wait": -1.0}, "max_wait"),
        ({"keep": 0}, "keep"),
    ],
)
def test_settings_are_checked(chosen, message):
    with pytest.raises(ValueError, match=message):
        serve.Settings(**chosen)
    assert "token-of" not in repr(serve.Settings(token=TOKEN))


# -- documents ------------------------------------------------------------------------------------------------------


def test_the_document_lists_every_route_with_its_errors(client):
    document = client.get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/healthz",
        "/metrics",
        "/readyz",
        "/v1/alarms",
        "/v1/info",
        "/v1/snapshots",
        "/v1/streams",
        "/v1/streams/{name}",
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        *(
            f"/v2/models/{{model}}{version}{verb}"
            for version in ("", "/versions/{version}")
            for verb in ("", "/ready", "/infer")
        ),
        *(
            f"/v1/streams/{{name}}/{verb}"
            for verb in ("adapt", "predict", "feedback", "history", "freeze", "unfreeze", "reset", "rollback")
        ),
    }
    adapt = document["paths"]["/v1/streams/{name}/adapt"]["post"]
    assert set(adapt["requestBody"]["content"]) == {
        "image/png",
        "image/jpeg",
        "multipart/form-data",
        "application/x-npy",
    }
    assert {"200", "400", "401", "413", "415", "422", "429", "503", "504"} <= set(adapt["responses"])
    assert "security" not in adapt  # there is no token to give
    for path, verbs in document["paths"].items():
        for verb, about in verbs.items():
            assert "500" in about["responses"], (path, verb)
    assert client.get("/docs").status_code == 200


def test_addresses_and_methods_that_are_not_there(client):
    assert client.get("/v1/nothing").json()["reason"] == "unknown"
    wrong = client.put("/v1/streams/a%2Fb")
    assert (wrong.status_code, wrong.headers["Allow"]) == (405, "DELETE, GET")
    assert client.get("/v1/streams?limit=0").status_code == 422
    assert "limit" in client.get("/v1/streams?limit=0").json()["detail"]


# -- batches --------------------------------------------------------------------------------------------------------


def _batched(script, **chosen):
    """Run `script(batcher, seen)` with a batcher whose work notes the batches it gets."""
    seen: list[tuple[str, str, list[int]]] = []
    seconds = chosen.pop("seconds", 0.0)

    def work(name, kind, requests):
        time.sleep(seconds)
        seen.append((name, kind, [request.payload for request in requests]))
        if any(request.payload == -1 for request in requests):
            raise ArithmeticError("minus one")
        return [10 * request.payload for request in requests]

    async def main():
        options = {"workers": 1, "max_batch": 4, "max_wait": 0.05, "queue": 100, "stream_queue": 50, **chosen}
        batcher = Batcher(work, **options)
        try:
            return await script(batcher, seen)
        finally:
            await batcher.stop(5.0)

    return asyncio.run(main())


def test_a_batch_is_complete_with_enough_images():
    async def script(batcher, seen):
        started = time.perf_counter()
        said = await asyncio.gather(*(batcher.submit("s", "k", i, 1, 5.0) for i in range(8)))
        assert said == [10 * i for i in range(8)]
        assert [payloads for _, _, payloads in seen] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert time.perf_counter() - started < 20  # not the hour of max_wait

    _batched(script, max_wait=60.0)


def test_a_lonely_request_waits_no_longer_than_the_window():
    async def script(batcher, seen):
        started = time.perf_counter()
        assert await batcher.submit("s", "k", 7, 3, 5.0) == 70
        assert 0.04 < time.perf_counter() - started < 2.0

    _batched(script)


def test_requests_are_never_split_and_kinds_never_mixed():
    async def script(batcher, seen):
        asked = [("a", 1, 3), ("a", 2, 2), ("b", 3, 1), ("a", 4, 1), ("a", 5, 4)]
        said = await asyncio.gather(*(batcher.submit("s", kind, i, size, 5.0) for kind, i, size in asked))
        assert said == [10, 20, 30, 40, 50]
        assert seen == [("s", "a", [1]), ("s", "a", [2]), ("s", "b", [3]), ("s", "a", [4]), ("s", "a", [5])]
        with pytest.raises(RefusedError, match="at most 4 images"):
            await batcher.submit("s", "a", 1, 5, 5.0)

    _batched(script)


def test_an_error_reaches_its_own_batch_only():
    async def script(batcher, seen):
        said = await asyncio.gather(
            *(batcher.submit(name, "k", i, 4, 5.0) for name, i in (("x", 1), ("y", -1), ("x", 2))),
            return_exceptions=True,
        )
        assert said[::2] == [10, 20]
        assert isinstance(said[1], ArithmeticError)

    _batched(script)


def test_streams_that_wait_share_a_call_of_one_kind_and_keep_their_errors_to_themselves():
    calls: list[tuple[str, dict[str, list[int]]]] = []

    def joint(kind, batches):
        calls.append((kind, {name: [request.payload for request in own] for name, own in batches.items()}))
        return {
            name: ArithmeticError("minus one") if own[0].payload == -1 else [10 * request.payload for request in own]
            for name, own in batches.items()
        }

    async def script(batcher, seen):
        first = asyncio.create_task(batcher.submit("first", "a", 1, 4, 5.0))
        await asyncio.sleep(0.05)  # it is under way, alone
        asked = [("x", "a", 2), ("y", "b", 3), ("z", "a", -1), ("w", "a", 4), ("v", "b", 5), ("u", "a", 6)]
        said = await asyncio.gather(
            *(batcher.submit(name, kind, i, 4, 5.0) for name, kind, i in asked), return_exceptions=True
        )
        assert await first == 10
        assert [one for one in said if not isinstance(one, ArithmeticError)] == [20, 30, 40, 50, 60]
        assert isinstance(said[2], ArithmeticError)
        assert calls == [("a", {"x": [2], "z": [-1], "w": [4]}), ("b", {"y": [3], "v": [5]})]
        assert seen == [("first", "a", [1]), ("u", "a", [6])]
        assert batcher.waiting == 0

    _batched(script, seconds=0.2, together=3, joint_work=joint)


@pytest.mark.parametrize(("method", "warned"), [("eta", False), ("sar", True)])
def test_asking_in_vain_for_joint_steps_is_told_at_the_start(tmp_path, caplog, method, warned):
    with running(tmp_path / "state", method=method, together=4):
        assert ("--together does nothing here" in caplog.text) is warned


def test_a_request_that_ran_out_of_time_is_not_worked_on():
    async def script(batcher, seen):
        first = asyncio.create_task(batcher.submit("s", "k", 1, 4, 5.0))
        await asyncio.sleep(0.01)
        with pytest.raises(RefusedError, match=r"within 0\.05 s"):
            await batcher.submit("s", "k", 2, 4, 0.05)
        assert await first == 10
        assert await batcher.submit("s", "k", 3, 4, 5.0) == 30
        assert [payloads for _, _, payloads in seen] == [[1], [3]]
        assert batcher.waiting == 0

    _batched(script, seconds=0.2)


def test_at_the_end_what_was_accepted_is_finished_at_once():
    async def script(batcher, seen):
        asked = [asyncio.create_task(batcher.submit(name, "k", 1, 1, 50.0)) for name in "abc"]
        await asyncio.sleep(0.01)
        started = time.perf_counter()
        await batcher.stop(20.0)
        assert await asyncio.gather(*asked) == [10, 10, 10]
        assert time.perf_counter() - started < 20
        with pytest.raises(RefusedError, match="shutting down"):
            await batcher.submit("a", "k", 1, 1, 5.0)

    _batched(script, max_wait=60.0, seconds=0.05)


def test_an_end_is_bounded():
    async def script(batcher, seen):
        asked = [asyncio.create_task(batcher.submit(name, "k", 1, 1, 50.0)) for name in "abcdef"]
        await asyncio.sleep(0.01)
        await batcher.stop(0.15)
        said = await asyncio.gather(*asked, return_exceptions=True)
        assert said[0] == 10
        assert isinstance(said[-1], RefusedError)

    _batched(script, seconds=0.1)


# -- what is on disk ------------------------------------------------------------------------------------------------


def _fleet() -> tidefast.Fleet:
    return tidefast.Fleet(net(), "eta", reset="asr")


def _ignore(name: str, problem: str) -> None:
    pass


def test_snapshots_are_numbered_pruned_and_taken_only_when_something_changed(tmp_path):
    kept, fleet = Snapshots(tmp_path, 2, _ignore), _fleet()
    kept.restore(fleet)
    assert kept.take(fleet) is None
    for i in range(4):
        fleet["x"](as_tensor(LEVELS[i]))
        assert kept.take(fleet) == (i + 1, 1)
        assert kept.take(fleet) is None
    assert kept.take(fleet, always=True) == (5, 1)
    assert kept.numbers() == [4, 5]
    assert [one["name"] for one in kept.listed()] == ["000004", "000005"]
    kept.close()


def test_one_process_at_a_time_uses_a_state_folder(tmp_path):
    first = Snapshots(tmp_path, 2, _ignore)
    with pytest.raises(tidefast.FolderError, match="another process"):
        Snapshots(tmp_path, 2, _ignore)
    first.close()
    Snapshots(tmp_path, 2, _ignore).close()


def _reopened(folder: Path, damaged: list[str] | None = None) -> tuple[Snapshots, tidefast.Fleet]:
    kept, fleet = Snapshots(folder, 3, lambda name, _: damaged.append(name) if damaged is not None else None), _fleet()
    kept.restore(fleet)
    kept.close()
    return kept, fleet


def test_the_journal_knows_streams_that_began_or_were_dropped_since_the_snapshot(tmp_path):
    kept, fleet = Snapshots(tmp_path, 3, _ignore), _fleet()
    kept.restore(fleet)
    for name in ("old", "dropped", "again"):
        fleet[name](as_tensor(LEVELS[0]))
        kept.journal.begin(name)
    kept.take(fleet)
    fleet["new"](as_tensor(LEVELS[0]))
    kept.journal.begin("new")
    for name in ("dropped", "again"):
        kept.drop(fleet, name)
    fleet["again"](as_tensor(LEVELS[0]))
    kept.journal.begin("again")
    kept.close()
    for _ in range(2):  # once more from the compacted journal
        _, fleet = _reopened(tmp_path)
        assert {name: fleet[name].step for name in fleet} == {"again": 0, "new": 0, "old": 1}


def test_a_torn_journal_loses_only_the_torn_line(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for name in ("a", 'b"\\n', "ключ"):
        journal.begin(name)
    path.write_bytes(path.read_bytes() + b'{"stream": "c", "dro')
    torn = Journal(path)
    assert torn.names == {"a", 'b"\\n', "ключ"}
    torn.begin("d")
    assert Journal(path).names == {"a", 'b"\\n', "ключ", "d"}
    path.write_bytes(b"\xff\x00rubbish\n" + path.read_bytes())
    assert Journal(path).names == {"a", 'b"\\n', "ключ", "d"}


def test_numbers_are_not_used_again_after_snapshots_were_removed(tmp_path):
    kept, fleet = Snapshots(tmp_path, 3, _ignore), _fleet()
    kept.restore(fleet)
    fleet["x"](as_tensor(LEVELS[0]))
    for _ in range(4):
        kept.take(fleet, always=True)
    kept.drop(fleet, "x")
    fleet["x"](as_tensor(LEVELS[0]))
    kept.journal.begin("x")
    shutil.rmtree(tmp_path / "snapshots")
    (tmp_path / "snapshots").mkdir()
    kept.take(fleet)
    kept.close()
    assert _reopened(tmp_path)[1]["x"].step == 1


def test_a_damaged_snapshot_falls_back_stream_by_stream(tmp_path):
    kept, fleet = Snapshots(tmp_path, 3, _ignore), _fleet()
    kept.restore(fleet)
    for step in range(3):
        for name in ("x", "y"):
            fleet[name](as_tensor(LEVELS[step]))
        kept.take(fleet)
    kept.close()
    (kept.path(3) / file_name("x")).write_bytes(b"rubbish")
    damaged: list[str] = []
    _, again = _reopened(tmp_path, damaged)
    assert damaged == ["x"]
    assert {name: again[name].step for name in again} == {"x": 2, "y": 3}
    (kept.path(3) / "manifest.json").write_bytes(b"{}")
    damaged.clear()
    _, again = _reopened(tmp_path, damaged)
    assert damaged == ["snapshot 000003"]
    assert {name: again[name].step for name in again} == {"x": 2, "y": 2}


def test_a_stream_that_cannot_be_written_down_does_not_begin(tmp_path, monkeypatch):
    with running(tmp_path, max_wait=0.0) as client:
        send(client, "old", LEVELS[0])
        monkeypatch.setattr(Journal, "_append", _no_space)
        answer = client.post("/v1/streams/new/adapt", content=npy(LEVELS[0]), headers=NPY)
        assert (answer.status_code, answer.json()["reason"]) == (503, "storage")
        assert send(client, "old", LEVELS[1])["step"] == 2
        assert [one["name"] for one in client.get("/v1/streams").json()] == ["old"]
        monkeypatch.undo()
        assert send(client, "new", LEVELS[0])["step"] == 1


def test_a_full_disk_is_told_and_the_streams_go_on(tmp_path, monkeypatch):
    with running(tmp_path, max_wait=0.0) as client:
        send(client, "x", LEVELS[0])
        monkeypatch.setattr("tidefast.core.snapshot.write_atomically", _no_space)
        answer = client.post("/v1/snapshots")
        assert (answer.status_code, answer.json()["reason"]) == (503, "storage")
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["problems"]) == (503, ["the last snapshot failed"])
        assert send(client, "x", LEVELS[1])["step"] == 2
        monkeypatch.undo()
        assert client.post("/v1/snapshots").status_code == 201
        assert client.get("/readyz").status_code == 200


def test_an_idle_stream_damaged_on_disk_goes_on_from_a_snapshot(tmp_path):
    with running(tmp_path, max_wait=0.0, resident=1) as client:
        send(client, "x", LEVELS[0])
        client.post("/v1/snapshots")
        send(client, "x", LEVELS[1])
        send(client, "y", LEVELS[0])
        found = list((tmp_path / "idle").rglob(file_name("x")))
        assert len(found) == 1
        found[0].write_bytes(b"rubbish")
        said = send(client, "x", LEVELS[2], logits="true")
        adapter = lone()
        adapter(as_tensor(LEVELS[0]))
        assert said["step"] == 2
        assert torch.equal(torch.tensor(said["logits"]), adapter(as_tensor(LEVELS[2])))
        assert 'what="damaged"} 1' in client.get("/metrics").text


def test_a_state_folder_of_another_method_is_not_touched(tmp_path):
    with running(tmp_path, max_wait=0.0) as client:
        send(client, "x", LEVELS[0])
    settings = serve.Settings(state=tmp_path, side=(16, 16), threads=1)
    with pytest.raises(tidefast.SnapshotError, match=r"saved with method 'eta'.*--state"):
        serve.Service(settings, net(), {"method": "roid", "reset": "asr"})
    with running(tmp_path, max_wait=0.0) as client:
        assert client.get("/v1/streams/x").json()["step"] == 1


# -- the command ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def command(folder: Path, *more: str, environment: dict[str, str] | None = None):
    """`tidefast serve` as a process of its own, and a client for it."""
    arguments = [
        Path(sys.executable).with_name("tidefast"),
        "serve",
        "--state",
        folder,
        "--port",
        "0",
        "--threads",
        "1",
    ]
    process = subprocess.Popen(
        [*arguments, "--optimizer", "adam:lr=1e-3", "--max-wait", "0", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
    )
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+:\d+", line)
        assert found, line + process.stderr.read()
        with httpx.Client(base_url=found[0], timeout=30) as client:
            yield process, client
    finally:
        process.kill()
        process.communicate(timeout=30)


def _no_space(*arguments, **options):
    raise OSError(28, "No space left on device")


PICTURES = np.random.default_rng(1).integers(0, 256, (8, 6, 32, 32, 3), dtype=np.uint8)


@pytest.mark.slow
def test_a_restart_goes_on_bit_for_bit_and_a_kill_loses_no_stream(tmp_path):
    adapter = tidefast.adapt(
        models.load("bundled-resnet"), "roid", reset="asr", optimizer=lambda p: torch.optim.Adam(p, lr=1e-3), gather=16
    )
    expected = [adapter(as_tensor(one)) for one in PICTURES]
    with command(tmp_path) as (process, client):
        for step in range(3):
            said = send(client, "x", PICTURES[step], logits="true")
            assert torch.equal(torch.tensor(said["logits"]), expected[step])
        assert said["predictions"][0]["label"] in (
            "airplane",
            "automobile",
            "bird",
            "cat",
            "deer",
            "dog",
            "frog",
            "horse",
            "ship",
            "truck",
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""
    with command(tmp_path, "--snapshot-every", "0.2") as (process, client):
        assert client.get("/v1/streams/x").json()["step"] == 3
        for step in range(3, 6):
            said = send(client, "x", PICTURES[step], logits="true")
            assert torch.equal(torch.tensor(said["logits"]), expected[step])
        deadline = time.monotonic() + 20
        while len(client.get("/v1/snapshots").json()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        safe = client.post("/v1/snapshots").json()["name"]
        process.kill()
        process.wait(30)
    with command(tmp_path, "--snapshot-every", "600") as (process, client):
        assert client.get("/v1/snapshots").json()[-1]["name"] >= safe
        assert torch.equal(torch.tensor(send(client, "x", PICTURES[6], logits="true")["logits"]), expected[6])
        send(client, "young", PICTURES[0])
        process.kill()
        process.wait(30)
    with command(tmp_path) as (process, client):
        assert {one["name"]: one["step"] for one in client.get("/v1/streams").json()} == {"x": 6, "young": 0}
        assert torch.equal(torch.tensor(send(client, "x", PICTURES[6], logits="true")["logits"]), expected[6])
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@pytest.mark.slow
def test_the_end_waits_for_requests_that_were_accepted(tmp_path):
    with command(tmp_path, "--max-wait", "1.0", environment={"TIDEFAST_TOKEN": TOKEN}) as (process, client):
        assert client.get("/v1/streams").status_code == 401
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(send, client, f"s{i}", PICTURES[i]) for i in range(4)]
            deadline = time.monotonic() + 10
            while "tidefast_queue_images 24.0" not in client.get("/metrics").text and time.monotonic() < deadline:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            assert [one.result()["step"] for one in asked] == [1] * 4
        assert process.wait(30) == 0
    newest = max((tmp_path / "snapshots").iterdir())
    assert len(list(newest.glob("*.safetensors"))) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "without a token the service listens on loopback only"),
        (["--method", "rodi"], "unknown method 'rodi'; did you mean 'roid'?"),
        (["--method", "eta:margin=3"], "has no option 'margin'"),
        (["--method", "eata"], "give source= a folder of images"),
        (["--model", "nothing"], "unknown model 'nothing'"),
        (["--weights", "pickle.pt"], "must be an existing .safetensors file"),
        (["--labels", "labels.txt"], "3 labels, but the model has 10 classes"),
        (["--side", "0"], "side must be a whole number of at least 1"),
        (["--max-batch", "0"], "max_batch must be a whole number of at least 1"),
        (["--token-file", "none"], "No such file"),
    ],
)
def test_bad_options_exit_with_one_clear_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEFAST_TOKEN", raising=False)
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    assert cli.main(["serve", "--threads", "1", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_weights_come_from_a_safetensors_file(tmp_path):
    model = models.load("bundled-resnet")
    with torch.no_grad():
        model.head.bias += torch.arange(10.0)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "own.safetensors")
    settings = serve.Settings(
        weights=str(tmp_path / "own.safetensors"), method="source", reset="never", state=tmp_path / "state", threads=1
    )
    service = serve.open_service(settings)
    try:
        given = as_tensor(PICTURES[0])
        assert torch.equal(service.fleet["x"].predict(given), model(given))
        assert service.labels[0] == "airplane"
    finally:
        service.snapshots.close()
    wrong = {f"other.{key}": value for key, value in model.state_dict().items()}
    safetensors.torch.save_file(wrong, tmp_path / "wrong.safetensors")
    with pytest.raises(ValueError, match="does not fit bundled-resnet"):
        serve.open_service(dataclasses.replace(settings, weights=str(tmp_path / "wrong.safetensors")))


def test_images_that_the_model_cannot_take_are_noticed_at_the_start(tmp_path):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 8), torch.nn.BatchNorm1d(8))
    with pytest.raises(ValueError, match="the model cannot take images of 8x8"):
        serve.Service(serve.Settings(state=tmp_path, side=(8, 8), threads=1), model, {"method": "eta"})
    Snapshots(tmp_path, 1, _ignore).close()  # the folder is free again


def test_the_command_line_starts_without_the_service():
    code = "import sys, tidefast.commands.serve; print([m for m in ('fastapi', 'uvicorn', 'PIL') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- labels ---------------------------------------------------------------------------------------------------------


def test_labels_decide_who_answers(tmp_path):
    with running(tmp_path, reset="guard:alpha=0.05", max_wait=0.0) as client:
        send(client, "told", LEVELS[0])
        told = send(client, "told", LEVELS[1], "feedback", label=[1] * 8)
        assert (told["labels"], told["serves"]) == (8, "reference")
        assert send(client, "told", LEVELS[1])["step"] == 2

        def refused(name: str, labels: list[int]) -> tuple[int, str]:
            answer = client.post(
                f"/v1/streams/{name}/feedback", content=npy(LEVELS[1]), headers=NPY, params={"label": labels}
            )
            return answer.status_code, answer.json()["reason"]

        assert refused("told", [1] * 7) == (422, "unfit")
        assert refused("told", [10] * 8) == (422, "unfit")
        assert refused("nobody", [1] * 8) == (404, "unknown")


def test_labels_are_refused_where_they_are_of_no_use(client):
    send(client, "deaf", LEVELS[0])
    answer = client.post("/v1/streams/deaf/feedback", content=npy(LEVELS[1]), headers=NPY, params={"label": [1] * 8})
    assert (answer.status_code, answer.json()["reason"]) == (422, "unfit")
    assert "guard:alpha=0.05" in answer.json()["detail"]


@pytest.mark.parametrize("what", ["reset", "freeze", "unfreeze", "feedback?label=1"])
def test_what_is_done_to_a_stream_that_is_dropped_before_its_turn_does_not_bring_it_back(tmp_path, monkeypatch, what):
    with running(tmp_path, reset="guard:alpha=0.05", max_wait=0.0) as client:
        send(client, "x", LEVELS[0])
        client.delete("/v1/streams/x")
        monkeypatch.setattr(client.service, "_require", lambda name: None)  # it was there when the request came
        body = npy(LEVELS[1][:1]) if "label" in what else b""
        answer = client.post(f"/v1/streams/x/{what}", content=body, headers=NPY if body else {})
        assert (answer.status_code, answer.json()["reason"]) == (404, "unknown")
        assert list(client.service.fleet) == []


def test_labels_are_bounded_in_time_and_keep_nobody_else_waiting(tmp_path, monkeypatch):
    with running(tmp_path, reset="guard:alpha=0.05", max_wait=0.0, timeout=0.5) as client:
        send(client, "x", LEVELS[0])
        go_on = threading.Event()
        monkeypatch.setattr(tidefast.Adapter, "feedback", lambda *_: go_on.wait(30))

        def told(_: int) -> int:
            address = f"{client.base_url}/v1/streams/x/feedback"
            return httpx.post(
                address, content=npy(LEVELS[1]), headers=NPY, params={"label": [1] * 8}, timeout=30
            ).status_code

        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(told, number) for number in range(8)]
            time.sleep(0.1)
            assert client.get("/v1/streams", timeout=10).status_code == 200
            assert [each.result() for each in asked] == [504] * 8
        go_on.set()
